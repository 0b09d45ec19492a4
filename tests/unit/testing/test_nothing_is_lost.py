"""Whatever goes wrong, every message is handled or dead: searched for counter-examples."""

from __future__ import annotations

from typing import Any

import pulsar
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker

#: How often each message fails, and whether for good.
FATES = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=8)
#: What goes wrong with which send to which of the letters' topics.
FAULTS = st.lists(
    st.tuples(
        st.sampled_from(["fail_send", "lose_receipt"]),
        st.sampled_from(["orders-billing-RETRY", "orders-billing-DLQ"]),
        st.integers(1, 6),
        st.integers(1, 3),
    ),
    max_size=4,
)
POLICY = pr.RetryPolicy(
    max_attempts=3, backoff=pr.Exponential(1, 600), dead_letter_on=(ValueError,)
)


@example([(4, False)], [("lose_receipt", "orders-billing-RETRY", 1, 3)], "letters", True)
@settings(deadline=None, max_examples=40)
@given(FATES, FAULTS, st.sampled_from(["letters", "nack"]), st.booleans())
def test_every_message_is_handled_or_dead(
    fates: list[tuple[int, bool]],
    faults: list[tuple[str, str, int, int]],
    redelivery: str,
    crashes: bool,
) -> None:
    """With sends that fail, receipts that get lost, and a process that is killed."""
    memory = MemoryBroker()
    failures = [count for count, _ in fates]
    handled: set[int] = set()

    def handle(message: Any) -> None:
        number = int(message.data())
        if failures[number]:
            failures[number] -= 1
            raise ValueError("bad") if fates[number][1] else TimeoutError("not yet")
        handled.add(number)

    for kind, topic, nth, times in faults:
        getattr(memory.faults, kind)(topic, nth=nth, times=times)

    def subscriber() -> pr.Subscriber:
        return memory.client().subscriber(
            "orders", "billing", handle, retry_policy=POLICY, redelivery=redelivery, concurrency=2
        )

    if crashes:
        memory.faults.crash_after_send("orders-billing-RETRY", nth=2)
    first = subscriber().start()
    for number in range(len(fates)):
        memory.send("orders", b"%d" % number)
    memory.clock.advance(5)
    try:
        with subscriber():
            memory.join("orders", "billing")
    except pulsar.AlreadyClosed:  # the second letter, after which the process is killed, was its
        with subscriber():
            memory.join("orders", "billing")
    first.stop("abandon")
    memory.close()
    dead = {int(letter.data()) for letter in memory.dead_letters("orders", "billing")}
    assert set(range(len(fates))) == handled | dead


def test_two_ways_to_tell_a_superfluous_letter_never_drop_both() -> None:
    """A letter that was dropped for a newer one is no reason to drop the newer one.

    A killed subscriber leaves a message and its letter A. The next one handles the message again
    and publishes letter B, for which it drops A; B is a twin of A's that was published before A was
    delivered.
    """
    memory = MemoryBroker()
    seen = []

    def handle(message: Any) -> None:
        seen.append(pr.attempt_of(message))
        raise TimeoutError

    def subscriber() -> pr.Subscriber:
        policy = pr.RetryPolicy(max_attempts=3, backoff="fixed 2s")
        return memory.client().subscriber("orders", "billing", handle, retry_policy=policy)

    memory.faults.crash_after_send("orders-billing-RETRY")
    first = subscriber().start()
    memory.send("orders", b"x")
    memory.clock.advance(1)
    with subscriber():
        memory.join("orders", "billing")
    first.stop("abandon")
    memory.close()
    assert [b"x"] == [letter.data() for letter in memory.dead_letters("orders", "billing")]
    assert {1, 2, 3} == set(seen)
