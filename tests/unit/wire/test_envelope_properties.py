"""Envelopes as properties: bounded, encodable, and read back, whoever wrote them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.wire.envelope import (
    MAX_ENVELOPE,
    READ,
    read_envelope,
    read_published,
    without_envelope,
)
from pulsar_retry.wire.properties import Origin, letter_properties

NOW = datetime(2026, 11, 21, 12, 0, 0, 123000, tzinfo=UTC)
ORIGIN = Origin("persistent://shop/eu/orders", "12:34:-1", "billing")

SHORT = st.text(min_size=1, max_size=20)
#: Anything that Python takes for text, and more of it than there is room for.
LONG = st.builds(
    lambda text, times: text * times, st.text(st.characters(), max_size=9), st.integers(1, 5000)
)
TIMES = st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001 - the zone follows
    lambda when: when.replace(microsecond=when.microsecond // 1000 * 1000)
)


def envelopes(text: st.SearchStrategy[str]) -> st.SearchStrategy[pr.Envelope]:
    """Return envelopes with such texts."""
    maybe = st.none() | text
    return st.builds(
        pr.Envelope,
        topic=st.none() | st.sampled_from(["persistent://shop/eu/orders", "orders"]) | text,
        subscription=maybe,
        published=st.none() | TIMES,
        reason=maybe,
        stage=maybe,
        error=maybe,
        message=maybe,
        traceback=maybe,
        fingerprint=maybe,
        attempt=st.none() | st.integers(1, 2**31 - 1),
        when=st.none() | TIMES,
    )


def carried(envelope: pr.Envelope) -> dict[str, str]:
    """Return what a letter says of an origin whatever else it says."""
    names = {"REAL_TOPIC": envelope.topic, "REAL_SUBSCRIPTION": envelope.subscription}
    return {name: text for name, text in names.items() if text is not None}


def size_of(properties: dict[str, str]) -> int:
    """Return the bytes of names and values."""
    return sum(len(name) + len(text.encode()) for name, text in properties.items())


@given(st.booleans(), envelopes(SHORT))
def test_what_is_written_reads_back(pubsub: bool, envelope: pr.Envelope) -> None:
    """To the last millisecond, with or without Pub/Sub's attributes."""
    assert envelope == read_envelope(
        carried(envelope) | envelope.to_properties(pubsub_attributes=pubsub)
    )


@given(st.booleans(), envelopes(LONG))
def test_an_envelope_is_bounded_and_encodable(pubsub: bool, envelope: pr.Envelope) -> None:
    """8 KiB with its names, and UTF-8, whatever there is to tell."""
    properties = envelope.to_properties(pubsub_attributes=pubsub)
    assert size_of(properties) <= MAX_ENVELOPE
    assert all(name.isascii() for name in properties)


@given(st.booleans(), envelopes(LONG))
def test_what_was_cut_is_not_cut_again(pubsub: bool, envelope: pr.Envelope) -> None:
    """An envelope that was read is written as it was."""
    envelope = attrs.evolve(envelope, topic="persistent://shop/eu/orders", subscription="billing")
    properties = envelope.to_properties(pubsub_attributes=pubsub)
    assert properties == read_envelope(carried(envelope) | properties).to_properties(
        pubsub_attributes=pubsub
    )


def test_there_is_room_for_what_matters() -> None:
    """With everything far too long, there is some of everything, and the end of the traceback."""
    long = "x" * 100_000
    texts = dict.fromkeys(("topic", "subscription", "reason", "stage", "error", "message"), long)
    envelope = pr.Envelope(
        **texts,
        fingerprint=long,
        traceback=f"{long}ValueError: no amount\n",
        attempt=50,
        when=NOW,
        published=NOW,
    )
    for pubsub in (False, True):
        properties = envelope.to_properties(pubsub_attributes=pubsub)
        read = read_envelope(properties)
        assert MAX_ENVELOPE == size_of(properties)
        assert len(read.message or "") >= 682
        assert (read.traceback or "").startswith("…x")
        assert (read.traceback or "").endswith("xValueError: no amount\n")
        assert len(read.traceback or "") > 500


