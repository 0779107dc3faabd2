"""A service's program, started beside the head of its cluster: `python -m polyray.serving.application RUN_DIR`.

It starts Ray Serve on the address that the gateway knows, deploys the workload's application and watches it:
it ends, and so ends the attempt, when the application does not come up or does not recover.
"""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyray.core.code_archive import unpack_code
from polyray.core.errors import OUTCOMES, Invalid, PolyrayError, Unavailable
from polyray.core.run_file import RunFile, link_datasets, load_run_file, user_environment
from polyray.core.run_records import append_record

if TYPE_CHECKING:
    from ray import serve

POLL_SECONDS = 1.0
#: From deployed to answering over HTTP.
START_SECONDS = 300.0
#: An application that Serve calls unhealthy for so long will not recover by itself: Serve replaces a replica in less.
UNHEALTHY_SECONDS = 60.0
#: Serve's own words for an application.
RUNNING = "RUNNING"
FAILED = "DEPLOY_FAILED"


@dataclass
class Watch:
    """Decides from Serve's word on the application, seen at a time in seconds, whether to give up."""

    unhealthy_since: float | None = field(default=None, init=False)

    def verdict(self, status: str | None, now: float) -> str | None:
        """Return why to end, or None to go on. None as status means that Serve does not know the application."""
        if status == RUNNING:
            self.unhealthy_since = None
            return None
        if status == FAILED:
            return "its deployment failed"
        if self.unhealthy_since is None:
            self.unhealthy_since = now
        if now - self.unhealthy_since >= UNHEALTHY_SECONDS:
            return f"it has been {status or 'absent'} for {UNHEALTHY_SECONDS:.0f} s"
        return None


def load_application(spec: str, model_dir: Path | None) -> serve.Application:
    """Return the Serve application that `module:attribute` names: one, or a function that builds one.

    A builder that takes an argument gets the model's directory (None without a model).

    Raises:
        Invalid: if there is no such module or attribute, or it is something else.
    """
    from ray import serve

    module_name, _, attribute = spec.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        raise Invalid(f"no module {error.name}", field="app", hint="is it in the working directory?") from error
    except AttributeError as error:
        raise Invalid(str(error), field="app", hint=f"define {attribute} in {module_name}") from error
    if callable(found) and not isinstance(found, (serve.Application, serve.Deployment)):
        found = _built(found, model_dir)
    if not isinstance(found, serve.Application):
        raise Invalid(
            f"{spec} is {type(found).__name__}, not a Serve application", field="app", hint="end it with .bind(...)"
        )
    return found


def _built(builder: Callable[..., Any], model_dir: Path | None) -> Any:
    return builder(model_dir) if inspect.signature(builder).parameters else builder()


def prepare(run: RunFile) -> Path | None:
    """Make the code, datasets and environment ready; return the model's directory."""
    unpack_code(run.code_blob, run.code_sha256, run.code_dir)
    os.environ["POLYRAY_DATASETS_DIR"] = str(link_datasets(run))
    os.environ.update(user_environment(run, {}))
    os.environ.setdefault("RAY_COLOR_PREFIX", "0")  # the log is a file that people read
    if run.model is not None:
        os.environ["POLYRAY_MODEL_DIR"] = str(run.model.path)
    os.chdir(run.code_dir)
    sys.path.insert(0, str(run.code_dir))
    return run.model.path if run.model else None


def serve_application(run: RunFile, ip: str, port: int) -> str:
    """Deploy the run's application, say when it answers, and return why it had to end."""
    started = time.monotonic()
    model_dir = prepare(run)
    import ray
    from ray import serve

    # Replicas are processes elsewhere in the cluster: the runtime environment is what reaches them.
    variables = {name: os.environ[name] for name in ("POLYRAY_MODEL_DIR", "POLYRAY_DATASETS_DIR") if name in os.environ}
    ray.init(address=os.environ["RAY_ADDRESS"], runtime_env={"env_vars": variables}, log_to_driver=True)
    # Ray's own handler prints a stack; being asked to stop is no crash.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    serve.start(proxy_location="HeadOnly", http_options={"host": ip, "port": port})
    serve.run(load_application(run.app or "", model_dir), name=run.name, route_prefix="/")
    _wait_for_http(f"http://{ip}:{port}/-/healthz")
    seconds = round(time.monotonic() - started, 3)
    fields = {"state": "healthy", "start_seconds": seconds}
    append_record(run.run_dir, "serving", fields, attempt=run.attempt, now_ms=time.time_ns() // 1_000_000)
    print(f"polyray: {run.name} answers on port {port} after {seconds} s", flush=True)
    watch = Watch()
    while (reason := watch.verdict(_status(run.name), time.monotonic())) is None:
        time.sleep(POLL_SECONDS)
    return reason


def _status(name: str) -> str | None:
    import ray
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        application = serve.status().applications.get(name)
    except (ray.exceptions.RayError, RayServeException):  # the controller is being restarted
        return None
    return None if application is None else str(application.status.value)


def _wait_for_http(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError as error:
            if time.monotonic() >= deadline:
                raise Unavailable(f"the application does not answer: {error}") from error
            time.sleep(0.1)


def main(argv: list[str]) -> int:
    try:
        run = load_run_file(Path(argv[0]))
        try:
            ip, port = os.environ["POLYRAY_SERVE_IP"], int(os.environ["POLYRAY_SERVE_PORT"])
        except (KeyError, ValueError) as error:
            raise Invalid(f"not set as an address: {error}", field="POLYRAY_SERVE_IP, POLYRAY_SERVE_PORT") from error
        reason = serve_application(run, ip, port)
    except PolyrayError as error:
        print(f"polyray: {error}", file=sys.stderr, flush=True)
        return OUTCOMES[error.code].exit_code
    except Exception:
        traceback.print_exc()
        return 1
    print(f"polyray: the application ends: {reason}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
