"""The API on a real store in a temporary directory, with real tokens, and the rest of the platform as fakes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from polyray.api.app import create_app
from polyray.api.deps import Endpoints, Probe, Services
from polyray.broker.feasibility import feasible
from polyray.broker.snapshot import Offering, TenantView
from polyray.control.auditing import Auditor
from polyray.core.clock import SystemClock
from polyray.core.errors import Unauthenticated
from polyray.core.explain import Explanation
from polyray.core.layout import Layout
from polyray.core.platform_file import PlatformFile
from polyray.core.resources import Resources
from polyray.core.settings import Settings
from polyray.core.spec import CapacityType, WorkloadSpec
from polyray.identity.keys import SigningKeys
from polyray.identity.provider import Identity
from polyray.identity.tokens import PlatformTokens
from polyray.store.anchors import Anchors
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import Quota
from polyray.tenants.definitions import apply_definitions

BASE_URL = "http://127.0.0.1:8470"
GATEWAY_URL = "http://127.0.0.1:8471"

PLATFORM: dict[str, Any] = {
    "tenants": {
        "vision": {"quota": {"cpu": 64, "memory": "256GiB", "h100": 8}, "members": {"ada": "admin", "vic": "viewer"}},
        "speech": {"quota": {"cpu": 64, "memory": "256GiB", "h100": 8}, "members": {"bob": "admin"}},
    },
    "users": {name: {"password": f"{name}-password"} for name in ("ada", "vic", "bob", "olga")},
    "operators": ["olga"],
}
FILE = PlatformFile.model_validate(PLATFORM)

OFFERINGS = (
    Offering(
        name="rack",
        pool="rack",
        provider="local",
        instance_type="",
        zone="local-a",
        capacity_type=CapacityType.RESERVED,
        usd_micros_per_hour=400_000,
        resources=Resources(cpu=16_000, memory=64 * 2**30),
        max_nodes=2,
    ),
    Offering(
        name="cloud",
        pool="cloud",
        provider="local",
        instance_type="",
        zone="local-a",
        capacity_type=CapacityType.ON_DEMAND,
        usd_micros_per_hour=1_200_000,
        resources=Resources(cpu=8_000, memory=32 * 2**30, h100=8_000),
        max_nodes=4,
        simulated=True,
    ),
)


class NamedIdentities:
    """An issuer whose access tokens are `login:NAME`, for people of the platform file."""

    def __init__(self, file: PlatformFile) -> None:
        self._file = file

    def verify(self, token: str) -> Identity:
        kind, _, name = token.partition(":")
        if kind != "login" or name not in self._file.users:
            raise Unauthenticated("bad_signature", "this is no token of the issuer")
        roles = {t: spec.members[name] for t, spec in self._file.tenants.items() if name in spec.members}
        return Identity("fake", name, name, name, dict(roles), name in self._file.operators)


@dataclass
class Platform:
    """A control plane's API with what it told the rest of the platform."""

    services: Services
    app: FastAPI
    woken: list[tuple[str, str]] = field(default_factory=list)
    killed: list[tuple[str, int]] = field(default_factory=list)
    probes: dict[str, Probe] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        return self.services.store

    @property
    def layout(self) -> Layout:
        return self.services.layout

    def token(self, user: str, tenant: str | None = None) -> str:
        return self.services.tokens.exchange(f"login:{user}", tenant=tenant).token

    def client(self, user: str | None = None) -> TestClient:
        """Return a client of a user of the platform file, or one without a credential."""
        headers = {} if user is None else {"Authorization": f"Bearer {self.token(user)}"}
        return TestClient(self.app, base_url=BASE_URL, headers=headers, raise_server_exceptions=False)


def prepare_state(directory: Path) -> None:
    """Make what every platform of the tests begins with: schema, tenants, people, signing keys. Slow on purpose."""
    store = Store(f"sqlite:///{directory / 'polyray.db'}")
    migrate(store)
    apply_definitions(store, FILE, now_ms=SystemClock().now_ms())
    store.close()
    SigningKeys(directory / "keys", "platform").all()
    (directory / "store").mkdir()


def make_platform(directory: Path, *, max_blob_bytes: int = 2**20) -> Platform:
    """Return a platform on a prepared state, with tenants vision (ada admin, vic viewer) and speech (bob admin)."""
    store = Store(f"sqlite:///{directory / 'polyray.db'}")
    clock = SystemClock()
    tokens = PlatformTokens(store, SigningKeys(directory / "keys", "platform", clock), NamedIdentities(FILE), clock)
    woken: list[tuple[str, str]] = []
    killed: list[tuple[str, int]] = []
    probes = {name: Probe(True) for name in ("store", "fabric", "gateway")}
    services = Services(
        store=store,
        clock=clock,
        layout=Layout(directory / "store"),
        settings=Settings(state_dir=directory),
        tokens=tokens,
        wake=lambda kind, key: woken.append((kind, key)),
        offerings=lambda: OFFERINGS,
        feasible=never_fits,
        kill_worker=lambda workload_id, rank: killed.append((workload_id, rank)),
        apply_platform=lambda given: apply_definitions(store, given, now_ms=clock.now_ms()),
        endpoints=lambda: Endpoints(BASE_URL, GATEWAY_URL),
        audit=Auditor(store, Anchors(directory), clock, lambda: True),
        probes={name: lambda name=name: probes[name] for name in probes},  # type: ignore[misc]
        grade=("process", "tenants must trust each other"),
        max_blob_bytes=max_blob_bytes,
    )
    return Platform(services, create_app(services), woken, killed, probes)


def never_fits(session: Session, tenant: str, spec: WorkloadSpec) -> Explanation | None:
    """The broker's own word, over the offerings alone."""
    quotas = {q.flavor: q.nominal for q in session.scalars(select(Quota).where(Quota.tenant == tenant))}
    view = TenantView(tenant, Resources(quotas), Resources(), Resources())
    return feasible(spec.bundles, spec.capacity, view, (), OFFERINGS, kind=spec.kind)


def job(**changes: Any) -> dict[str, Any]:
    return {"kind": "job", "name": "digits", "run": "python train.py", **changes}


def put_blob(client: TestClient, content: bytes) -> str:
    sha256 = hashlib.sha256(content).hexdigest()
    client.put(f"/v1/blobs/{sha256}", content=content).raise_for_status()
    return sha256


def manifest_of(name: str, contents: Iterable[bytes], **changes: Any) -> dict[str, Any]:
    """Return a manifest of files of 10 rows each."""
    files = [
        {
            "name": f"part-{n}.parquet",
            "sha256": hashlib.sha256(content).hexdigest(),
            "size_bytes": len(content),
            "rows": 10,
            "row_groups": 1,
        }
        for n, content in enumerate(contents)
    ]
    manifest = {
        "manifest": 1,
        "name": name,
        "stage": "raw",
        "format": "parquet",
        "schema": [{"name": "x", "type": "double", "nullable": False}],
        "files": files,
        "rows": 10 * len(files),
        "lineage": {},
    }
    return {**manifest, **changes}


def lines_of(*records: object) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)