def test_what_just_fits_is_whole() -> None:
    """One byte more, and the beginning is cut off."""
    room = size_of(pr.Envelope(traceback="x" * 9000).to_properties()) - len("FAILURE_TRACEBACK")
    for size, cut in ((room, False), (room + 1, True)):
        traceback = pr.Envelope(traceback="x" * size).to_properties()["FAILURE_TRACEBACK"]
        assert (cut, room) == (traceback.startswith("…"), len(traceback.encode()))


PROPERTIES = st.dictionaries(
    st.sampled_from(sorted(READ)) | st.text(max_size=5),
    st.text(st.characters(), max_size=20)
    | st.integers().map(str)
    | TIMES.map(datetime.isoformat)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=2),
    ).map(json.dumps),
    max_size=len(READ),
)


@given(st.booleans(), PROPERTIES)
@example(pubsub=False, properties={"FAILURE_TIME": "9" * 18})
@example(pubsub=False, properties={"FAILURE_TIME": "0001-01-01T00:00:00+23:59"})
def test_garbage_never_raises(pubsub: bool, properties: dict[str, str]) -> None:
    """What is read of it, too, can be written."""
    letter = pr.DeadLetter.read(properties, b"tea")
    assert size_of(letter.failure.to_properties(pubsub_attributes=pubsub)) <= MAX_ENVELOPE


@given(st.booleans(), st.text("0123456789", min_size=12, max_size=12))
def test_a_secret_leaves_in_no_spelling(pubsub: bool, secret: str) -> None:
    """Redaction comes before every text is written, however often."""
    error = ValueError(f"card {secret}")
    envelope = pr.Envelope.of(error, attempt=1, when=NOW, published=NOW, reason=f"card {secret}")
    properties = envelope.to_properties(
        pubsub_attributes=pubsub, redact=lambda _, text: text.replace(secret, "…")
    )
    assert "card …" == properties["FAILURE_MESSAGE"]
    assert not [name for name, text in properties.items() if secret in text]


def test_an_envelope_goes_with_its_letters() -> None:
    """Over retries into the dead letter: the origin stays, and nothing is stale."""
    pubsub, properties, origin = True, {"colour": "red"}, ORIGIN
    for attempt in (1, 2, 3):
        later = NOW + timedelta(seconds=attempt)
        envelope = pr.Envelope.of(
            None if attempt == 3 else ValueError("no amount"),
            attempt=attempt,
            when=later,
            published=read_published(properties) or later,
            reason="invalid" if attempt == 3 else None,
        )
        properties = letter_properties(
            without_envelope(properties, pubsub=pubsub),
            origin,
            count=attempt,
            delay=1,
            retry_topic="persistent://shop/eu/orders-billing-RETRY",
            custom=envelope.to_properties(pubsub_attributes=pubsub),
        )
        origin = Origin("persistent://shop/eu/orders-billing-RETRY", f"5:{attempt}:-1", "billing")
    letter = pr.DeadLetter.read(properties)
    assert {"colour": "red"} == letter.properties
    assert ("invalid", None, None, 3) == (
        letter.failure.reason,
        letter.failure.error,
        letter.failure.message,
        letter.failure.attempt,
    )
    assert ("persistent://shop/eu/orders", "12:34:-1", NOW + timedelta(seconds=1)) == (
        letter.failure.topic,
        letter.failure.message_id,
        letter.failure.published,
    )
    assert "FAILURE_MESSAGE" not in properties


# -- what other systems read ----------------------------------------------------------------------

ENVELOPE = pr.Envelope(
    topic="persistent://shop/eu/orders",
    subscription="billing",
    published=NOW,
    reason="invalid",
    error="ValueError",
    message="no amount",
    traceback="Traceback …",
    attempt=5,
)


