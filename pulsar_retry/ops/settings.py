"""Checks what settings of brokers, namespaces and topics mean for letters. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import attrs

from pulsar_retry.policy.backoff import Levels
from pulsar_retry.policy.checks import text_of

Verdict = Literal["ok", "warning", "error", "unknown"]


@attrs.frozen
class CheckResult:
    """The result of one check.

    Attributes:
        check: The name of the check.
        verdict: ``ok``, ``warning``, ``error``, or ``unknown`` if it could not be checked.
        text: What was found, and what to do about it.
    """

    check: str
    verdict: Verdict
    text: str


_BUCKETS = "BucketDelayedDeliveryTrackerFactory"
#: The first releases in which this tracker loses no letters, one for each release line.
_FIXED_IN = ((4, 0, 13), (4, 2, 4))
_RANGES = "managedLedgerMaxUnackedRangesToPersist"
_LOOKAHEAD = "delayedDeliveryFixedDelayDetectionLookahead"
_WHEN_IDLE = "delete_when_no_subscriptions"
_LEVELS = Levels().delays


def of_delays(topic: str, policy: Mapping[str, Any] | None) -> Iterator[CheckResult]:
    """Check the delayed delivery of a retry topic; *policy* is None if it is not known."""
    name = "delayed delivery"
    if policy is None:
        yield CheckResult(
            name, "unknown", f"the broker does not report which policy applies to {topic}"
        )
        return
    if not policy.get("active", True):
        text = "off: retry letters are delivered at once (delayedDeliveryEnabled, or its policy)"
        yield CheckResult(name, "error", text)
        return
    tick, most = policy.get("tickTime", 0) / 1000, policy.get("maxDeliveryDelayInMillis", 0) / 1000
    faults = []
    if tick > min(_LEVELS):
        faults.append(
            f"letters are delivered up to a tick of {text_of(tick)} early or late, which is more "
            f"than the shortest delay level of {text_of(min(_LEVELS))} "
            "(delayedDeliveryTickTimeMillis)"
        )
    if 0 < most < max(_LEVELS):
        faults.append(
            f"the broker refuses delays above {text_of(most)} (maxDeliveryDelayInMillis), but the "
            f"default delay levels go up to {text_of(max(_LEVELS))}: use shorter delays"
        )
    if faults:
        yield CheckResult(name, "warning", "; ".join(faults))
    else:
        yield CheckResult(name, "ok", f"on, with a tick of {text_of(tick)}")


def of_quota(topics: Mapping[str, Mapping[str, Any] | None]) -> Iterator[CheckResult]:
    """Check the backlog quotas of topics. Those with equal quotas are one result."""
    found: dict[tuple[Verdict, str], list[str]] = {}
    for topic, quotas in topics.items():
        for quota in (quotas or {}).values():
            size, seconds = quota.get("limitSize", -1), quota.get("limitTime", -1)
            limits = [f"{size:,} bytes"] * (size > 0) + [f"{seconds} s"] * (seconds > 0)
            beyond = f"beyond a backlog of {' or '.join(limits)}"
            verdict: Verdict = "warning"
            text = f"{beyond} nothing can be published ({quota.get('policy')})"
            if quota.get("policy") == "consumer_backlog_eviction":
                verdict, text = "error", f"{beyond} the broker deletes unacknowledged messages"
            if limits:
                found.setdefault((verdict, text), []).append(topic)
    for (verdict, text), where in found.items():
        yield CheckResult("backlog quota", verdict, f"{text}: {', '.join(where)}")
    if topics and not found:
        yield CheckResult("backlog quota", "ok", "none")


def of_inactivity(
    topic: str, policy: Mapping[str, Any] | None, *, kept: bool
) -> Iterator[CheckResult]:
    """Check when an unused topic is deleted; *kept* tells whether it has a subscription."""
    if policy is None or not policy.get("deleteWhileInactive"):
        return
    after = f"{policy.get('maxInactiveDurationSeconds')} s without use"
    if policy.get("inactiveTopicDeleteMode") != _WHEN_IDLE:
        text = f"{topic} is deleted after {after}, with its subscriptions, once they are caught up"
        yield CheckResult("inactive topics", "warning", text)
    elif not kept:
        text = f"{topic} has no subscription: it is deleted with all its letters after {after}"
        yield CheckResult("inactive topics", "error", text)


def of_expiry(namespace: str, minutes: int | None) -> Iterator[CheckResult]:
    """Check when unused subscriptions expire; *minutes* is None if it is not known."""
    name = "subscription expiry"
    if minutes is None:
        yield _hidden(name, "subscriptionExpirationTimeMinutes")
    elif minutes > 0:
        text = (
            f"subscriptions in {namespace} that nobody uses for {minutes} min are deleted with "
            "their backlog, such as the one that keeps dead letters"
        )
        yield CheckResult(name, "error", text)
    else:
        yield CheckResult(name, "ok", "never")


def of_broker(settings: Mapping[str, str] | None, version: str) -> Iterator[CheckResult]:
    """Check the broker's own *settings*; they are None if this role may not read them."""
    if settings is None:
        yield _hidden("batches", "acknowledgmentAtBatchIndexLevelEnabled")
        return
    if settings.get("acknowledgmentAtBatchIndexLevelEnabled") == "false":
        text = (
            "the broker does not acknowledge single messages of a batch: if one message is "
            "redelivered, its whole batch is (acknowledgmentAtBatchIndexLevelEnabled)"
        )
        yield CheckResult("batches", "warning", text)
    else:
        yield CheckResult("batches", "ok", "single messages of a batch are acknowledged")
    tracker = settings.get("delayedDeliveryTrackerFactoryClassName", "").rpartition(".")[2]
    if tracker == _BUCKETS and not _is_fixed(version):
        text = f"{tracker} of Pulsar {version} can lose letters: update to 4.0.13, 4.2.4 or newer"
        yield CheckResult("delay tracker", "error", text)


