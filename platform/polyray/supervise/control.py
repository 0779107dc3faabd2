"""`polyray up` and `polyray down`, without the terminal: starting and ending the supervisor, and checking both."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from polyray.core.errors import Code, Conflict, Invalid, PolyrayError, Unavailable
from polyray.core.private import private_directory
from polyray.core.settings import Settings
from polyray.supervise.leftovers import Leftovers, end_leftovers, find_leftovers
from polyray.supervise.local import Local, read_json
from polyray.supervise.logfiles import tail
from polyray.supervise.processes import ProcessRef, is_alive, ref_of, send

UP_SECONDS = 180.0
#: For clusters to end and nodes to be terminated, and the components after them.
DOWN_SECONDS = 150.0
_LOOK_SECONDS = 0.2
_DOUBT_SECONDS = 30.0
#: A unix socket's path has 107 bytes at most; the longest here is the responder's.
_MAX_STATE_DIR_BYTES = 107 - len("/run/haproxy/responder.sock")

Say = Callable[[str], None]


def supervisor_command(settings: Settings, *, end: bool = False) -> list[str]:
    command = [sys.executable, "-m", "polyray.supervise", "--state-dir", str(settings.state_dir.absolute())]
    return [*command, "--end"] if end else command


def prepare_state_dir(settings: Settings) -> None:
    """Make the state directory, 0700, with `run` and `logs`.

    Raises:
        Invalid: if it cannot be made, belongs to somebody else, or is too long a path for the sockets in it.
    """
    if (length := len(os.fsencode(settings.state_dir))) > _MAX_STATE_DIR_BYTES:
        raise Invalid(
            f"a path of {length} bytes leaves no room for the sockets in it",
            field="state_dir",
            hint=f"name one of at most {_MAX_STATE_DIR_BYTES} bytes with --state-dir",
        )
    try:
        for directory in (settings.state_dir, settings.state_dir / "run", settings.state_dir / "logs"):
            private_directory(directory)
    except OSError as error:
        raise Invalid(f"cannot make it: {error}", field="state_dir", hint="name another with --state-dir") from error


def up(settings: Settings, environment: Mapping[str, str], *, say: Say, timeout_seconds: float = UP_SECONDS) -> bool:
    """Start the platform and wait until it is ready; return False if it ran already. Idempotent.

    `environment` is what the platform's processes start from.

    Raises:
        Conflict: if a port is taken.
        Unavailable: if it does not become ready in time; it goes on trying.
    """
    prepare_state_dir(settings)
    local = Local(settings)
    supervisor = local.supervisor
    if supervisor is not None:
        if local.told.get("stopping"):
            raise Conflict("it is being stopped", hint="wait until 'polyray down' has ended, then try again")
        _wait_ready(local, supervisor, None, say, timeout_seconds)
        return False
    if not local.has_records:  # left components hold the ports, and are adopted
        for field, port in (("api_port", settings.api_port), ("gateway_port", settings.gateway_port)):
            _check_free(settings.host, port, field)
        forget_taken_ports(local)
        (local.run_dir / "endpoints.json").unlink(missing_ok=True)
    child = _started(local, supervisor_command(settings), env=dict(environment), start_new_session=True, umask=0o077)
    started = ref_of(child.pid)
    assert started is not None
    _wait_ready(local, started, child, say, timeout_seconds)
    return True


def down(settings: Settings, *, say: Say, timeout_seconds: float = DOWN_SECONDS) -> bool:
    """End the platform, workloads and nodes first; return False if nothing ran. Idempotent.

    Raises:
        PolyrayError: code `internal`, naming what is left in spite of all.
    """
    local = Local(settings)
    ports = tuple(_port_of(local.endpoints.get(name)) for name in ("api_url", "gateway_url"))
    supervisor, ran = local.supervisor, local.has_records
    was_killed = supervisor is None and ran
    if was_killed:
        say("its supervisor is gone; ending what it left")
        child = _started(local, supervisor_command(settings, end=True))
        supervisor = ref_of(child.pid)
        _wait_ended(local, supervisor, child, say, timeout_seconds)
    elif supervisor is not None:
        ran = True
        send(supervisor, signal.SIGTERM)
        _wait_ended(local, supervisor, None, say, timeout_seconds)
    ran = ran or bool(find_leftovers(settings.state_dir, settings.ray_dir, ()))
    end_leftovers(settings.state_dir, settings.ray_dir)
    left = find_leftovers(settings.state_dir, settings.ray_dir, ports if ran else ())
    if left:
        raise _still_there(left)
    if was_killed:
        _doubt(local, say)
    if ran:
        (local.run_dir / "endpoints.json").unlink(missing_ok=True)
    return ran


def _doubt(local: Local, say: Say) -> None:
    """Nothing was drained where the control plane was dead: what ran then must not pay for it with a retry."""
    command = [sys.executable, "-m", "polyray.recovery", "--state-dir", str(local.settings.state_dir.absolute())]
    try:
        done = subprocess.run([*command, "doubt"], capture_output=True, text=True, timeout=_DOUBT_SECONDS, check=False)
        told = done.stderr.strip() if done.returncode else ""
    except subprocess.TimeoutExpired:
        told = f"no answer in {_DOUBT_SECONDS:.0f} s"
    if told:
        say(f"what ran could not be marked as ended by this, and may lose a retry: {told}")


def _started(local: Local, command: list[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start a supervisor that says what it does in its log."""
    log = os.open(local.log("supervisor"), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)
    finally:
        os.close(log)


