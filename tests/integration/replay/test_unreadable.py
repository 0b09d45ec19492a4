"""Letters that a command cannot read: encrypted ones, of whose keys it has none."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta

import pulsar
import pytest

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.ops.browse import look_into
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.source import who_reads
from pulsar_retry.replay.redriving.states import LetterStates, Source
from support.encrypting import key_files
from support.reading import SUBSCRIPTION
from support.replay.redriving import received
from support.waiting import eventually


@pytest.fixture
def encrypted(dead, tmp_path):
    """Return a function that publishes encrypted letters, and returns the id of the last one."""
    keys = pulsar.CryptoKeyReader(*key_files(tmp_path))

    def publish(count: int, topic: str = dead.dlq, **options) -> str:
        options = {"batching_enabled": False, "max_pending_messages": 0} | options
        producer = dead.client.create_producer(
            topic, encryption_key="key", crypto_key_reader=keys, **options
        )
        for _ in range(count - 1):
            producer.send_async(b"secret", None, properties=dead.properties(1))
        found = producer.send(b"secret", properties=dead.properties(1))
        producer.close()
        return f"{found.ledger_id()}:{found.entry_id()}"

    return publish


def test_they_hide_no_other_letter_and_are_counted(dead, encrypted) -> None:
    """In front of others, between them and at the end, and beside letters in chunks."""
    consumer = dead.subscribe()
    dead.create("keep")
    encrypted(2)
    dead.send(bytes(6_000_000), dead.properties(0))
    encrypted(1, compression_type=pulsar.CompressionType.ZSTD)
    dead.fill(2)
    last = encrypted(1)

    with look_into(dead.cluster, dead.dlq, None) as found:
        seen = found.grouped(Filter())
        assert (3, 4) == (sum(each.count for each in seen.groups), seen.unreadable)
        with pytest.raises(PulsarRetryError, match="encrypted"):
            found.letter(last)
    looked = dead.redrive(dry_run=True).run()
    assert (3, {"unreadable": 4}) == (looked.redriven, looked.left)
    done = dead.redrive().run()
    assert (3, {"unreadable": 4}) == (done.redriven, done.left)
    assert not done.is_complete
    assert "encrypted" in done.problems[0]
    received(consumer, 3)
    assert 4 == dead.backlog()


def test_nothing_is_fetched_while_they_are_counted(dead, encrypted, monkeypatch) -> None:
    """Reading can take minutes, and pulsar-client acknowledges what stays incomplete for one."""
    dead.subscribe()
    dead.create("keep")
    encrypted(1)
    dead.fill(1)
    left, readers = Source.left, list[str | None]()

    def watched(self: Source, states: LetterStates) -> Counter[str]:
        readers.append(who_reads(self.admin, dead.dlq, self.subscription, is_retry=False))
        return left(self, states)

    monkeypatch.setattr(Source, "left", watched)
    done = dead.redrive().run()

    assert (1, {"unreadable": 1}, [None]) == (done.redriven, done.left, readers)


@pytest.mark.parametrize(("count", "rate"), [(1010, 1e9), (25, 1)])
def test_many_hide_no_other_letter(dead, encrypted, count, rate) -> None:
    """They are as many as a redrive fetches ahead; pulsar-client asks for no more by itself."""
    consumer = dead.subscribe()
    dead.create("keep")
    encrypted(count)
    dead.fill(1)

    done = dead.redrive(rate=rate).run()

    assert (1, {"unreadable": count}) == (done.redriven, done.left)
    assert "encrypted" in " ".join(done.problems)
    assert (False, count) == (done.is_complete, dead.backlog())
    received(consumer, 1)


def test_they_do_not_stay_without_a_word(dead, encrypted, run, client) -> None:
    """The command says so, and fails; also among letters that wait."""
    dead.subscribe()
    encrypted(1, dead.retry)
    waiting = dead.properties(1, DELAY_TIME="3600000")
    client.create_producer(dead.retry).send(
        bytes(10), properties=waiting, deliver_after=timedelta(hours=1)
    )
    encrypted(2, dead.retry)
    dead.create("keep")
    encrypted(2)
    dead.fill(1)

    code, shown, errors = run("dlq", "show", dead.retry)
    assert 0 == code
    assert re.search(r"^1 +\d+ d +\d+ d +odd$", shown, re.MULTILINE)
    assert "3 entries" in errors
    code, shown, errors = run("discard", dead.dlq, "--all", "--yes")
    assert (1, True) == (code, "1 discarded" in shown)
    assert "2 stay: unreadable" in shown
    assert "some letters are encrypted or incomplete" in errors


@pytest.mark.parametrize("to", ["latest", "earliest"])
def test_a_seek_leaves_them_and_says_so(dead, encrypted, run, to) -> None:
    """The dry run, too; the other letters are moved."""
    dead.subscribe().close()
    dead.fill_retry(2, delay=3_600)
    encrypted(3, dead.retry)

    for way in ("--dry-run", "--yes"):
        code, shown, _ = run("seek", dead.topic, SUBSCRIPTION, "--to", to, way)
        assert 0 == code
        assert "letters: 3 unchanged, because they are encrypted or incomplete" in shown
    eventually(lambda: dead.admin.backlog(dead.retry, SUBSCRIPTION) == (3 if to == "latest" else 5))
