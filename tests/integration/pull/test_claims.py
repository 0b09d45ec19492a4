"""Claims in a topic: messages that kill processes which keep nothing."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.pull.claims import topic as claims_topic
from pulsar_retry.pull.claims.claims import Claims
from pulsar_retry.pull.claims.topic import KEEPER, ClaimTopic
from pulsar_retry.pull.rules.claims import Record
from pulsar_retry.wire.properties import message_id_text
from support.faults.ledger import patiently
from support.model.claims import check_claims, keep
from support.model.lanes import read
from support.pull import crashing
from support.pull.handling import SOON, Notes
from support.reading import SUBSCRIPTION, eventually

PROCESSES = 4
CRASHES = 3
MESSAGES = 200


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_poison_dies_after_three_crashes(broker, client, admin, topic, tmp_path: Path, kind):
    """Four processes without a disk, and each that dies is replaced: all others are handled.

    What happens is a behaviour of the model.
    """
    client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared).close()
    producer = client.create_producer(topic, batching_enabled=True)
    innocents = [b"%d" % number for number in range(MESSAGES)]
    for payload in [*innocents[:50], b"poison", *innocents[50:]]:
        producer.send_async(payload, lambda *_: None)
    producer.flush()
    log = tmp_path / "attempts"
    keep(client, f"{topic}-{SUBSCRIPTION}-CLAIMS")
    command = [sys.executable, crashing.__file__, broker.service_url, topic, kind, str(log)]
    running = [subprocess.Popen(command) for _ in range(PROCESSES)]
    deaths = 0

    def has_ended() -> bool:
        nonlocal deaths
        for place, process in enumerate(running):
            if process.poll() is not None:
                assert process.returncode == 9
                deaths += 1
                running[place] = subprocess.Popen(command)
        return not admin.backlog(topic, SUBSCRIPTION)

    try:
        eventually(has_ended, 240)
        records = read(client, f"{topic}-{SUBSCRIPTION}-CLAIMS")
        for process in running:
            process.terminate()
        codes = {process.wait(120) for process in running}
        assert codes <= {0, -signal.SIGTERM}  # one that has just begun to start is only terminated
    finally:
        for process in running:
            process.kill()
            process.wait()
    lines = [line.split(b" ") for line in log.read_bytes().splitlines()]
    attempts = Counter(line[3] for line in lines if line[0] == b"began")
    assert (CRASHES, CRASHES) == (deaths, attempts.pop(b"poison"))
    assert attempts.keys() == set(innocents)
    reader = client.create_reader(f"{topic}-{SUBSCRIPTION}-DLQ", pulsar.MessageId.earliest)
    letter = reader.read_next(60_000)
    assert not reader.has_message_available()
    assert b"poison" == letter.data()
    assert "crash-loop" == pr.DeadLetter.of(letter).failure.reason
    claims = json.loads(letter.properties()["FAILURE_CLAIMS"])
    assert str(CRASHES) == letter.properties()["FAILURE_CRASHES"]
    assert CRASHES == len({claim["process"] for claim in claims})
    assert [True] == [claim["alone"] for claim in claims if claim["alone"]]
    check_claims(records, log, [letter], CRASHES, tmp_path)


class Member:
    """What a process of a subscription has of the claims; it dies without a farewell."""

    def __init__(self, url: str, topic: str) -> None:
        self._client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        self.topic = ClaimTopic(self._client, topic)
        spec = pr.TopicClaims(grace=0)
        self.claims = Claims(self.topic, spec, ahead=lambda: (), adapt=lambda _: None)

    def claim(self, message: str) -> tuple[Record, ...]:
        """Claim *message* when its handler may begin; return who accuses it."""
        gate = threading.Event()
        if not self.claims.claim(message, gate.set):
            assert gate.wait(SOON)
        return self.claims.accusers(message)

    def die(self) -> None:
        """Lose the connection for ever."""
        self.claims._is_closed = True  # so that nothing is written any more
        self._client.shutdown()


@pytest.fixture
def join(broker, client, topic) -> Iterator[Callable[..., Member]]:
    """Return a function that makes such a process."""
    members: list[Member] = []

    def join(url: str = broker.service_url, topic: str = topic) -> Member:
        members.append(Member(url, topic))
        return members[-1]

    yield join
    for each in members:
        each.die()


def test_only_the_dead_accuse(join, proxy):
    """A process that is slow, or has lost its connection, is not taken for dead; a dead one is."""
    slow, cut, dead, here = join(), join(proxy.url), join(), join()
    for member in (slow, cut, dead):
        assert not member.claim("order")
    assert not here.claim("order")
    dead.die()
    proxy.cut(refuse=True)
    eventually(lambda: len(_again(here, "order")) == 2)
    found = here.claims.accusers("order")
    assert {cut.topic.me, dead.topic.me} == {each.process for each in found}
    proxy.mend()
    eventually(lambda: len(_again(here, "order")) == 1)
    (grave,) = here.claims.accusers("order")
    assert dead.topic.me == grave.process
    assert here.claims.is_certain([grave])
    here.claims.settle("order")
    eventually(lambda: dead.topic.me not in here.topic.book.records)


def test_one_suspect_at_a_time(join):
    """Among all processes, in turn; the turn of one that dies goes on to the next."""
    first, second, third = join(), join(), join()
    turns = [threading.Event() for _ in range(3)]
    for member, turn in zip((first, second, third), turns, strict=True):
        member.claims.take_turn(turn.set)
        eventually(lambda member=member: member.topic.me in first.topic.book.records)
    assert turns[0].wait(SOON)
    isolated, rejoined = threading.Event(), threading.Event()
    first.claims.isolate("suspect", isolated.set)
    assert isolated.wait(SOON)
    assert [True, False, False] == [each.is_set() for each in turns]
    first.claims.settle("suspect")
    first.claims.rejoin(rejoined.set)
    assert rejoined.wait(SOON)
    again = threading.Event()
    first.claims.take_turn(again.set)
    assert turns[1].wait(SOON)
    assert not turns[2].is_set()
    second.die()
    assert turns[2].wait(SOON)
    assert not again.is_set()
    first.claims.withdraw()
    assert again.is_set()  # nobody waits for a turn when the subscriber stops


def _again(member: Member, message: str) -> tuple[Record, ...]:
    member.claims.drop(message)
    return member.claim(message)


def test_the_topic_is_kept_and_stays_short(join, admin, namespace, topic, client, monkeypatch):
    """Without processes it is not deleted; what the dead have left outlives what is trimmed."""
    dead = join()
    assert not dead.claim("order")
    dead.die()
    other = f"persistent://{namespace}/{uuid.uuid4().hex}"
    client.create_producer(other).close()
    eventually(lambda: other not in admin.topics(namespace))  # as all that nobody keeps
    busy = join()
    for number in range(30):
        busy.claim(str(number))
        busy.claims.settle(str(number))
    assert admin.backlog(topic, KEEPER) > 30
    monkeypatch.setattr(claims_topic, "_SILENT", 0.5)
    eventually(lambda: busy.topic.silent_for(dead.topic.me) > 1)

    def is_short() -> bool:
        busy.topic.trim(keep=60)
        return bool(admin.backlog(topic, KEEPER) < 10)

    eventually(is_short)
    late = join()
    (grave,) = _again(late, "order")
    assert late.topic.since_trim < 10  # it has not read all that is still there
    assert dead.topic.me == grave.process
    eventually(lambda: busy.topic.silent_for(dead.topic.me) > 1)
    busy.topic.trim(keep=0.001)
    eventually(lambda: dead.topic.me not in join().topic.book.records)


def test_a_condemned_message_that_comes_again(join, client, publish, start, dead_letters, topic):
    """Its claims stay, so it is dead at once, and no more processes die of it."""
    message = message_id_text(publish(b"poison"))
    for is_alone in (False, False, True):
        member = join(topic=f"{topic}-{SUBSCRIPTION}-CLAIMS")
        isolated = threading.Event()
        if is_alone:
            member.claims.isolate(message, isolated.set)
            assert isolated.wait(SOON)
        else:
            member.claim(message)
        member.die()
    notes = Notes()
    for times in (1, 2):
        subscriber = start(notes, quarantine=pr.Quarantine(store=pr.TopicClaims(grace=0)))
        assert "crash-loop" == pr.DeadLetter.of(dead_letters(times)[-1]).failure.reason
        subscriber.stop()
        consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared)
        patiently(lambda: consumer.seek(pulsar.MessageId.earliest), pulsar.PulsarException)  # noqa: B023 - at once
        consumer.close()
    assert not notes.seen


def test_a_stop_leaves_nothing(start, publish, join, topic):
    """The claims of a subscriber that ends are withdrawn, with and without its messages."""
    notes = Notes()
    subscriber = start(notes, quarantine=pr.Quarantine(store=pr.TopicClaims()))
    publish()
    notes.wait_for(1)
    subscriber.stop()
    claims = f"{topic}-{SUBSCRIPTION}-CLAIMS"
    eventually(lambda: not join(topic=claims).topic.book.records)


def test_claims_that_cannot_be_stored(start, publish, admin, topic, caplog):
    """Handlers begin without them after a while, and the subscriber says so."""
    caplog.set_level(logging.WARNING)
    notes = Notes()
    claims = pr.TopicClaims(wait=0.5)
    subscriber = start(notes, quarantine=pr.Quarantine(store=claims))
    publish()
    notes.wait_for(1)
    admin.terminate(f"{topic}-{SUBSCRIPTION}-CLAIMS")
    for _ in range(3):
        publish()
    notes.wait_for(4)
    eventually(lambda: "handlers begin without claims" in caplog.text)
    eventually(lambda: "crashes are not counted" in subscriber.health.reason)
    assert "degraded" == subscriber.health.state
    assert (4, 4) == (subscriber.stop().acknowledged, len(notes.seen))
