"""The digits example on real Ray, in slices started with the platform's own command lines."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import torch

from support.runs import EXAMPLES, load_module, make_run, records
from support.slice_cluster import SliceCluster, slice_cluster
from support.wait import until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

SECONDS = 240.0


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared data: `train/` and `held-out/`."""
    prepare = load_module(EXAMPLES / "digits" / "prepare.py")
    directory = tmp_path_factory.mktemp("digits")
    prepare.main(directory)
    return directory


@pytest.fixture
def training(tmp_path: Path, digits: Path) -> Iterator[tuple[SliceCluster, Path]]:
    """A cluster of a head without CPUs and two workers, and a run of the example."""
    run_dir = tmp_path / "run"
    env = make_run(
        run_dir,
        code=EXAMPLES / "digits",
        datasets={"digits": digits / "train", "digits-held-out": digits / "held-out"},
        env={"EPOCHS": "12", "STEP_SECONDS": "0.03"},
        run="python train.py",
        workers=2,
    )
    with slice_cluster(env, head_cpus=0, workers=2) as cluster:
        yield cluster, run_dir


def named(cluster: SliceCluster, name: str) -> list[psutil.Process]:
    return [process for process in cluster.processes() if name in _title(process)]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_killed_worker_costs_no_more_than_an_epoch_and_a_later_attempt_has_nothing_left_to_train(
    training: tuple[SliceCluster, Path],
) -> None:
    cluster, run_dir = training
    log = run_dir / "logs" / "driver.log"
    driver = cluster.run_driver("polyray.jobs.runner", run_dir=run_dir)

    def epochs() -> list[int]:
        assert driver.poll() in {None, 0}, log.read_text()[-4000:]
        return [record["metrics"]["epoch"] for record in records(run_dir, "metrics")]

    until(lambda: len(epochs()) >= 4, seconds=SECONDS, every=0.05, what="four epochs are trained")
    for unneeded in ("PlacementGroupCleaner", "DatasetManager", "PreemptionWatcher"):
        assert not named(cluster, unneeded)
    named(cluster, "RayTrainWorker")[0].kill()

    assert driver.wait(timeout=SECONDS) == 0, log.read_text()[-4000:]
    text = log.read_text()
    resumed = int(text.split("resumed from epoch ")[1].split()[0])
    assert resumed >= 2, text
    assert "Traceback" not in text.split("resumed from epoch")[-1]
    assert sorted(set(epochs())) == list(range(1, 13)), "no epoch is skipped"
    assert len(epochs()) <= 14, "at most the epochs whose checkpoint was not yet taken in are trained again"
    last = records(run_dir, "metrics")[-1]["metrics"]
    assert last["accuracy"] >= 0.95
    assert records(run_dir, "model")[-1]["path"] == "artifacts/model"

    # A later attempt finds the checkpoints under the workload's id and has nothing left to do.
    trained = len(epochs())
    again = cluster.run_driver("polyray.jobs.runner", run_dir=run_dir)
    assert again.wait(timeout=SECONDS) == 0, log.read_text()[-4000:]
    assert len(epochs()) == trained
    assert "resumed from epoch 12" in log.read_text()


def test_a_service_answers_names_bad_input_and_outlives_its_replica(tmp_path: Path, digits: Path) -> None:
    model = load_module(EXAMPLES / "digits" / "model.py").make_model()
    (tmp_path / "model").mkdir()
    torch.save(model.state_dict(), tmp_path / "model" / "model.pt")
    run_dir = tmp_path / "run"
    env = make_run(run_dir, code=EXAMPLES / "digits", model=tmp_path / "model", kind="service", app="serve_digits:app")
    images = pq.read_table(digits / "held-out" / "digits.parquet")["pixels"].to_pylist()[:20]
    with slice_cluster(env, head_cpus=1, workers=0) as cluster:
        url = f"http://{cluster.head.ip}:{cluster.head.serve_port}/"
        address = {"POLYRAY_SERVE_IP": cluster.head.ip, "POLYRAY_SERVE_PORT": str(cluster.head.serve_port)}
        driver = cluster.run_driver("polyray.serving.application", run_dir=run_dir, env=address)

        def healthy() -> bool:
            assert driver.poll() is None, (run_dir / "logs" / "driver.log").read_text()[-4000:]
            return bool(records(run_dir, "serving"))

        until(healthy, seconds=SECONDS, every=0.05, what="the service is healthy")
        expected = model(torch.tensor(images)).argmax(1).tolist()
        assert post(url, {"images": images}) == (200, {"digits": expected})
        status, body = post(url, {"images": [[0.0] * 63]})
        assert (status, body["field"]) == (422, "images[0]")

        (replica,) = named(cluster, "ServeReplica")
        replica.kill()
        replica.wait(timeout=10)
        until(lambda: answers(url, {"images": images}), seconds=SECONDS, every=0.2, what="a new replica answers")
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(timeout=30) == 128 + signal.SIGTERM


def test_a_service_whose_code_is_broken_ends_and_says_why(tmp_path: Path) -> None:
    code = tmp_path / "src"
    code.mkdir()
    (code / "broken.py").write_text(
        "from ray import serve\n"
        "@serve.deployment\n"
        "class App:\n"
        "    def __init__(self): raise ValueError('the weights do not fit')\n"
        "app = App.bind()\n"
    )
    run_dir = tmp_path / "run"
    env = make_run(run_dir, code=code, kind="service", app="broken:app")
    with slice_cluster(env, head_cpus=1, workers=0) as cluster:
        address = {"POLYRAY_SERVE_IP": cluster.head.ip, "POLYRAY_SERVE_PORT": str(cluster.head.serve_port)}
        driver = cluster.run_driver("polyray.serving.application", run_dir=run_dir, env=address)
        assert driver.wait(timeout=SECONDS) != 0
    assert "the weights do not fit" in (run_dir / "logs" / "driver.log").read_text()
    assert records(run_dir, "serving") == []


def post(url: str, content: object) -> tuple[int, dict[str, object]]:
    request = urllib.request.Request(url, data=json.dumps(content).encode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def answers(url: str, content: object) -> bool:
    try:
        return post(url, content)[0] == 200
    except (OSError, ValueError):
        return False
