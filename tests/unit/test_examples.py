from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from polyray.core.platform_file import load_platform_file
from polyray.core.resources import Resources, total
from polyray.core.spec import Kind, load_workload
from support.runs import EXAMPLES, load_module


@pytest.fixture(scope="module")
def serve_digits() -> ModuleType:
    return load_module(EXAMPLES / "digits" / "serve_digits.py")


def test_the_demo_s_job_does_not_fit_its_rack_but_its_quota_and_the_cloud() -> None:
    platform = load_platform_file(EXAMPLES / "demo" / "platform.yaml")
    job = load_workload((EXAMPLES / "digits" / "train.yaml").read_text())
    wanted = total(job.bundles)
    rack, cloud = platform.pools["rack"], platform.pools["cloud"]
    assert not wanted.fits(rack.bundle)
    assert total(job.bundles[:2]).fits(rack.bundle), "the head and one worker stay on the rack"
    assert job.bundles[2].fits(cloud.bundle)
    quota = platform.tenants["vision"].amounts("vision")
    assert wanted.fits(Resources({flavor: nominal for flavor, (nominal, _) in quota.items()}))


def test_the_demo_s_service_serves_a_model_on_the_rack() -> None:
    service = load_workload((EXAMPLES / "digits" / "service.yaml").read_text())
    assert (service.kind, service.model) == (Kind.SERVICE, "digits@1")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"\xff", "body"),
        (b"[" * 10_000, "body"),
        (b"{}", "images"),
        (b"[]", "images"),
        (json.dumps({"images": []}).encode(), "images"),
        (json.dumps({"images": [[0.0] * 63]}).encode(), "images[0]"),
        (json.dumps({"images": [[0.0] * 64, ["x"] * 64]}).encode(), "images[1][0]"),
        (json.dumps({"images": [[0.0, True] + [0.0] * 62]}).encode(), "images[0][1]"),
        (b'{"images": [[' + b",".join([b"NaN"] * 64) + b"]]}", "images[0][0]"),
        (json.dumps({"images": [[2.0] * 64]}).encode(), "images[0][0]"),
    ],
)
def test_the_digits_service_names_the_field_that_is_wrong(serve_digits: ModuleType, body: bytes, field: str) -> None:
    with pytest.raises(serve_digits.BadInput) as refused:
        serve_digits.parse_images(body)
    assert refused.value.field == field


def test_the_digits_service_takes_images(serve_digits: ModuleType) -> None:
    assert serve_digits.parse_images(json.dumps({"images": [[0, 1.0] * 32]}).encode()) == [[0, 1.0] * 32]


def test_digits_are_prepared_apart_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRAY_CACHE_DIR", str(tmp_path / "cache"))
    load_module(EXAMPLES / "digits" / "prepare.py").main(tmp_path)
    from polyray.data import stream

    batches = {part: next(iter(stream(tmp_path / part, 2000))) for part in ("train", "held-out")}
    assert {part: tuple(batch["pixels"].shape) for part, batch in batches.items()} == {
        "train": (1437, 64),
        "held-out": (360, 64),
    }
    seen = {part: {row.numpy().tobytes() for row in batch["pixels"]} for part, batch in batches.items()}
    assert not seen["train"] & seen["held-out"]
