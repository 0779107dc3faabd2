"""The whole platform on this machine, once through its main job. Run it with `make demo`.

Everything is real but the cloud and its prices, which the `local` provider simulates with processes: the
core Ray cluster, the tenants' clusters, the gateway, the issuer, the training and the serving. Everything
is done as a user would: with the `polyray` command line, stock Ray clients and HTTP.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import httpx
from people import BIN, Person, StepFailed, run
from watch import Watch

HERE = Path(__file__).parent
DIGITS = HERE.parent / "digits"
MIN_ACCURACY = 0.95


class Demo:
    def __init__(self, home: Path) -> None:
        state = home / "state"
        self.shared = {
            "POLYRAY_STATE_DIR": str(state),
            "POLYRAY_API_PORT": "0",
            "POLYRAY_GATEWAY_PORT": "0",
            "POLYRAY_PLATFORM_FILE": str(HERE / "platform.yaml"),
        }
        self.home = home
        self.ada = Person.at(home, "ada", "ada-of-vision", self.shared)
        self.bob = Person.at(home, "bob", "bob-of-speech", self.shared)
        self.began = self.last = time.monotonic()
        self.watch = Watch(home, self._ray_dir())
        self.job = self.gateway = ""

    def _ray_dir(self) -> Path:
        from polyray.core.settings import Settings

        return Settings(state_dir=self.home / "state").ray_dir

    def say(self, step: str, line: str) -> None:
        """Print one line with the seconds since the start and those since the last line."""
        now = time.monotonic()
        print(f"{now - self.began:6.1f} s  (+{now - self.last:5.1f})  {step}  {line}", flush=True)
        self.last = now

    # The steps.

    def start(self) -> None:
        self.watch.start()
        self.ada.polyray("up")
        self.say("0", "the platform is up: core, fabric, gateway, responder, control plane")

    def log_in(self) -> None:
        people = (self.ada, self.bob)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(Person.log_in, people))
        for person in people:
            me = person.ask("whoami")
            self.say("1", f"{person.name} logged in by device code: {me['role']} of {me['tenant']}")

    def use_plain_ray(self) -> None:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for_ada, for_bob = pool.map(lambda person: person.ray_environment(), (self.ada, self.bob))
        self.gateway = for_ada["RAY_API_SERVER_ADDRESS"]
        self.say("2", "both have a Ray cluster of their own (session 'default')")

        script = [sys.executable, str(HERE / "session.py")]
        first = self._json(run([*script, "counter-of-ada"], for_ada))
        expect(first["squares"][-1] == 49, f"tasks ran wrong: {first}")
        self.say("2", "ada: plain ray.init() through the gateway ran tasks and made the actor 'counter-of-ada'")
        expired = self.ada.polyray("token", "--ttl", "10").strip()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            again = pool.submit(run, [*script, "counter-of-ada"], for_ada)
            others = pool.submit(run, [*script, "counter-of-bob"], for_bob)
            seen_again, seen_by_bob = self._json(again.result()), self._json(others.result())
        expect(seen_again["actors_before"] == ["counter-of-ada"], f"the actor did not live on: {seen_again}")
        expect(seen_again["count"] == 2, f"the actor lost its state: {seen_again}")
        self.say("2", "ada again, from a new process: the actor is still there, and counts on")
        expect(seen_by_bob["actors_before"] == [], f"bob sees another's actors: {seen_by_bob}")
        self.say("2", "bob, the same script: sees his own cluster, and no actor of ada's")

        self._stock_job_and_dashboard(for_ada)
        self._refusals(for_ada, expired)
        for person in (self.ada, self.bob):
            person.polyray("session", "stop", "default")
        self.say("2", "both sessions are asked to end: the job needs the room")

    def _stock_job_and_dashboard(self, environment: dict[str, str]) -> None:
        ray = str(BIN / "ray")
        entrypoint = [sys.executable, "-c", "print('hello from a stock ray job')"]
        submitted = run([ray, "job", "submit", "--no-wait", "--submission-id", "hello", "--", *entrypoint], environment)
        expect(submitted.returncode == 0, f"ray job submit failed:\n{submitted.stdout}{submitted.stderr}")
        logs = run([ray, "job", "logs", "-f", "hello"], environment)
        expect("hello from a stock ray job" in logs.stdout, f"ray job logs failed:\n{logs.stdout}{logs.stderr}")
        self.say("2", "stock 'ray job submit' and 'ray job logs -f' work with the same environment")
        token = Path(environment["RAY_AUTH_TOKEN_PATH"]).read_text().strip()
        page = httpx.get(self.gateway + "/", headers={"Authorization": f"Bearer {token}"}, trust_env=False)
        expect(page.status_code == 200 and "<html" in page.text, f"the dashboard answered {page.status_code}")
        self.say("2", "the Ray dashboard answers through the gateway to a bearer token")

    def _refusals(self, good: dict[str, str], expired: str) -> None:
        """No token, a forged one, an expired one: each refused within seconds, with the reason."""
        token = Path(good["RAY_AUTH_TOKEN_PATH"]).read_text().strip()
        head, body, signature = token.split(".")
        forged = f"{head}.{body}.{signature[:-8]}{'A' * 8}"
        bare = {name: value for name, value in good.items() if name != "RAY_AUTH_TOKEN_PATH"}
        cases = {
            "no token": ({**bare, "RAY_AUTH_MODE": "disabled"}, "no token was sent"),
            "a forged token": ({**bare, "RAY_AUTH_TOKEN": forged}, "signature"),
            "an expired token": ({**bare, "RAY_AUTH_TOKEN": expired}, "expired"),
        }
        for name, (environment, reason) in cases.items():
            asked = time.monotonic()
            answer = run([sys.executable, "-c", "import ray; ray.init()"], environment, seconds=30)
            took = time.monotonic() - asked
            expect(answer.returncode != 0, f"{name} was let in")
            told = (answer.stdout + answer.stderr).strip().splitlines()[-1]
            expect(reason in told, f"{name} was refused without its reason: {told}")
            self.say("2", f"{name}: refused after {took:.1f} s: {told.partition('gateway] ')[2] or told}")

    def publish(self) -> None:
        done = run([sys.executable, str(DIGITS / "prepare.py"), str(self.home / "digits")], self.ada.environment)
        expect(done.returncode == 0, done.stderr)
        for name, part in (("digits", "train"), ("digits-held-out", "held-out")):
            path = str(self.home / "digits" / part)
            version = self.ada.ask("data", "publish", path, "--name", name, "--stage", "processed")
            self.say("3", f"published {name}@{version['version']}: {version['rows']} rows, {version['digest'][:12]}…")

    def train(self) -> None:
        self.job = self.ada.ask("job", "submit", "train.yaml", cwd=DIGITS)["id"]
        self.say("4", f"submitted {self.job}: a head and two workers, 3 cpu, on a rack of 2")
        reason = wait(lambda: self._reason(), seconds=30, what="the job's wait is explained")
        self.say("4", f"polyray why: {reason}")
        wait(lambda: self._state() == "running", seconds=120, what="the job runs")
        placed = {p["pool"] for p in self.ada.ask("job", "show", self.job)["placements"]}
        expect(placed == {"rack", "cloud"}, f"the job did not burst: it is on {placed}")
        self.say("4", "running in its own cluster: head and worker 1 on the rack, worker 2 on a cloud node")
        wait(lambda: self._epoch() >= 3, seconds=120, what="three epochs are recorded")
        self.say("4", f"epoch {self._epoch()} is recorded, its checkpoint kept")
        before = self._epoch()
        self.ada.polyray("job", "kill-worker", self.job, "--rank", "2")
        self.say("4", "killed worker 2 with -9")
        self.kill_control_plane()
        wait(lambda: self._epoch() > before + 1, seconds=120, what="training goes on")
        self.say("4", "training goes on from its checkpoint, the worker replaced under its lease")
        self.ada.polyray("job", "wait", self.job)
        log = self.ada.polyray("logs", self.job)
        expect("resumed from epoch" in log, f"it did not resume:\n{log[-3000:]}")
        shown = self.ada.ask("job", "show", self.job)
        expect(shown["attempt"] == 1, f"it took {shown['attempt']} attempts")
        self.say("4", f"{self.job} succeeded, in one attempt")

    def kill_control_plane(self) -> None:
        pid = self.ada.ask("status")["supervised"]["server"]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait(lambda: self._server_pid() not in {None, pid}, seconds=30, what="the control plane is started again")
        wait(lambda: self._state() == "running", seconds=30, what="the job still runs")
        self.say("6", f"killed the control plane (pid {pid}) with -9: restarted, and the job never noticed")

    def serve(self) -> None:
        model = self.ada.ask("model", "register", "digits", "--job", self.job)
        lineage = ", ".join(f"{d['name']}@{d['version']}" for d in model["lineage"]["datasets"])
        self.say("5", f"registered digits@{model['version']}: {model['digest'][:12]}…, from {self.job} on {lineage}")
        self.ada.polyray("service", "deploy", "service.yaml", "--wait", cwd=DIGITS)
        url = self.ada.ask("service", "show", "digits")["url"]
        key = self.ada.ask("key", "create", "demo", "--service", "digits")["key"]
        self.say("5", f"deployed behind the gateway at {url}")
        accuracy = self._accuracy(url, key)
        expect(accuracy >= MIN_ACCURACY, f"only {accuracy:.3f} of the held-out digits are read right")
        self.say("5", f"accuracy on 360 held-out digits, asked over HTTP with an API key: {accuracy:.4f}")
        refused = httpx.post(url, json={"images": []}, headers={"X-Api-Key": "pr_" + "x" * 40}, trust_env=False)
        expect(refused.status_code == 401, f"a wrong key got {refused.status_code}")
        self.say("5", "a wrong key: 401")

    def _accuracy(self, url: str, key: str) -> float:
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(self.home / "digits" / "held-out" / "digits.parquet")
        images, truth = table["pixels"].to_pylist(), table["digit"].to_pylist()
        body = self.home / "request.json"
        body.write_text(json.dumps({"images": images}))
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        if curl := shutil.which("curl"):
            sent = [part for name, value in headers.items() for part in ("--header", f"{name}: {value}")]
            bounds = ["--silent", "--show-error", "--fail-with-body", "--max-time", "30"]
            done = run([curl, *bounds, *sent, "--data", f"@{body}", url], self.ada.environment)
            expect(done.returncode == 0, f"curl: {done.stdout}{done.stderr}")
            answer = done.stdout
        else:
            answer = httpx.post(url, content=body.read_bytes(), headers=headers, trust_env=False).text
        read = json.loads(answer)["digits"]
        return sum(a == b for a, b in zip(read, truth, strict=True)) / len(truth)

    def sum_up(self) -> None:
        print()
        print(self.ada.polyray("cost"), end="")
        print(self.bob.polyray("cost"), end="")
        job = self.ada.ask("job", "show", self.job)
        waited = (job["started_ms"] - job["created_ms"]) / 1000
        ran = (job["ended_ms"] - job["started_ms"]) / 1000
        self.say("7", f"{self.job}: waited {waited:.0f} s for room and its cluster, ran {ran:.0f} s")
        cloud = [line for line in self.ada.ask("cost")["lines"] if line["capacity_type"] != "reserved"]
        wait(self._cloud_is_gone, seconds=60, what="the idle cloud node is terminated")
        spent = sum(line["usd_micros"] for line in cloud) / 1e6
        self.say("7", f"the cloud node went idle, was drained and terminated; it cost ${spent:.4f} (simulated prices)")

    def stop(self) -> None:
        self.ada.polyray("down")
        self.watch.stop()
        left = self.watch.processes()
        expect(not left, f"processes are left: {left}")
        expect(not self._ray_dir().exists(), f"{self._ray_dir()} is left")
        peak = self.watch.peak_bytes / 2**30
        self.say("7", "everything is down: no process, port, directory, node or lease is left")
        print(f"\nThe whole took {time.monotonic() - self.began:.0f} s and {peak:.1f} GiB of memory at its peak.")

    # What the steps look at.

    def _state(self) -> str:
        try:
            return str(self.ada.ask("job", "show", self.job)["state"])
        except StepFailed:
            return "unknown"

    def _reason(self) -> str:
        told = self.ada.ask("why", self.job)
        return f"{told['code']}: {told['cause']}; {told['unblocks']}" if told["code"].startswith("waiting") else ""

    def _epoch(self) -> int:
        try:
            records = self.ada.ask("job", "records", self.job)
        except StepFailed:
            return 0
        return max((r["metrics"]["epoch"] for r in records if r["type"] == "metrics"), default=0)

    def _server_pid(self) -> int | None:
        told = self.home / "state" / "run" / "supervisor.json"
        pid = json.loads(told.read_text())["components"]["server"]["pid"]
        try:
            self.ada.polyray("whoami")
        except StepFailed:
            return None
        return int(pid) if pid else None

    def _cloud_is_gone(self) -> bool:
        return all(node["pool"] != "cloud" for node in self.ada.ask("node", "ls"))

    @staticmethod
    def _json(done) -> dict:
        expect(done.returncode == 0, f"the script failed:\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout.strip().splitlines()[-1])


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise StepFailed(otherwise)


def wait(condition, *, seconds: float, what: str):
    """Return what `condition` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        expect(time.monotonic() < deadline, f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.5)
    return found


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="polyray-demo-"))
    demo = Demo(home)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = 0
    try:
        demo.start()
        demo.log_in()
        demo.use_plain_ray()
        demo.publish()
        demo.train()
        demo.serve()
        demo.sum_up()
        demo.stop()
    except BaseException as error:  # whatever it is, nothing is left running
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        interrupted = isinstance(error, KeyboardInterrupt)
        told = "Interrupted" if interrupted else f"The demo failed: {error}\nLogs: {home / 'state' / 'logs'}"
        print(f"\n{told}\nEnding the platform", file=sys.stderr)
        demo.ada.polyray("down")
        if isinstance(error, StepFailed):
            return 1
        if not interrupted:
            raise
        code = 130
    shutil.rmtree(home)
    return code


if __name__ == "__main__":
    sys.exit(main())
