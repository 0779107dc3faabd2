"""The embedded cloud: a node is a raylet process on this machine, with declared resources.

Nothing is kept in memory: `list` is rebuilt from the nodes' directories and /proc, so nodes outlive the
control plane and a restarted one finds them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from polyray.autoscaler.provider import Instance, InstanceState, InsufficientCapacity, NodeNotFound
from polyray.autoscaler.providers.local_node import start_ticks, write_json
from polyray.broker.snapshot import Offering
from polyray.core.clock import Clock, SystemClock
from polyray.core.errors import Unavailable
from polyray.core.faultpoints import outside
from polyray.core.ids import is_id
from polyray.core.private import private_directory
from polyray.core.resources import CPU, MEMORY, is_gpu
from polyray.core.settings import Settings
from polyray.fabric.core_head import NodePlace, core_environment, core_place, free_place, node_command
from polyray.tenants.cluster import check_socket_path
from polyray.tenants.sandboxes.process import sweep

#: The label that ties a core node to our row of it.
NODE_LABEL = "polyray/node"
#: An ended node is listed for so long, as clouds do.
LISTED_AFTER_END_MS = 3_600_000
#: A node asked to end that is still there is killed.
TERMINATE_LIMIT_MS = 15_000
#: The launcher returns when the node's process is on record.
LAUNCH_SECONDS = 20.0


@dataclass(frozen=True)
class _Record:
    """What a node's directory says of it."""

    intent_id: str
    offering: str
    boot_seconds: int
    block: int
    temp_dir: str
    launched_ms: int


