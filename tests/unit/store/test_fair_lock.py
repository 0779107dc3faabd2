"""Whoever has waited longest writes next."""

from __future__ import annotations

import threading

from polyray.store.fair import FairLock
from support.wait import until


def test_it_is_had_in_the_order_in_which_it_was_asked_for() -> None:
    lock, served = FairLock(), list[int]()
    assert lock.acquire(1)

    def take(number: int) -> None:
        assert lock.acquire(20)
        served.append(number)
        lock.release()

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=take, args=(number,)))
        threads[-1].start()
        until(lambda: len(lock._waiting) == number + 1)  # noqa: B023
    lock.release()
    for thread in threads:
        thread.join()
    assert served == [0, 1, 2, 3, 4]


def test_one_that_asks_again_at_once_does_not_overtake_one_that_waits() -> None:
    lock, got = FairLock(), threading.Event()
    assert lock.acquire(1)

    def wait() -> None:
        assert lock.acquire(20)
        got.set()
        lock.release()

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: lock._waiting)
    lock.release()
    assert lock.acquire(20)
    assert got.is_set()
    lock.release()
    waiter.join()


def test_who_gives_up_waiting_is_passed_over() -> None:
    lock = FairLock()
    assert lock.acquire(1)
    assert not lock.acquire(0.01)
    lock.release()
    assert lock.acquire(0.01)
    lock.release()
