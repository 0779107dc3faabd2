"""A world with its API and a client, on which a story is played to its end, whatever crashes on the way.

The client and the programs belong to the outside: a crash of the control plane loses nothing of them. A request
that got no answer is sent again under its idempotency key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
from anyio import to_thread
from sqlalchemy import event

from polyray.api import idempotency
from polyray.api.app import create_app
from polyray.api.deps import Endpoints, Probe, Services
from polyray.autoscaler.controller import NodeController
from polyray.autoscaler.offerings import offerings_of
from polyray.control import shutdown
from polyray.control.auditing import Auditor
from polyray.control.definition import PlatformDefinition
from polyray.core.layout import Layout
from polyray.core.owners import is_gone, this_process
from polyray.core.platform_file import PlatformFile
from polyray.core.settings import Settings
from polyray.identity.keys import SigningKeys
from polyray.identity.provider import Identity
from polyray.identity.tokens import PlatformTokens
from polyray.jobs.refusals import Refusals
from polyray.jobs.workers import kill_worker
from polyray.store.anchors import Anchors
from polyray.store.tables import Workload
from support.api import BASE_URL, GATEWAY_URL
from support.invariants import check, check_quiet, check_routes, is_quiet
from support.world import PLATFORM, World

#: The control plane looks at everything once in a step of time; a step is longer while nothing happens.
STEP_SECONDS, LONGEST_STEP_SECONDS = 1.0, 4.0
#: No story needs more.
MOST_ROUNDS = 400
STAFFED: dict[str, Any] = {**deepcopy(PLATFORM), "operators": ["olga"]}
STAFFED["tenants"]["vision"]["members"] = {"ada": "admin"}
#: Where everything of a play lies, below the working directory: a forked history changes that and nothing else.
STATE = Path("state")
_BOOKKEEPING = {"calls", "clock", "_mutex", "on_join", "on_end", "down"}

#: One step of a story: does what the outside does then; returns whether the next one may follow.
Step = Callable[["Stage"], bool]


@dataclass(frozen=True)
class Story:
    name: str
    steps: tuple[Step, ...]
    #: Asserts how it ended, once all is quiet.
    ended: Callable[[Stage], None]
    platform: dict[str, Any] = field(default_factory=lambda: STAFFED)


class _Known:
    """An outside issuer: whoever the platform file names as a member or an operator has logged in there."""

    def __init__(self, file: PlatformFile) -> None:
        self._file = file

    def verify(self, token: str) -> Identity:
        roles = {name: spec.members[token] for name, spec in self._file.tenants.items() if token in spec.members}
        return Identity("outside", token, token, token, dict(roles), token in self._file.operators)


class Stage:
    """Implements `support.exhaustive.Play`. The working directory must be empty, and stay what it is."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.at = 0
        #: What the client knows: ids by the keys under which it asked for them, and notes.
        self.ids: dict[str, str] = {}
        self.notes: dict[str, Any] = {}
        self.watching: Callable[[], AbstractContextManager[None]] = nullcontext
        self.world = World(STATE, story.platform)
        self.world.settings = Settings.model_construct(state_dir=STATE)
        #: Connections of a parent: never used, and never closed.
        self._kept: list[object] = []
        self._commits = 0
        #: This process, and those that it was before it crashed: they live on as its parents, but nobody knows.
        self._process, self._gone = this_process(), set[str]()

        @event.listens_for(self.world.store.engine, "do_connect")
        def connect(_dialect: object, _record: object, arguments: list[Any], _named: object) -> None:
            arguments[0] = os.path.abspath(STATE / "polyray.db")

        @event.listens_for(self.world.store.engine, "commit")
        def commit(_connection: object) -> None:
            self._commits += 1

        definition = PlatformFile.model_validate(story.platform)
        PlatformDefinition(self.world.store, self.world.clock, STATE / "platform.json").apply(definition)
        self._start()
        keys = SigningKeys(STATE / "keys", "platform", self.world.clock)
        self.tokens = PlatformTokens(self.world.store, keys, _Known(definition), self.world.clock)
        # Its routes keep nothing between two requests, and making one takes longer than most histories.
        self._app = create_app(self._services())
        self._tokens = {
            "ada": self.tokens.exchange("ada", tenant="vision").token,
            "olga": self.tokens.exchange("olga").token,
        }

    # What a play is to an explorer.

    def begin_anew(self) -> None:
        self._gone.add(self._process)
        self._process = this_process()
        engine = self.world.store.engine
        self._kept.append(engine.pool)
        engine.dispose(close=False)
        self.world.store._writing = type(self.world.store._writing)()

    def moment(self) -> object:
        return self._outside(), self.world.clock.monotonic(), self._written()

    def strikes_here(self, name: str) -> bool:
        """Return whether it may happen here: a crash anywhere."""
        return True

    def strike(self) -> bool:
        """The control plane dies, and is started again."""
        self.restart()
        return False

    def play(self) -> None:
        step_seconds, quiet = STEP_SECONDS, 0
        for _ in range(MOST_ROUNDS):
            before = self._outside(), self._written()
            with self.watching():
                self.world.clock.advance(step_seconds)
                self.world.round()
            check(self.world)
            while self.at < len(self.story.steps) and self.story.steps[self.at](self):
                self.at += 1
            over = self.at == len(self.story.steps) and is_quiet(self.world)
            quiet = quiet + 1 if over else 0
            if quiet == 2:
                break
            same = before == (self._outside(), self._written())
            step_seconds = min(step_seconds * 2, LONGEST_STEP_SECONDS) if same else STEP_SECONDS
        else:
            raise AssertionError(f"it never ends: it waits in step {self.at} of {self.story.name}; {self.ids}")
        check_quiet(self.world)
        check_routes(self.world)
        self.ended()

    def ended(self) -> None:
        self.story.ended(self)

    # The control plane's processes.

    def restart(self) -> None:
        """Forget what is in memory, and do what a control plane does when it starts."""
        self._start()

    def drain(self) -> bool:
        """Shut down as `polyray down` does: the reconcilers run on, all but the broker."""
        nodes, _, *others = self.world.reconcilers
        assert isinstance(nodes, NodeController)
        self.world.reconcilers = (nodes, *others)

        def wait(_: float) -> None:
            self.world.clock.advance(STEP_SECONDS)
            self.world.round()

        virtual = SimpleNamespace(Event=lambda: SimpleNamespace(wait=wait))
        with patch.object(shutdown, "threading", virtual), self.watching():
            return shutdown.drain(self.world.store, self.world.clock, nodes, lambda kind, key: None)

    def _start(self) -> None:
        world = self.world
        self._refusals = Refusals()
        self.definition = PlatformDefinition(world.store, world.clock, STATE / "platform.json")
        self.definition.load(None)
        self._take_definition()
        world.restart()

    def _take_definition(self) -> None:
        self.world.platform = self.definition.current()
        self.world.cloud.offer(offerings_of(self.world.platform))

    def _apply(self, definition: PlatformFile) -> list[str]:
        changes = self.definition.apply(definition)
        self._take_definition()
        return changes

    def _services(self) -> Services:
        world = self.world
        return Services(
            store=world.store,
            clock=world.clock,
            layout=Layout(world.settings.store_root),
            settings=world.settings,
            tokens=self.tokens,
            wake=lambda kind, key: None,
            offerings=world.cloud.offerings,
            feasible=lambda session, tenant, spec: self._refusals.of(session, tenant, spec, world.cloud.offerings()),
            kill_worker=lambda workload_id, rank: kill_worker(world.store, world.fabric, workload_id, rank),
            apply_platform=self._apply,
            endpoints=lambda: Endpoints(BASE_URL, GATEWAY_URL),
            audit=Auditor(world.store, Anchors(STATE), world.clock, lambda: True),
            probes={name: lambda: Probe(True) for name in ("store", "fabric", "gateway")},
            grade=("process", "tenants must trust each other"),
        )

    # What happens outside.

    def ask(self, method: str, path: str, *, key: str | None = None, who: str = "ada", **sent: Any) -> httpx.Response:
        """Send a request to the API and return its answer. It runs in this thread alone, so that it can be forked."""
        headers = {"Authorization": f"Bearer {self._tokens[who]}"} | ({"Idempotency-Key": key} if key else {})
        with self.watching():
            return self._answer(httpx.Request(method, BASE_URL + path, headers=headers, **sent))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        async def in_this_thread(call: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
            return call(*arguments)

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
                return await client.send(request)

        with (
            patch.object(to_thread, "run_sync", in_this_thread),
            patch.object(idempotency, "is_gone", lambda owner: owner in self._gone or is_gone(owner)),
        ):
            return asyncio.run(send())

    def row(self, key: str) -> Workload:
        return self.world.workload(self.ids[key])

    def runs(self, key: str) -> int:
        """Return how often the program of a workload was started in truth."""
        return sum(driver.rpartition(".")[0] == self.ids[key] for driver in self.world.fabric.programs)

    # What a crash leaves.

    def _outside(self) -> str:
        world = self.world
        seen = [_content(world.fabric), _content(world.cloud), _content(world.gateway)]
        return f"{self.at} {self.ids} {self.notes} {seen}"

    def _written(self) -> tuple[object, ...]:
        """Return what changes with everything that is written: to the database, or to a file beside it."""
        files = [
            (path, os.stat(path).st_mtime_ns, os.stat(path).st_size)
            for directory, _, names in os.walk(STATE)
            for path in (directory, *(os.path.join(directory, name) for name in names))
            if "polyray.db" not in path and path != str(STATE)
        ]
        return self._commits, tuple(files)


def _content(fake: object) -> str:
    return repr({name: value for name, value in vars(fake).items() if name not in _BOOKKEEPING})