def _wait_ready(
    local: Local, supervisor: ProcessRef, child: subprocess.Popen[bytes] | None, say: Say, timeout_seconds: float
) -> None:
    deadline, reasons = time.monotonic() + timeout_seconds, ""
    told: set[str] = set()
    with httpx.Client(timeout=2, trust_env=False) as http:
        while time.monotonic() < deadline:
            if child is not None:
                child.poll()
            if not is_alive(supervisor):
                if local.supervisor is not None:  # another 'up' was faster
                    supervisor, child = local.supervisor or supervisor, None
                    continue
                raise _failed(local, "supervisor", "the supervisor ended")
            ready, reasons = _readiness(http, local.api_url)
            if ready and local.endpoints:
                return
            line = _progress(local) or reasons
            if line not in told:
                say(line)
                told.add(line)
            for name, component in local.components.items():
                if component.get("failing"):
                    raise _failed(local, name, f"{name} keeps failing ({component.get('last_exit')})")
            time.sleep(_LOOK_SECONDS)
    raise Unavailable(
        f"not ready after {timeout_seconds:.0f} s: {reasons}",
        hint=f"it goes on trying; look at 'polyray status' and {local.log('server')}, or end it with 'polyray down'",
    )


def _wait_ended(
    local: Local, supervisor: ProcessRef | None, child: subprocess.Popen[bytes] | None, say: Say, timeout_seconds: float
) -> None:
    """Wait for the supervisor's end. There are three steps: asked, asked to hurry, killed."""
    told = ""
    for seconds, number in ((timeout_seconds, signal.SIGTERM), (20.0, signal.SIGKILL), (5.0, signal.SIGKILL)):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if child is not None:
                child.poll()
            if supervisor is None or not is_alive(supervisor):
                return
            alive = [name for name, seen in local.components.items() if seen.get("pid")]
            line = f"ending {', '.join(alive)}" if alive else ""
            if line and line != told:
                say(line)
                told = line
            time.sleep(_LOOK_SECONDS)
        if supervisor is not None:
            say("it takes too long; ending it at once")
            send(supervisor, number)


def _readiness(http: httpx.Client, api_url: str) -> tuple[bool, str]:
    try:
        answer = http.get(f"{api_url}/readyz")
    except httpx.HTTPError:
        return False, "waiting for the server"
    try:
        waiting = [str(one["name"]) for one in answer.json()["components"] if not one["ok"]]
    except (ValueError, KeyError, TypeError):
        waiting = []
    return answer.status_code == 200, f"waiting for {', '.join(waiting) or 'the server'}"


def _progress(local: Local) -> str:
    components = local.components
    waiting = sorted(name for name, seen in components.items() if not seen.get("pid"))
    return f"starting {', '.join(waiting)}" if waiting else ""


def _failed(local: Local, name: str, what: str) -> PolyrayError:
    lines = tail(local.log(name))
    return Unavailable(
        "\n".join([what, *(f"  {line}" for line in lines)]), hint=f"see {local.log(name)}, then 'polyray down'"
    )


def _still_there(left: Leftovers) -> PolyrayError:
    return PolyrayError(
        Code.INTERNAL,
        "\n".join(["something is left:", *(f"  {line}" for line in left.told())]),
        "run 'polyray down' again",
    )


def _check_free(host: str, port: int, field: str) -> None:
    if port == 0:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Conflict(
                f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}",
                field=field,
                hint=f"end what uses it, or take any free port with --{field.replace('_', '-')} 0",
            ) from error


def forget_taken_ports(local: Local) -> None:
    """Let ports that were chosen freely be chosen anew where somebody else has them by now."""
    for name in ("api", "gateway"):
        record = local.run_dir / f"{name}.json"
        try:
            _check_free(local.settings.host, int(read_json(record).get("port") or 0), name)
        except Conflict:
            record.unlink(missing_ok=True)


def _port_of(url: object) -> int:
    try:
        return httpx.URL(url).port or 0 if isinstance(url, str) else 0
    except httpx.InvalidURL:
        return 0
