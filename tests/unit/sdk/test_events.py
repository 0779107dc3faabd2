from __future__ import annotations

from polyray.sdk.events import Event, parse_events


def test_events_are_read_with_their_names_and_positions() -> None:
    stream = [
        ": open",
        "",
        "id: 12",
        "event: log",
        'data: "a\\nb\\n"',
        "",
        ": quiet",
        "",
        "event: end",
        'data: {"s": 1}',
        "",
    ]
    assert list(parse_events(stream)) == [Event("log", "a\nb\n", "12"), Event("end", {"s": 1}, "12")]


def test_an_event_that_was_cut_off_is_not_shown() -> None:
    assert list(parse_events(["event: log", 'data: "half'])) == []