def of_waiting(settings: Mapping[str, str] | None, waiting: int) -> Iterator[CheckResult]:
    """Check what *waiting* letters, at most on one topic or partition, mean for the broker.

    Letters are acknowledged in the order of their due times, which leaves gaps; a broker before 5.0
    stores 10,000 acknowledged ranges. And it stops reading after so many letters of one delay.
    """
    if settings is None:
        yield _hidden("waiting letters", f"{_RANGES} and {_LOOKAHEAD}")
        return
    ranges, lookahead = (int(settings.get(each, 0) or 0) for each in (_RANGES, _LOOKAHEAD))
    faults = []
    if 0 < ranges < waiting:
        faults.append(
            f"the broker stores {ranges:,} acknowledged ranges, and may deliver some of them again "
            f"after a restart ({_RANGES}; Pulsar 5.0 has 200,000)"
        )
    if 0 < lookahead <= waiting:
        faults.append(
            f"if the first {lookahead:,} have the same delay, the broker does not read the letters "
            "behind them until the first is due, even if their delays are shorter: use different "
            f"delays (jitter) or partitions, or set {_LOOKAHEAD}=0"
        )
    text = f"{waiting:,} at most on one topic or partition"
    yield CheckResult("waiting letters", "warning" if faults else "ok", "; ".join([text, *faults]))


def of_creation(
    off: Sequence[str], missing: Sequence[str], hidden: Sequence[str] = ()
) -> Iterator[CheckResult]:
    """Check whether what is missing is created when it is needed.

    Args:
        off: The settings that forbid the automatic creation of topics or subscriptions.
        missing: The topics and subscriptions that are missing and would not be created, in words.
        hidden: The settings of the same kind that this role may not read.
    """
    name, settings = "creation", " and ".join(off)
    if missing:
        text = f"{', '.join(missing)} is missing, and is not created automatically ({settings})"
        yield CheckResult(name, "error", f"{text}: create it")
    elif hidden:
        yield _hidden(name, " and ".join(hidden))
    elif off:
        yield CheckResult(name, "ok", f"not automatic ({settings}), and nothing is missing")
    else:
        yield CheckResult(name, "ok", "automatic")


def of_publishing(
    namespace: str, *, must_encrypt: bool, must_have_schema: bool
) -> Iterator[CheckResult]:
    """Check what producers of a namespace need."""
    if must_encrypt:
        text = (
            f"producers in {namespace} must encrypt (encryptionRequired): consumers need an "
            "encryption key for letters, and commands, which have none, cannot redrive"
        )
        yield CheckResult("encryption", "warning", text)
    if must_have_schema:
        text = (
            f"producers in {namespace} must have the schema of a topic that has one "
            "(schemaValidationEnforced): letters of messages without a schema are refused there"
        )
        yield CheckResult("schemas", "warning", text)


def _is_fixed(version: str) -> bool:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if match is None:
        return False
    found = tuple(map(int, match.groups()))
    same_line = [each for each in _FIXED_IN if each[:2] == found[:2]]
    return found >= (same_line or [max(_FIXED_IN)])[0]


def _hidden(check: str, setting: str) -> CheckResult:
    return CheckResult(check, "unknown", f"this role may not ask the broker for {setting}")
