from __future__ import annotations

import threading
from pathlib import Path

import pytest

from polyray.core.clock import VirtualClock
from polyray.core.errors import Invalid
from polyray.identity.keys import SigningKeys


def test_the_first_use_makes_a_key_that_only_its_owner_reads(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path / "keys", "platform")
    kid = keys.signing().kid
    (path,) = (tmp_path / "keys").glob("*.pem")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert SigningKeys(tmp_path / "keys", "platform").signing().kid == kid


def test_many_first_uses_at_once_make_one_key(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(SigningKeys(tmp_path, "platform").signing().kid)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(list(tmp_path.glob("*.pem"))) == 1


def test_purposes_share_no_key(tmp_path: Path) -> None:
    issuer, platform = SigningKeys(tmp_path, "issuer"), SigningKeys(tmp_path, "platform")
    assert issuer.signing().kid != platform.signing().kid
    assert platform.public_key(issuer.signing().kid) is None


def test_a_rotated_key_goes_on_verifying_until_it_is_retired(tmp_path: Path) -> None:
    clock = VirtualClock()
    keys = SigningKeys(tmp_path, "platform", clock)
    old = keys.signing().kid
    clock.step_wall(-3600)
    new = keys.rotate().kid
    assert keys.signing().kid == new, "a clock that was set back must not make the old key the newest"
    assert [kid for kid, _ in keys.public_pems()] == [new, old]
    with pytest.raises(Invalid, match="rotate first"):
        keys.retire(new)
    keys.retire(old)
    assert keys.public_key(old) is None
    assert SigningKeys(tmp_path, "platform").public_key(old) is None


def test_a_key_file_that_was_changed_is_refused_by_name(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path, "platform")
    kid = keys.signing().kid
    (path,) = tmp_path.glob("*.pem")
    path.rename(path.with_name(path.name.replace(kid, "0" * 16)))
    with pytest.raises(Invalid, match="0000000000000000"):
        SigningKeys(tmp_path, "platform").signing()


def test_the_jwks_has_public_numbers_only(tmp_path: Path) -> None:
    (jwk,) = SigningKeys(tmp_path, "issuer").jwks()["keys"]
    assert set(jwk) == {"kid", "kty", "alg", "use", "n", "e"}


def test_a_higher_key_epoch_kills_all_keys_made_before_it_for_good(tmp_path: Path) -> None:
    before = SigningKeys(tmp_path, "platform", VirtualClock(1_000))
    old = before.signing()
    other = SigningKeys(tmp_path, "issuer", VirtualClock(1_000)).signing()
    raised = SigningKeys(tmp_path, "platform", VirtualClock(500), epoch_ms=2_000)
    new = raised.signing()
    assert raised.public_key(old.kid) is None
    assert [kid for kid, _ in raised.public_pems()] == [new.kid]
    assert new.created_ms == 2_000
    assert [key.kid for key in SigningKeys(tmp_path, "platform", epoch_ms=2_000).all()] == [new.kid]
    assert SigningKeys(tmp_path, "platform").public_key(old.kid) is None
    assert SigningKeys(tmp_path, "issuer").signing().kid == other.kid
