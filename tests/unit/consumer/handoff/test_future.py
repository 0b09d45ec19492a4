"""The future of a hand-off is a future, only lighter."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from functools import partial

import pytest

from pulsar_retry.consumer.handoff.sending import LetterFuture


def test_it_succeeds_unseen() -> None:
    """Who looks afterwards finds it done."""
    future = LetterFuture()
    assert (False, False, False) == (future.done(), future.cancelled(), future.cancel())
    future.succeed()
    assert (True, None, None) == (future.done(), future.result(0), future.exception(0))


def test_it_fails() -> None:
    """The error is raised, each time."""
    future = LetterFuture()
    future.set_exception(ValueError("no"))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            future.result(0)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("waited_for", [False, True])
def test_each_callback_is_called_once(fails: bool, waited_for: bool) -> None:
    """Before or after the end, or after somebody waits, at a success and at a failure."""
    called: list[int] = []
    future = LetterFuture()
    for number in range(3):
        future.add_done_callback(lambda _, number=number: called.append(number))
        if number == 0 and waited_for:
            with pytest.raises(TimeoutError):
                future.result(0)
    if fails:
        future.set_exception(ValueError("no"))
    else:
        future.succeed()
    future.add_done_callback(lambda _: called.append(3))
    assert [0, 1, 2, 3] == called


def test_a_callback_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged as for any future, and the future is done."""
    future = LetterFuture()
    future.add_done_callback(lambda _: 1 // 0)
    future.succeed()
    assert future.done()
    assert ["concurrent.futures"] == [record.name for record in caplog.records]


def test_the_standard_library_waits_for_it() -> None:
    """`wait`, `as_completed` and asyncio know what to do with it."""
    futures = [LetterFuture() for _ in range(3)]
    futures[0].succeed()
    timer = threading.Timer(0.05, lambda: [future.succeed() for future in futures[1:]])
    timer.start()
    assert set(futures) == wait(futures, timeout=120).done
    assert set(futures) == set(as_completed(futures, timeout=120))

    async def result() -> None:
        await asyncio.wrap_future(futures[0])

    asyncio.run(result())
    timer.join()


def test_no_end_is_missed() -> None:
    """Whoever begins to wait in the moment of the end is woken, too."""
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2000):
            future = LetterFuture()
            waiting = pool.submit(future.result, 20)
            ending = pool.submit(future.succeed)
            assert waiting.result(120) is None
            assert ending.result(120) is None


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("error", [None, ValueError()])
def test_a_resolved_future_forgets_its_callbacks(count: int, error: Exception | None) -> None:
    """They can have the message, which has the future: nothing would free them soon."""
    future, called = LetterFuture(), list[object]()
    callbacks = [partial(called.append) for _ in range(count)]
    for each in callbacks:
        future.add_done_callback(each)
    left = [weakref.ref(each) for each in callbacks]
    del callbacks, each
    if error is None:
        future.succeed()
    else:
        future.set_exception(error)
    assert [future] * count == called
    assert [None] * count == [each() for each in left]
