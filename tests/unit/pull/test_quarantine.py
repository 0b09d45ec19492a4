"""Quarantine and claims, without a broker."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.consumer.access import SubscriberAccess
from pulsar_retry.letters.facts import facts_of
from pulsar_retry.pull.engine.ward import Ward
from pulsar_retry.testing import MemoryBroker
from support.pull.handling import Notes


@given(st.integers(0, 10), st.integers(0, 10), st.integers(0, 100))
def test_what_is_held(claims: int, crashes: int, redeliveries: int) -> None:
    """Enough claims, or enough dead workers; redeliveries only where they are to count."""
    counts = {"claims": claims, "worker_crashes": crashes, "redeliveries": redeliveries}
    killed = claims >= 3 or crashes >= 3
    assert killed == pr.Quarantine().holds(**counts)
    assert (claims >= 2 or crashes >= 1) == pr.Quarantine(max_crashes=1).holds(**counts)
    either = killed or redeliveries >= 20
    assert either == pr.Quarantine(max_redeliveries=20).holds(**counts)


@given(st.integers(1, 10), st.integers(0, 20))
def test_who_is_condemned_was_alone(max_crashes: int, claims: int) -> None:
    """Whatever the limit: the last claim of what is held was made as a suspect."""
    quarantine = pr.Quarantine(max_crashes=max_crashes)
    if quarantine.holds(claims=claims, worker_crashes=0, redeliveries=0):
        assert quarantine.is_suspect(claims - 1)
    assert not quarantine.is_suspect(0)


@given(st.lists(st.one_of(st.booleans(), st.integers(0, 5)), max_size=60))
def test_a_suspect_is_alone(steps: list[bool | int]) -> None:
    """Whoever comes and goes: nobody is beside it, and everybody gets in, in order."""
    ward, inside, came, entered = Ward(), list[tuple[int, bool]](), 0, list[int]()

    def let_in(number: int, alone: bool) -> None:
        inside.append((number, alone))
        entered.append(number)
        assert len(inside) == 1 or not any(alone for _, alone in inside)

    def leave(position: int) -> None:
        inside.pop(position % len(inside))
        ward.leave()

    for step in steps:
        if isinstance(step, bool):
            wake = partial(let_in, came, step)
            if ward.enter(alone=step, wake=wake):
                wake()
            came += 1
        elif inside:
            leave(step)
    while inside:
        leave(0)
    assert list(range(came)) == entered


def test_a_stop_that_times_out_is_no_crash(memory: MemoryBroker, tmp_path: Path) -> None:
    """A long job that is abandoned by one deployment after the other is handled in the end."""
    quarantine = pr.Quarantine(store=pr.FileClaims(tmp_path))
    memory.send("orders", b"job")

    def hang(_message: Any) -> None:
        memory.clock.event().wait(1e9)

    for _ in range(4):
        subscriber = memory.client().subscriber("orders", "billing", hang, quarantine=quarantine)
        subscriber.start()
        memory.clock.advance(1)
        assert list(tmp_path.iterdir())
        report = subscriber.stop("drain", timeout=5)
        assert report is not None
        assert (1, []) == (report.abandoned, list(tmp_path.iterdir()))
    with memory.client().subscriber("orders", "billing", Notes(), quarantine=quarantine) as last:
        memory.join("orders", "billing")
    assert 1 == last.result().acknowledged


def test_a_lease_that_expires_is_no_crash(memory: MemoryBroker, tmp_path: Path) -> None:
    """A message that hangs is dead when its attempts are used up, and not for a crash-loop."""

    def hang(_message: Any) -> None:
        memory.clock.event().wait(1e9)

    memory.send("orders", b"job")
    client = memory.client()
    with client.subscriber(
        "orders",
        "billing",
        hang,
        quarantine=pr.Quarantine(store=pr.FileClaims(tmp_path)),
        retry_policy=pr.RetryPolicy(max_attempts=6, backoff="immediate"),
        lease=pr.Lease(minimum=1, maximum=1, max_total=1),
    ):
        memory.join("orders", "billing")
    (dead,) = memory.dead_letters("orders", "billing")
    failure = pr.DeadLetter.of(dead).failure
    assert ("retries-exhausted", 6) == (failure.reason, failure.attempt)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shell", ["threads", "loop"])
def test_crashes_are_forgotten_when_the_dead_letter_is_stored(
    memory: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    """Before that, another message can end the process: they count again, and the refusal not."""
    store = pr.FileClaims(tmp_path)
    memory.send("orders", b"poison")
    memory.send("orders", b"job")
    for _ in range(3):
        store.claim(facts_of(memory.messages("orders")[0]).key)
    claims_before: list[int] = []
    dead = SubscriberAccess.dead

    def notice(self: SubscriberAccess, *arguments: Any, **named: Any) -> Any:
        claims_before.extend(each.stat().st_size for each in tmp_path.iterdir())
        return dead(self, *arguments, **named)

    monkeypatch.setattr(SubscriberAccess, "dead", notice)

    async def handle_async(message: Any) -> None:
        assert message.data() == b"job"

    handler: Any = handle_async if shell == "loop" else lambda message: message.data()
    with memory.client().subscriber(
        "orders", "billing", handler, quarantine=pr.Quarantine(store=store), concurrency=1
    ):
        memory.join("orders", "billing")
    (letter,) = memory.dead_letters("orders", "billing")
    assert pr.DeadLetter.of(letter).failure.reason == "crash-loop"
    assert [3] == claims_before
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shell", ["threads", "loop"])
def test_suspects_are_handled_alone(memory: MemoryBroker, tmp_path: Path, shell: str) -> None:
    """Messages that two processes have died with, among others: none runs beside them."""
    store = pr.FileClaims(tmp_path)
    at_work: list[bytes] = []
    together: set[tuple[bytes, ...]] = set()
    lock = threading.Lock()

    def begin(message: Any) -> None:
        with lock:
            at_work.append(message.data())
            together.add(tuple(sorted(at_work)))

    def handle(message: Any) -> None:
        begin(message)
        memory.clock.sleep(1)
        at_work.remove(message.data())

    async def handle_async(message: Any) -> None:
        begin(message)
        await asyncio.sleep(0.05)
        at_work.remove(message.data())

    for number in range(12):
        payload = b"suspect %d" % number if number % 4 == 1 else b"%d" % number
        memory.send("orders", payload)
    for message in memory.messages("orders"):
        if message.data().startswith(b"suspect"):
            store.claim(facts_of(message).key)
            store.claim(facts_of(message).key)
    handler: Any = handle if shell == "threads" else handle_async
    with memory.client().subscriber(
        "orders", "billing", handler, quarantine=pr.Quarantine(store=store), concurrency=12
    ) as subscriber:
        memory.join("orders", "billing")
    assert 12 == subscriber.result().acknowledged
    assert any(len(group) > 1 for group in together)
    assert all(len(group) == 1 for group in together if any(b"suspect" in each for each in group))
    assert not list(tmp_path.iterdir())


def test_claims_outlive_their_process(tmp_path: Path) -> None:
    """What is not settled is counted, by whoever looks into the folder."""
    first, second = pr.FileClaims(tmp_path / "claims"), pr.FileClaims(tmp_path / "claims")
    assert [0, 1, 0] == [first.claim("a"), second.claim("a"), second.claim("b")]
    first.settle("a")
    first.settle("a")
    assert [0, 1] == [second.claim("a"), second.claim("b")]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"max_crashes": 0}, "max_crashes=0"),
        ({"max_redeliveries": 0}, "max_redeliveries=0"),
        ({"store": "claims"}, "store='claims': expected a ClaimStore"),
    ],
)
def test_what_is_no_quarantine(arguments: dict, text: str) -> None:
    """The error names the argument, the value and what is accepted."""
    with pytest.raises(pr.ConfigError, match=text):
        pr.Quarantine(**arguments)
