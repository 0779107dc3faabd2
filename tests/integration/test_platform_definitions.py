"""The operator's file becomes rows, and applied again changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from polyray.control.definition import PlatformDefinition
from polyray.core.clock import VirtualClock
from polyray.core.platform_file import PlatformFile
from polyray.identity.passwords import verify_password
from polyray.store.engine import Store
from polyray.store.migrate import migrate
from polyray.store.tables import Budget, Event, Project, Quota, Tenant, User
from polyray.tenants.definitions import FIRST_UID, apply_definitions

FILE: dict[str, Any] = {
    "tenants": {
        "vision": {
            "display_name": "Vision lab",
            "quota": {"cpu": 8, "memory": "16GiB", "h100": {"nominal": 8, "borrowing_limit": 4}},
            "budget_usd_per_month": 50,
            "members": {"ada": "admin"},
        },
        "speech": {"quota": {"cpu": 2}, "cohort": "all"},
    },
    "users": {"ada": {"password": "correct horse"}},
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(f"sqlite:///{tmp_path / 'polyray.db'}")
    migrate(made)
    yield made
    made.close()


def apply(store: Store, **tenants: Any) -> list[str]:
    content = {**FILE, "tenants": {**FILE["tenants"], **tenants}}
    return apply_definitions(store, PlatformFile.model_validate(content), now_ms=1)


def test_tenants_get_uids_quotas_budgets_a_project_and_people(store: Store) -> None:
    apply(store)
    with store.read() as session:
        tenants = session.scalars(select(Tenant).order_by(Tenant.uid)).all()
        assert [(t.name, t.uid) for t in tenants] == [("vision", FIRST_UID), ("speech", FIRST_UID + 1)]
        assert (tenants[0].display_name, tenants[1].display_name, tenants[1].cohort) == ("Vision lab", "speech", "all")
        h100 = session.get_one(Quota, ("vision", "h100"))
        assert (h100.nominal, h100.borrowing_limit) == (8000, 4000)
        assert session.get_one(Quota, ("vision", "memory")).nominal == 16 * 2**30
        assert session.get_one(Budget, "vision").usd_micros_per_month == 50_000_000
        assert session.get_one(Budget, "speech").usd_micros_per_month == 0
        assert session.get(Project, ("speech", "default")) is not None
        ada = session.get_one(User, "ada")
        assert ada.groups == ["/tenants/vision/admin"]
        assert verify_password("correct horse", ada.password_hash)


def test_applied_again_it_changes_nothing(store: Store) -> None:
    assert apply(store)
    with store.read() as session:
        before = [(e.event_id, e.reason) for e in session.scalars(select(Event))]
    assert apply(store) == []
    with store.read() as session:
        assert [(e.event_id, e.reason) for e in session.scalars(select(Event))] == before


def test_what_changed_is_told_a_sentence_each(store: Store) -> None:
    apply(store)
    told = apply(store, speech={"quota": {"memory": "1GiB"}, "budget_usd_per_month": 5, "display_name": "Speech"})
    assert told == [
        "tenant speech: renamed",
        "tenant speech: cohort none",
        "tenant speech: quota of memory 1 GiB",
        "tenant speech: no quota of cpu",
        "tenant speech: budget of $5.00 a month",
    ]


def test_a_tenant_that_the_file_forgets_stays_and_its_uid_is_never_another_s(store: Store) -> None:
    apply(store)
    content: dict[str, Any] = {"tenants": {"robotics": {}}}
    apply_definitions(store, PlatformFile.model_validate(content), now_ms=2)
    with store.read() as session:
        uids = {t.name: t.uid for t in session.scalars(select(Tenant))}
    assert uids == {"vision": FIRST_UID, "speech": FIRST_UID + 1, "robotics": FIRST_UID + 2}


def test_what_one_control_plane_was_told_the_other_knows(store: Store, tmp_path: Path) -> None:
    path, clock = tmp_path / "platform.json", VirtualClock()
    leads, waits = (PlatformDefinition(store, clock, path) for _ in range(2))
    leads.load(None)
    waits.load(None)
    for seconds in (10, 20):
        leads.apply(PlatformFile.model_validate({**FILE, "idle_seconds": seconds}))
        assert waits.current() == leads.current()
        assert waits.current().idle_seconds == seconds
    assert PlatformDefinition(store, clock, path).current().idle_seconds != 20, "nothing is read before it is loaded"
