"""The pure decisions of a redrive: which letters, how fast, what they carry, whose they are."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_retry as pr
from pulsar_retry.replay import Cluster, Filter, Redrive
from pulsar_retry.wire.dead_letter import RedriveProperties, dedupe_id, next_redrive
from pulsar_retry.wire.names import kind_of
from pulsar_retry.wire.owner import Owner

ROOT = "persistent://public/default"
TEXTS = st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5)
WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
LETTER = {
    "FAILURE_REASON": "invalid",
    "FAILURE_ERROR": "ValueError",
    "FAILURE_FINGERPRINT": "abc",
    "FAILURE_TIME": "2026-01-31T12:00:00Z",
    "shop": "7",
}


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        (Filter(), True),
        (Filter(reason="invalid"), True),
        (Filter(reason=("timeout", "invalid")), True),
        (Filter(reason="timeout"), False),
        (Filter(error="ValueError", fingerprint="abc"), True),
        (Filter(error="ValueError", fingerprint="other"), False),
        (Filter(properties={"shop": "7"}), True),
        (Filter(properties={"shop": "7", "town": "Rome"}), False),
        (Filter(key="k"), True),
        (Filter(key="other"), False),
        (Filter(since=WHEN), True),
        (Filter(since=WHEN + timedelta(seconds=1)), False),
        (Filter(until=WHEN), False),
        (Filter(until=WHEN + timedelta(seconds=1)), True),
    ],
)
def test_a_letter_has_to_fit_everything(where, fits) -> None:
    """Of several values one."""
    assert fits == where.matches(LETTER, "k", WHEN + timedelta(days=9))


def test_a_letter_that_does_not_say_when_it_failed() -> None:
    """Then the time that it was published at counts."""
    assert Filter(since=WHEN).matches({}, None, WHEN)
    assert not Filter(since=WHEN).matches({}, None, WHEN - timedelta(seconds=1))


def test_a_time_that_cannot_be() -> None:
    """No letter is dead since a time and before an earlier one."""
    with pytest.raises(pr.ConfigError, match="until: expected a time after since"):
        Filter(since=WHEN, until=WHEN)


def test_a_time_needs_a_zone() -> None:
    """Or it would mean another one elsewhere."""
    with pytest.raises(pr.ConfigError, match="since="):
        Filter(since=datetime(2026, 1, 1))  # noqa: DTZ001 - it is what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": "a/b"},
        {"to": ""},
        {"to": "orders-billing-DLQ"},
        {"to": 7},
        {"rate": 0},
        {"rate": -1},
        {"rate": math.inf},
        {"limit": 0},
        {"limit": 1.5},
        {"max_redrives": -1},
        {"max_redrives": None},
        {"naming": "esperanto"},
        {"topic": "orders", "to": "discard"},
        {"subscription": "billing", "to": "discard"},
    ],
)
def test_what_a_redrive_does_not_accept(wrong) -> None:
    """It is said before anything is opened: nothing listens there."""
    arguments = {"source": "orders-billing-DLQ", "cluster": Cluster("pulsar://127.0.0.1:1")}
    with pytest.raises(pr.ConfigError, match=next(iter(wrong))):
        Redrive(**(arguments | wrong))


@given(TEXTS, st.integers(0, 10), st.integers(0, 10))
def test_the_bound_holds(properties, count, maximum) -> None:
    """What was brought back so often is not brought back."""
    number = next_redrive({**properties, "REDRIVE_COUNT": str(count)}, maximum)
    assert (count + 1 if count < maximum else None) == number


@given(TEXTS, st.text(), st.integers(1, 9))
def test_one_letter_has_one_id(properties, position, count) -> None:
    """The same each time, and another one in its next redrive."""
    first = dedupe_id(properties, position, count)
    assert first == dedupe_id(dict(properties), position, count)
    assert first != dedupe_id(properties, position, count + 1)
    elsewhere = dedupe_id(properties, f"{position}0", count)
    assert bool(properties.get("DEDUPE_ID")) == (first == elsewhere)


def test_ids_do_not_change_between_versions() -> None:
    """A redrive that goes on with a newer one makes the same copies."""
    assert "2106da307478f9b38f37665b848e090f" == dedupe_id({}, "dlq 1:2:-1", 1)
    assert dedupe_id({}, "own", 1) == dedupe_id({"DEDUPE_ID": "own"}, "dlq 1:2:-1", 1)


SYSTEM = {
    "REAL_TOPIC": f"{ROOT}/orders",
    "REAL_SUBSCRIPTION": "billing",
    "RETRY_TOPIC": f"{ROOT}/orders-billing-RETRY",
    "ORIGIN_MESSAGE_ID": "1:2:-1",
    "ORIGIN_MESSAGE_IDY_TIME": "1:2:-1",
    "RECONSUMETIMES": "3",
    "DELAY_TIME": "1000",
    "DELAY": "2",
    "FAILURE_STAMP": "7",
    "FAILURE_CRASHES": "2",
    "FAILURE_PUBLISH_TIME": "2026-01-01T00:00:00.000Z",
}


OWNER = Owner(f"{ROOT}/orders", "billing", f"{ROOT}/orders-billing-RETRY")
NAMES = {
    "REAL_TOPIC": OWNER.topic,
    "REAL_SUBSCRIPTION": OWNER.subscription,
    "RETRY_TOPIC": OWNER.retry,
}
TARGETS = st.sampled_from(["retry", "origin", f"{ROOT}/workbench"])


def redriven(written: RedriveProperties, properties: dict[str, str]) -> dict[str, str]:
    """Return what a letter carries."""
    return written.build(properties, count=2, position="dlq 1:2:-1", owner=OWNER)


@given(TEXTS, TARGETS, st.sampled_from(pr.Naming), st.booleans(), st.booleans())
def test_what_is_the_messages_own_stays(properties, to, naming, keep_failure, keep_attempts):
    """Wherever it goes, and whatever else is kept; DELAY is a level only in TDMQ's dialects."""
    own = {f"own {name}": text for name, text in properties.items()}
    written = RedriveProperties("job", to, naming, keep_failure, keep_attempts)
    failures = {"FAILURE_REASON", "FAILURE_RULE", "CloudPubSubDeadLetterSourceDeliveryCount"}
    sent = {**own, **SYSTEM, **dict.fromkeys(failures, "1"), **LETTER}

    found = redriven(written, sent)

    assert own.items() <= found.items()
    assert dedupe_id(sent, "dlq 1:2:-1", 2) == found["DEDUPE_ID"]
    assert ("2", "job") == (found["REDRIVE_COUNT"], found["REDRIVE_ID"])
    assert (failures if keep_failure else set()) == failures & set(found)
    assert keep_attempts == ("RECONSUMETIMES" in found)
    assert naming.is_tdmq == ("DELAY" not in found)
    gone = {"DELAY_TIME", "FAILURE_STAMP", "FAILURE_CRASHES", "FAILURE_PUBLISH_TIME"}
    assert not gone & set(found)


