from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from polyray.core.errors import Invalid, NotFound, Unauthenticated
from polyray.identity.api_keys import hash_key, live_keys, make_key, revoke_key, verify_key
from polyray.identity.passwords import hash_password, verify_password
from polyray.identity.policy import ALLOWED, Action, Role, allowed
from polyray.identity.provider import roles_of
from support.tokens import make_store

DAY_MS = 86_400_000


def test_a_password_fits_its_own_hash_and_no_other() -> None:
    hashed = hash_password("correct horse")
    assert verify_password("correct horse", hashed)
    assert not verify_password("correct horsf", hashed)
    assert "correct" not in hashed
    assert hashed != hash_password("correct horse")


@pytest.mark.parametrize(
    "hashed", ["", "x", "scrypt$1$1$1$$", "scrypt$16384$8$5$!$!", "scrypt$1073741824$8$5$AAAA$AAAA", "md5$1$1$1$a$b"]
)
def test_a_broken_or_outrageous_hash_fits_nothing_and_costs_nothing(hashed: str) -> None:
    began = time.monotonic()
    assert not verify_password("", hashed)
    assert time.monotonic() - began < 5


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    store = make_store(tmp_path, "vision", "speech")
    with store.write() as session:
        yield session
    store.close()


def _make(session: Session, service: str | None = None, ttl_days: int | None = None) -> tuple[str, str]:
    new = make_key(session, tenant="vision", name="app", created_by="ada", now_ms=0, service=service, ttl_days=ttl_days)
    session.flush()
    return new.key_id, new.key


def test_a_key_is_kept_as_a_hash_alone(session: Session) -> None:
    key_id, key = _make(session)
    assert len(key) == 43
    assert key.startswith("pr_")
    row = verify_key(session, key, service="digits", now_ms=1)
    assert (row.key_id, row.key_hash) == (key_id, hash_key(key))
    assert key not in str(vars(row))
    assert row.key_hash == row.key_hash.upper()


def test_a_key_lives_ninety_days_unless_told_otherwise(session: Session) -> None:
    _, key = _make(session)
    verify_key(session, key, service="digits", now_ms=90 * DAY_MS - 1)
    with pytest.raises(Unauthenticated, match="expired"):
        verify_key(session, key, service="digits", now_ms=90 * DAY_MS)
    for ttl_days in (0, -1, 366):
        with pytest.raises(Invalid, match="ttl_days"):
            _make(session, ttl_days=ttl_days)


def test_a_key_for_one_service_opens_that_one(session: Session) -> None:
    _, key = _make(session, service="digits")
    verify_key(session, key, service="digits", now_ms=0)
    with pytest.raises(NotFound):
        verify_key(session, key, service="faces", now_ms=0)


def test_a_revoked_key_is_as_one_that_never_was(session: Session) -> None:
    key_id, key = _make(session)
    assert [row.key_id for row in live_keys(session, 0)] == [key_id]
    with pytest.raises(NotFound):
        revoke_key(session, tenant="speech", key_id=key_id, now_ms=1)
    revoke_key(session, tenant="vision", key_id=key_id, now_ms=1)
    revoke_key(session, tenant="vision", key_id=key_id, now_ms=2)
    session.flush()
    assert live_keys(session, 2) == ()
    refusals = set()
    for unknown in (key, "pr_" + "x" * 40, "", "x" * 1000, "pr_" + "\ud800" * 40):
        with pytest.raises(Unauthenticated) as caught:
            verify_key(session, unknown, service="digits", now_ms=2)
        refusals.add((caught.value.reason, str(caught.value)))
    assert len(refusals) == 1


def test_every_action_is_in_the_table_and_what_is_not_is_nobodys() -> None:
    assert set(ALLOWED) == set(Action)
    assert not allowed("admin", "launch_missiles")
    for action in Action:
        assert not allowed("root", action)
        assert not allowed("", action)


def test_a_stronger_role_in_a_tenant_may_all_that_a_weaker_one_may() -> None:
    for action in Action:
        assert allowed(Role.VIEWER, action) <= allowed(Role.MEMBER, action) <= allowed(Role.ADMIN, action)


def test_a_viewer_changes_nothing_and_an_operator_reads_no_tenants_data() -> None:
    changing = ("SUBMIT", "STOP", "KILL", "WRITE", "PUBLISH", "REGISTER", "CREATE", "REVOKE", "APPLY", "USE")
    for action in Action:
        if action.name.startswith(changing):
            assert not allowed("viewer", action), action
    for action in (Action.READ_LOGS, Action.READ_RECORDS, Action.READ_BLOB, Action.READ_DATASET, Action.USE_CLUSTER):
        assert not allowed("operator", action)
    assert [role for role in Role if allowed(role, Action.APPLY_PLATFORM)] == [Role.OPERATOR]


def test_groups_are_read_as_keycloak_names_them_and_all_else_is_passed_over() -> None:
    groups = ["/operators", "/tenants/vision/viewer", "/tenants/vision/admin", "/tenants/speech/root"]
    strange = ["/tenants/Vision/admin", "/tenants/a/b/admin", "tenants/x/admin", "/tenants/x/admin/", 7, None, ""]
    assert roles_of(groups + strange) == ({"vision": "admin"}, True)
    assert roles_of(strange) == ({}, False)