class LocalProvider:
    """Implements `NodeProvider`. `offerings` is asked anew each time: the operator's file may change."""

    def __init__(
        self,
        settings: Settings,
        offerings: Callable[[], tuple[Offering, ...]],
        *,
        clock: Clock | None = None,
        python: str = sys.executable,
    ) -> None:
        self._settings, self._offerings = settings, offerings
        self._clock, self._python = clock or SystemClock(), python
        self._root = settings.state_dir.absolute() / "nodes"

    @property
    def name(self) -> str:
        return "local"

    def offerings(self) -> tuple[Offering, ...]:
        return tuple(offering for offering in self._offerings() if offering.provider == self.name)

    def launch(self, intent_id: str, offering: Offering) -> Instance:
        assert is_id(intent_id), "an intent's id becomes a path"
        with self._locked():
            directory = self._root / intent_id
            if (known := self._instance(directory)) is not None:
                return known
            living = [
                each
                for each in self._instances()
                if each.offering == offering.name and each.state is not InstanceState.TERMINATED
            ]
            if len(living) >= offering.max_nodes:
                raise InsufficientCapacity(offering.name)
            block, place = free_place(frozenset(record.block for record in self._living_records()))
            temp_dir = self._settings.ray_dir / f"n{hashlib.sha256(intent_id.encode()).hexdigest()[:6]}"
            check_socket_path(temp_dir)
            private_directory(self._settings.ray_dir)
            private_directory(temp_dir)
            private_directory(directory)
            launched_ms = self._clock.now_ms()
            launch = {
                "argv": node_argv(intent_id, offering, place, temp_dir, core_place(self._settings), self._python),
                "env": core_environment(self._settings, self._python),
                "boot_seconds": offering.boot_seconds,
                "launched_ms": launched_ms,
                "temp_dir": str(temp_dir),
            }
            write_json(directory / "launch.json", launch)
            record = _Record(intent_id, offering.name, offering.boot_seconds, block, str(temp_dir), launched_ms)
            write_json(directory / "instance.json", asdict(record))
            with outside("node.start"):
                self._spawn(directory)
            instance = self._instance(directory)
            assert instance is not None
            return instance

    def terminate(self, intent_id: str) -> Instance:
        with self._locked():
            directory = self._root / intent_id
            instance = self._instance(directory) if is_id(intent_id) else None
            if instance is None:
                raise NodeNotFound(intent_id)
            if instance.state is InstanceState.TERMINATED:
                return instance
            asked = directory / "terminate.json"
            pid = _living_pid(directory)
            with outside("node.end"):
                if not asked.exists():
                    write_json(asked, {"asked_ms": self._clock.now_ms()})
                if pid is not None:
                    if self._clock.now_ms() - json.loads(asked.read_text())["asked_ms"] > TERMINATE_LIMIT_MS:
                        _kill_tree(pid)
                    else:
                        os.kill(pid, signal.SIGTERM)
            instance = self._instance(directory)
            assert instance is not None
            return instance

    def list(self) -> tuple[Instance, ...]:
        with self._locked():
            self._forget_long_ended()
            return tuple(self._instances())

    def _instances(self) -> Iterator[Instance]:
        for directory in sorted(self._root.iterdir()):
            if is_id(directory.name) and (instance := self._instance(directory)) is not None:
                yield instance

    def _instance(self, directory: Path) -> Instance | None:
        """Return a node as it is now, and note its end if nobody else could.

        There are four cases: it has said how it ended; it runs; its process was killed, so that it could
        not say so, at its last sign of life; or it was never started, since its launch was cut short.
        """
        record = _record(directory)
        if record is None:
            return None
        ended = _read(directory / "ended.json")
        pid = _living_pid(directory)
        if ended is None and pid is None:
            self._clean_up(record)
            alive_ms = _last_sign_of_life_ms(directory)
            detail = "it was never started" if alive_ms is None else "its process was killed"
            now_ms = self._clock.now_ms()
            ended = {"ended_ms": min(alive_ms or now_ms, now_ms), "noted_ms": now_ms, "detail": detail}
            write_json(directory / "ended.json", ended)
        if ended is not None and Path(record.temp_dir).exists():
            # A process that was on its way out may have written there once more.
            shutil.rmtree(record.temp_dir, ignore_errors=True)
        booted = self._clock.now_ms() - record.launched_ms >= record.boot_seconds * 1000
        if ended is not None:
            state = InstanceState.TERMINATED
        elif (directory / "terminate.json").exists():
            state = InstanceState.TERMINATING
        else:
            state = InstanceState.RUNNING if booted else InstanceState.PENDING
        return Instance(
            instance_id=f"local-{record.intent_id}",
            intent_id=record.intent_id,
            offering=record.offering,
            state=state,
            billed_from_ms=record.launched_ms,
            billed_to_ms=None if ended is None else max(int(str(ended["ended_ms"])), record.launched_ms),
            detail="" if ended is None else str(ended["detail"]),
        )

    def _living_records(self) -> Iterator[_Record]:
        for directory in self._root.iterdir():
            record = _record(directory)
            if record is not None and not (directory / "ended.json").exists():
                yield record

    def _spawn(self, directory: Path) -> None:
        """Start the node's process; it is nobody's child and has a session of its own."""
        try:
            subprocess.run(
                [self._python, "-m", "polyray.autoscaler.providers.local_node", str(directory)],
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONSAFEPATH": "1"},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                timeout=LAUNCH_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"the node's process could not be started: {error}") from error

    def _clean_up(self, record: _Record) -> None:
        """Remove what a killed node left: its processes follow it by their parent-death signals."""
        for process in psutil.process_iter(["cmdline"]):
            if any(f"={record.temp_dir}/" in text or text.endswith(f"={record.temp_dir}") for text in _argv(process)):
                process.kill()
        shutil.rmtree(record.temp_dir, ignore_errors=True)
        sweep(self._settings.ray_dir)

    def _forget_long_ended(self) -> None:
        for directory in self._root.iterdir():
            ended = _read(directory / "ended.json") if directory.is_dir() else None
            if ended is None:
                continue
            # An end that was noted late was known to nobody before.
            known_ms = int(str(ended.get("noted_ms", ended["ended_ms"])))
            if self._clock.now_ms() - known_ms > LISTED_AFTER_END_MS:
                shutil.rmtree(directory, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        private_directory(self._root)
        with open(self._root / ".lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def node_argv(
    intent_id: str, offering: Offering, place: NodePlace, temp_dir: Path, core: NodePlace, python: str
) -> tuple[str, ...]:
    """Return the command line of a node's raylet, which declares what its offering promises.

    Ray takes whole CPUs and GPUs, so they are rounded up: the broker counts exactly, the core only guards.
    """
    resources = offering.resources
    gpu_milli = sum(resources[flavor] for flavor in resources if is_gpu(flavor))
    return (
        *node_command(place, temp_dir, python),
        f"--address={core.gcs_address}",
        f"--num-cpus={-(-resources[CPU] // 1000)}",
        f"--num-gpus={-(-gpu_milli // 1000)}",
        f"--memory={resources[MEMORY]}",
        f"--labels={NODE_LABEL}={intent_id}",
    )


def _record(directory: Path) -> _Record | None:
    content = _read(directory / "instance.json")
    return None if content is None else _Record(**content)  # type: ignore[arg-type]


def _read(path: Path) -> dict[str, object] | None:
    """Return what a record says; one that a crash of the machine left empty or torn counts as none."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _last_sign_of_life_ms(directory: Path) -> int | None:
    """Return when a node's process was last alive; None if it never was."""
    try:
        return (directory / "process.json").stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return None


def _living_pid(directory: Path) -> int | None:
    process = _read(directory / "process.json")
    if process is None:
        return None
    pid = int(str(process["pid"]))
    return pid if start_ticks(pid) == process["start_ticks"] else None


def _kill_tree(pid: int) -> None:
    try:
        root = psutil.Process(pid)
        tree = [*root.children(recursive=True), root]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        # One that ended meanwhile keeps none of the others alive.
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _argv(process: psutil.Process) -> list[str]:
    return process.info["cmdline"] or []