@pytest.mark.parametrize("properties", [{}, SYSTEM, {**SYSTEM, "REAL_SUBSCRIPTION": "copied"}])
@pytest.mark.parametrize(
    ("to", "keep_attempts", "names"),
    [
        ("retry", False, 3),
        ("retry", True, 3),
        ("origin", True, 2),
        ("origin", False, 0),
        ("elsewhere", True, 0),
    ],
)
def test_the_targets_names_are_written(properties, to, keep_attempts, names) -> None:
    """Where the dead letter had none too, or copied ones; a copied origin is not kept."""
    written = RedriveProperties("job", to, keep_attempts=keep_attempts)
    found = redriven(written, properties)

    assert dict(list(NAMES.items())[:names]) == {n: found[n] for n in NAMES if n in found}
    is_own = properties.get("REAL_SUBSCRIPTION") == "billing"
    assert ("ORIGIN_MESSAGE_ID" in found) == (to == "retry" and is_own)


@pytest.mark.parametrize(
    ("topic", "kind"),
    [
        ("a-b-RETRY", "retry"),
        ("b-retry", "retry"),
        ("a-b-DLQ", "dead_letter"),
        ("b-dlq", "dead_letter"),
        ("a-b", None),
        ("DLQ", None),
        ("a-Dlq", None),
    ],
)
def test_letter_topics_are_known_by_their_names(topic, kind) -> None:
    """In any dialect."""
    assert kind == kind_of(topic)