def added(**options: bool) -> dict[str, str]:
    """Return what is written beside our own properties."""
    properties = ENVELOPE.to_properties(**options)  # type: ignore[arg-type]
    return {name: text for name, text in properties.items() if not name.startswith("FAILURE_")}


def test_a_letter_has_what_every_letter_has() -> None:
    """Java, Go and TDMQ know no properties of failures."""
    assert {} == added() == added(pubsub_attributes=False)


def test_pubsubs_attributes() -> None:
    """Those of a message that Pub/Sub has forwarded from a subscription that is no export."""
    assert {
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "billing",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "shop",
        "CloudPubSubDeadLetterSourceTopicPublishTime": "2026-11-21T12:00:00.123+00:00",
    } == added(pubsub_attributes=True)
    unknown = pr.Envelope(subscription="billing").to_properties(pubsub_attributes=True)
    assert {"CloudPubSubDeadLetterSourceSubscription": "billing"} == unknown


@pytest.mark.parametrize("pubsub", [False, True])
def test_stripping_takes_what_is_written_and_no_more(pubsub: bool) -> None:
    """A message's own properties stay."""
    own = {
        "colour": "red",
        "FAILURE_RULE": "amount",
        "CloudPubSubDeadLetterSourceDeliveryErrorMessage": "no table",
    }
    written = ENVELOPE.to_properties(pubsub_attributes=pubsub)
    assert own == without_envelope(own | written, pubsub=pubsub)
    theirs = {"CloudPubSubDeadLetterSourceDeliveryCount": "2"}
    assert ({} if pubsub else theirs) == without_envelope(theirs, pubsub=pubsub)


# -- what others have written ---------------------------------------------------------------------

MAIN = "persistent://public/default/orders"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        pytest.param({}, pr.Envelope(), id="nothing"),
        pytest.param(
            {"ORIGIN_MESSAGE_ID": "1:2:-1"}, pr.Envelope(message_id="1:2:-1"), id="an origin alone"
        ),
        pytest.param(
            {
                "REAL_TOPIC": MAIN,
                "ORIGIN_MESSAGE_IDY_TIME": "12:34:-1",
                "ORIGIN_MESSAGE_ID": "12:34:-1",
                "REAL_SUBSCRIPTION": "billing",
                "RECONSUMETIMES": "17",
                "DELAY_TIME": "10000",
            },
            pr.Envelope(topic=MAIN, subscription="billing", message_id="12:34:-1", attempt=17),
            id="Java",
        ),
        pytest.param(
            {"REAL_TOPIC": MAIN, "ORIGIN_MESSAGE_IDY_TIME": "12033:201:0", "RECONSUMETIMES": "3"},
            pr.Envelope(topic=MAIN, message_id="12033:201:0", attempt=3),
            id="Go",
        ),
        pytest.param(
            {
                "REAL_TOPIC": MAIN,
                "RETRY_TOPIC": "persistent://public/default/billing-retry",
                "ORIGIN_MESSAGE_ID": "{12 34 0 0}",
                "RECONSUMETIMES": "17",
                "DELAY_TIME": "7200000",
                "DELAY": "18",
            },
            pr.Envelope(topic=MAIN, message_id="{12 34 0 0}", attempt=17),
            id="TDMQ",
        ),
        pytest.param(
            {"REAL_TOPIC": MAIN, "ORIGIN_MESSAGE_ID": "(12,34,-1,-1)"},
            pr.Envelope(topic=MAIN, message_id="12:34:-1"),
            id="pulsar-client",
        ),
        pytest.param(
            {
                "CloudPubSubDeadLetterSourceDeliveryCount": "5",
                "CloudPubSubDeadLetterSourceSubscription": "billing",
                "CloudPubSubDeadLetterSourceSubscriptionProject": "shop",
                "CloudPubSubDeadLetterSourceTopicPublishTime": "2026-11-21T12:00:00.123+00:00",
                "CloudPubSubDeadLetterSourceDeliveryErrorMessage": "no such table",
            },
            pr.Envelope(subscription="billing", published=NOW, attempt=5, message="no such table"),
            id="Pub/Sub",
        ),
        pytest.param(
            {
                "FAILURE_REASON": "range",
                "FAILURE_ERROR": "CHECK",
                "FAILURE_MESSAGE": "amount below 0",
                "FAILURE_STAGE": "validate",
                "FAILURE_TIME": "2026-11-21T12:00:00.123Z",
                "RECONSUMETIMES": "1",
            },
            pr.Envelope(
                reason="range",
                error="CHECK",
                message="amount below 0",
                stage="validate",
                when=NOW,
                attempt=1,
            ),
            id="Spark rows",
        ),
    ],
)
def test_everybodys_dead_letters_are_read(properties: dict, expected: pr.Envelope) -> None:
    """One value, whoever wrote it, and none of it is among the message's own properties."""
    letter = pr.DeadLetter.read(properties | {"colour": "red"}, b"tea")
    assert pr.DeadLetter(expected, b"tea", 0, {"colour": "red"}) == letter


