"""Permits: how many letters may be in flight."""

from __future__ import annotations

import threading

from pulsar_retry.consumer.handoff.handoff import Permits
from support.waiting import eventually


def test_many_threads_share_the_permits() -> None:
    """Never more than there are, and all end."""
    permits, lock = Permits(3), threading.Lock()
    held = most = 0

    def work() -> None:
        nonlocal held, most
        for _ in range(200):
            permits.acquire()
            with lock:
                held += 1
                most = max(most, held)
            with lock:
                held -= 1
            permits.release()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert not any(thread.is_alive() for thread in threads)
    assert most <= 3
    assert 0 == permits.wait_for_all(0)


def test_bytes_are_bounded_as_well() -> None:
    """Nobody gets a permit while there are too many; a letter above the bound passes alone."""
    permits = Permits(8, most_bytes=100)
    permits.acquire(1000)
    assert not permits.acquire(1, waits=False)
    waiter = threading.Thread(target=permits.acquire, args=(60,), daemon=True)
    waiter.start()
    eventually(lambda: permits._waiting)

    permits.release(1, 1000)
    waiter.join(120)

    assert not waiter.is_alive()
    assert (True, False) == (permits.acquire(60, waits=False), permits.acquire(1, waits=False))
    permits.release(2, 120)
    assert permits.acquire(1, waits=False)
