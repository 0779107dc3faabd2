"""How long a workload rests between attempts that do not last."""

from __future__ import annotations

from polyray.jobs.pauses import FIRST_MS, LASTING_MS, LONGEST_MS, pause_ms

SHORT = 3_000


def test_one_attempt_that_was_lost_is_tried_again_at_once() -> None:
    assert pause_ms("job-a", [SHORT]) == 0
    assert pause_ms("job-a", [SHORT, LASTING_MS]) == 0
    assert pause_ms("job-a", [SHORT, SHORT, LASTING_MS, SHORT]) == 0


def test_attempts_that_do_not_last_rest_longer_each_time_up_to_a_bound() -> None:
    rests = [pause_ms("job-a", [SHORT] * n) for n in range(2, 40)]
    assert 0.8 * FIRST_MS <= rests[0] <= 1.2 * FIRST_MS
    assert rests[1] > rests[0]
    assert rests[2] > rests[1]
    assert all(0.8 * LONGEST_MS <= rest <= 1.2 * LONGEST_MS for rest in rests[10:])


def test_workloads_that_fell_together_do_not_come_back_together() -> None:
    assert len({pause_ms(f"svc-{n}", [SHORT, SHORT]) for n in range(100)}) > 50