def test_the_highest_count_holds() -> None:
    """A letter that we wrote first and Java then has our count of then."""
    properties = {
        "FAILURE_ATTEMPT": "1",
        "RECONSUMETIMES": "17",
        "CloudPubSubDeadLetterSourceDeliveryCount": "many",
    }
    assert 17 == read_envelope(properties).attempt


@attrs.frozen
class FakeMessage:
    """A message as far as a dead letter is read of it."""

    carried: dict[str, str] | None
    payload: bytes | None = b"tea"

    def properties(self) -> dict[str, str]:
        """Return the properties, or fail as pulsar-client does where one is no UTF-8."""
        return b"\xff".decode() if self.carried is None else self.carried  # type: ignore[return-value]

    def data(self) -> bytes:
        """Return the payload."""
        return self.payload or b""

    def has_null_value(self) -> bool:
        """Tell whether there is none."""
        return self.payload is None

    def redelivery_count(self) -> int:
        """Return none."""
        return 0


def test_a_message_is_a_dead_letter() -> None:
    """With its bytes as they are, and how often it was redriven."""
    letter = pr.DeadLetter.of(FakeMessage({"REDRIVE_COUNT": "2", "colour": "red"}, b"\xfftea"))
    assert pr.DeadLetter(pr.Envelope(), b"\xfftea", 2, {"colour": "red"}) == letter
    assert pr.DeadLetter.of(FakeMessage({}, None)).payload is None


def test_properties_that_are_no_text_are_none() -> None:
    """pulsar-client cannot tell them, but the payload is there."""
    assert pr.DeadLetter(pr.Envelope(), b"tea") == pr.DeadLetter.of(FakeMessage(None))


def test_the_first_publish_time_that_can_be_read_is_taken() -> None:
    """Ours before those of others, and garbage counts as absent."""
    others = {"CloudPubSubDeadLetterSourceTopicPublishTime": "1970-01-01T00:00:01+00:00"}
    assert 1.0 == published({"FAILURE_PUBLISH_TIME": "soon", **others})
    assert 3.0 == published({"FAILURE_PUBLISH_TIME": "1970-01-01T00:00:03Z", **others})
    assert published({"FAILURE_PUBLISH_TIME": ""}) is None


@pytest.mark.parametrize("text", ["2026-11-21T14:00:00.123+02:00", "2026-11-21T12:00:00.123"])
def test_a_time_is_utc(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it does not say another zone; wherever the program runs."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "EST5")
        time.tzset()
        when = read_published({"FAILURE_PUBLISH_TIME": text})
    time.tzset()
    assert (NOW, UTC) == (when, when and when.tzinfo)


def published(properties: dict[str, str]) -> float | None:
    """Return the publish time that is read, in seconds since 1970."""
    when = read_published(properties)
    return when and when.timestamp()
