from __future__ import annotations

from sqlalchemy import text

from support.api import Platform, job


def test_an_operator_lists_what_happened_the_newest_first_and_that_is_an_event_too(platform: Platform) -> None:
    platform.client("ada").post("/v1/jobs", json=job()).raise_for_status()
    olga = platform.client("olga")
    first = olga.get("/v1/audit", params={"limit": 1}).json()
    assert first["items"][0]["reason"] == "olga read the history"
    seen, cursor = first["items"], first["next_cursor"]
    while cursor:
        page = olga.get("/v1/audit", params={"limit": 1, "cursor": cursor}).json()
        seen, cursor = [*seen, *page["items"]], page["next_cursor"]
    ids = [event["event_id"] for event in seen]
    assert ids == sorted(ids, reverse=True)
    assert {event["kind"] for event in seen} >= {"audit", "workload", "tenant"}


def test_the_history_is_verified_and_the_first_bad_row_named(platform: Platform) -> None:
    olga = platform.client("olga")
    found = olga.get("/v1/audit/verify").json()
    assert found["ok"]
    assert found["findings"] == found["gaps"] == []
    with platform.store.write() as session:
        session.execute(text("UPDATE events SET reason = 'nothing' WHERE event_id = 2"))
    found = olga.get("/v1/audit/verify").json()
    assert not found["ok"]
    assert found["findings"] == ["event 2 was changed"]


def test_the_history_is_for_operators_alone(platform: Platform) -> None:
    for method, path in (("GET", "/v1/audit"), ("GET", "/v1/audit/verify"), ("POST", "/v1/audit/acknowledge")):
        for user in ("ada", "vic"):
            refused = platform.client(user).request(method, path)
            assert refused.status_code == 403
            assert refused.json()["hint"] == "ask an operator of the platform"  # no admin could help
        assert platform.client().request(method, path).status_code == 401
