"""The producers of letters: one per topic, made on first use, and again when one is lost."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.consumer.handoff import producers
from pulsar_retry.consumer.handoff.producers import LetterProducers, Outlet
from pulsar_retry.consumer.handoff.sending import CallbackSender
from pulsar_retry.runtime.worker import side_by_side

RETRY = "persistent://public/default/orders-billing-RETRY"
DLQ = "persistent://public/default/orders-billing-DLQ"
SCHEMA = pulsar.schema.StringSchema()


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class RawProducer:
    """pulsar-client's producer."""

    def __init__(self) -> None:
        self.closed = False

    def producer_name(self) -> str:
        """Return its name."""
        return "letters-1"

    def close(self) -> None:
        """Close it."""
        self.closed = True


class Producer:
    """pulsar-client's Python producer around it."""

    def __init__(self) -> None:
        self._producer = RawProducer()


class Creations:
    """What was asked of pulsar-client, and what it is to answer next."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.fail: list[Exception] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, _client: Any, topic: str, **options: Any) -> Producer:
        self.asked.append({"topic": topic, **options})
        self.meanwhile()
        if self.fail:
            raise self.fail.pop(0)
        return Producer()


@pytest.fixture
def creations(monkeypatch: pytest.MonkeyPatch) -> Creations:
    """Put a record in the place of `pulsar.Client.create_producer`."""
    creations = Creations()
    monkeypatch.setattr(producers.BareClient, "create_producer", creations)
    return creations


@pytest.fixture
def clock() -> Clock:
    """Return the time of `letters`."""
    return Clock()


@pytest.fixture
def prepared() -> list[str]:
    """Return the dead-letter topics that were prepared."""
    return []


@pytest.fixture
def letters(creations: Creations, clock: Clock, prepared: list[str]) -> LetterProducers:
    """Return the producers of one consumer."""
    return made_of(send_timeout=2.5, prepare_dead_letters=prepared.append, clock=clock)


def sender_of(raw: Any) -> Any:
    """Return what sends letters with a raw producer."""
    return CallbackSender(raw, lambda _: None)


def made_of(*, prepare_dead_letters: Callable[[str], None], **options: Any) -> LetterProducers:
    """Return producers of a client that is not used."""
    options |= {"schema": SCHEMA, "dead_letter_subscription": None}
    letters = LetterProducers(SimpleNamespace(), sender_of, **options)  # type: ignore[arg-type]
    letters._prepare_dead_letters = prepare_dead_letters  # type: ignore[method-assign]
    return letters


def outlet(
    letters: LetterProducers, topic: str = RETRY, schema: Any = SCHEMA, *, named: bool = False
) -> Outlet:
    """Return the way to *topic*."""
    return letters.outlet(topic, schema, dead=topic == DLQ, named=named)


def get(letters: LetterProducers, topic: str = RETRY, schema: Any = SCHEMA) -> Any:
    """Return what sends letters to *topic*."""
    return letters.open(outlet(letters, topic, schema))


def test_a_producer_is_unbatched_and_chunks(letters: LetterProducers, creations: Creations) -> None:
    """Delays need single messages, big ones need chunks, and a fixed name would collide."""
    letters.open(outlet(letters, named=True))
    letters.open(outlet(letters, DLQ, named=True))
    names = {each["producer_name"] for each in creations.asked}
    assert 2 == len(names)
    assert all(name.startswith("pulsar-retry-") for name in names)
    assert [
        {
            "topic": RETRY,
            "producer_name": creations.asked[0]["producer_name"],
            "schema": SCHEMA,
            "send_timeout_millis": 2500,
            "max_pending_messages": 0,
            "batching_enabled": False,
            "chunking_enabled": True,
        }
    ] == creations.asked[:1]


def test_letters_without_an_identity_are_of_unnamed_producers(
    letters: LetterProducers, creations: Creations
) -> None:
    """The broker gives these a name."""
    get(letters)
    assert creations.asked[0]["producer_name"] is None


def test_each_topic_and_schema_has_its_own(letters: LetterProducers) -> None:
    """Letters of one schema must not be published under another."""
    made = [get(letters), get(letters, DLQ), get(letters, RETRY, pulsar.schema.BytesSchema())]
    assert 3 == len({id(producer) for producer in made})


def test_only_dead_letter_topics_are_prepared(
    letters: LetterProducers, creations: Creations, prepared: list[str]
) -> None:
    """Their initial subscription is there before the producer is made."""
    at_creation: list[list[str]] = []
    creations.meanwhile = lambda: at_creation.append(list(prepared))
    get(letters)
    get(letters, DLQ)
    assert [[], [DLQ]] == at_creation


def test_a_subscription_that_is_deleted_is_made_again(
    letters: LetterProducers, creations: Creations, prepared: list[str], clock: Clock
) -> None:
    """A dead letter looks after it again after a minute; the producer stays."""
    dead, retry = get(letters, DLQ), get(letters)
    clock.now += 59.9
    assert dead is outlet(letters, DLQ).ready()
    clock.now += 0.1
    assert outlet(letters, DLQ).ready() is None
    assert retry is outlet(letters).ready()
    assert dead is get(letters, DLQ) is outlet(letters, DLQ).ready()
    assert [DLQ, DLQ] == prepared
    assert 2 == len(creations.asked)


@pytest.mark.parametrize("tries", [1, 2])
def test_a_missing_right_is_named(
    letters: LetterProducers, creations: Creations, tries: int
) -> None:
    """Also within the backoff, where the broker is not asked."""
    creations.fail = [pulsar.AuthorizationError("no")]
    for _ in range(tries):
        with pytest.raises(pr.LetterPublishError) as caught:
            get(letters)
    assert (
        f"could not publish to {RETRY}: the role of this client may not produce there (no)"
        == str(caught.value)
    )
    assert 1 == len(creations.asked)


def test_the_backoff_grows_and_ends_with_success(
    letters: LetterProducers, creations: Creations, clock: Clock
) -> None:
    """100 ms, 200 ms, … and from the beginning again after a success."""
    creations.fail = [pulsar.Timeout("t"), pulsar.Timeout("t"), pulsar.Timeout("t")]
    for pause in (0.1, 0.2, 0.4):
        with pytest.raises(pr.LetterPublishError):
            get(letters)
        clock.now += pause - 0.001
        with pytest.raises(pr.LetterPublishError):
            get(letters)
        clock.now += 0.002
    outlet(letters).lost(get(letters))
    creations.fail = [pulsar.Timeout("t")]
    with pytest.raises(pr.LetterPublishError):
        get(letters)
    clock.now += 0.101
    assert outlet(letters).ready() is None
    assert get(letters) is outlet(letters).ready()
    assert 6 == len(creations.asked)


def test_one_topics_trouble_is_not_anothers(letters: LetterProducers, creations: Creations) -> None:
    """The dead-letter topic works while the retry topic does not."""
    creations.fail = [pulsar.Timeout("t")]
    with pytest.raises(pr.LetterPublishError):
        get(letters)
    assert get(letters, DLQ) is outlet(letters, DLQ).ready()


def test_a_subscription_that_cannot_be_made_is_a_failure_too(creations: Creations) -> None:
    """A dead letter that the broker may drop is not published."""

    def refuse(topic: str) -> None:
        raise pulsar.AuthorizationError(topic)

    letters = made_of(send_timeout=1, prepare_dead_letters=refuse, clock=Clock())
    with pytest.raises(pr.LetterPublishError, match=r"may not consume.*_name=None if"):
        get(letters, DLQ)
    assert [] == creations.asked


def test_what_keeps_dead_letters_is_checked_after_them(
    letters: LetterProducers, prepared: list[str]
) -> None:
    """Once, when no more come; and at closing, if that has not happened yet."""
    get(letters)
    letters.check_kept()
    assert [] == prepared
    get(letters, DLQ)
    for _ in range(2):
        letters.check_kept()
        assert [DLQ] * 2 == prepared
    get(letters, DLQ)
    for close in letters.closing():
        close()
    assert [DLQ] * 4 == prepared


def test_a_topic_is_checked_once_before_its_producers_are_closed(
    creations: Creations, clock: Clock
) -> None:
    """Whatever number of schemas its letters have, and also if that fails."""
    open_at_checks: list[int] = []
    made: list[Any] = []

    def prepare(_: str) -> None:
        time.sleep(0.01 * len(made))  # so that a producer could be closed meanwhile
        open_at_checks.append(sum(not each.raw.closed for each in made))
        if made:
            raise pulsar.Timeout("t")

    letters = made_of(send_timeout=1, prepare_dead_letters=prepare, clock=clock)
    made += [get(letters, DLQ, pulsar.schema.StringSchema()) for _ in range(5)]
    side_by_side(letters.closing())
    assert [0, 5] == open_at_checks
    assert all(each.raw.closed for each in made)


def test_a_check_that_fails_is_repeated(creations: Creations, clock: Clock) -> None:
    """After longer and longer pauses; meanwhile no dead letter is published."""
    asked: list[float] = []

    def prepare(_: str) -> None:
        asked.append(clock.now)
        if 2 <= len(asked) < 12:
            raise pulsar.Timeout("t")

    letters = made_of(send_timeout=1, prepare_dead_letters=prepare, clock=clock)
    get(letters, DLQ)
    clock.now += 60
    while len(asked) < 12:
        assert outlet(letters, DLQ).ready() is None
        with contextlib.suppress(pr.LetterPublishError):
            get(letters, DLQ)
        clock.now += 0.05
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked[1:])]
    assert pauses == sorted(pauses)
    assert 10 < pauses[-1] <= 31
    assert get(letters, DLQ) is outlet(letters, DLQ).ready()


def test_an_old_loss_does_not_cost_the_new_producer(letters: LetterProducers) -> None:
    """A thousand letters fail with a producer; only the first of them makes a new one."""
    lost = get(letters)
    outlet(letters).lost(lost)
    new = get(letters)
    outlet(letters).lost(lost)
    assert new is outlet(letters).ready()


@pytest.mark.parametrize(("topic", "refusals", "asked"), [(DLQ, 1, 2), (DLQ, 2, 2), (RETRY, 1, 1)])
def test_a_refused_schema(
    letters: LetterProducers,
    creations: Creations,
    caplog: pytest.LogCaptureFixture,
    topic: str,
    refusals: int,
    asked: int,
) -> None:
    """Dead letters fall back to bytes, once, with a warning; retry letters are to be decoded."""
    creations.fail = [pulsar.IncompatibleSchema("no") for _ in range(refusals)]
    error = pytest.raises(pr.LetterPublishError)
    with contextlib.nullcontext() if refusals < asked else error:
        get(letters, topic)
    kinds = [type(each["schema"]) for each in creations.asked]
    assert [pulsar.schema.StringSchema, pulsar.schema.BytesSchema][:asked] == kinds
    assert asked - 1 == sum(DLQ in each for each in caplog.messages)


@pytest.mark.parametrize("fails", [False, True])
def test_ten_threads_make_one_attempt(
    letters: LetterProducers, creations: Creations, fails: bool
) -> None:
    """Whoever comes meanwhile waits for it, and gets the same producer, or the error."""
    everybody = threading.Barrier(10)
    creations.fail = [pulsar.Timeout("t")] * fails

    def get_together() -> Any:
        everybody.wait()
        try:
            return get(letters)
        except pr.LetterPublishError as error:
            return type(error)

    with ThreadPoolExecutor(10) as pool:
        made = {each.result() for each in [pool.submit(get_together) for _ in range(10)]}
    assert fails == (made == {pr.LetterPublishError})
    assert (1, 1) == (len(made), len(creations.asked))


def test_closing_closes_every_producer(
    letters: LetterProducers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, and also if the broker has closed one of them before."""

    def refuse() -> None:
        raise pulsar.AlreadyClosed("closed")

    first, second = get(letters), get(letters, DLQ)
    monkeypatch.setattr(first.raw, "close", refuse)
    side_by_side(letters.closing())
    assert second.raw.closed
    assert [] == letters.closing()
