"""The letter for a message that is handed on. Consumers and subscribers publish it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan
from pulsar_retry.policy.checks import MAX_DELAY, Duration, seconds
from pulsar_retry.policy.outcomes import (
    RetryLater,
    exhausted,
)
from pulsar_retry.wire.envelope import Envelope, Redact, iso, without_envelope
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import (
    FAILURE_CRASHES,
    FAILURE_PUBLISH_TIME,
    FAILURE_STAGE,
    FAILURE_STAMP,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    Origin,
    checked_custom,
    dead_letter_properties,
    letter_properties,
    reconsume_times,
)

#: The level that TDMQ's client writes for an explicit delay.
_NO_LEVEL = -1


@attrs.define
class Letter:
    """A letter to publish in place of a message. One is made for each; frozen, it costs twice.

    Attributes:
        topic: The full name of the target topic.
        properties: All properties of the letter.
        delay: Seconds until delivery.
        dead: Whether it is a dead letter.
        reason: Why the message is dead; None if its retry count was the reason. Hooks, metrics and
            logs use this and the next two attributes.
        attempt: The number of the failed attempt; None: the message's properties have it.
        error: The exception that was raised; None if there is none, or it is not known.
        counted: Whether an attempt has failed; otherwise the message is only deferred.
        trace: Makes the span of the hand-off, of the message with its letter and of an error, if
            any, when it has ended; None without tracing.
        origin: Where the message was delivered from; None: it was not looked up.
        payload: The payload that replaces that of the message; None: it stays.
    """

    topic: str
    properties: dict[str, str]
    delay: float = 0.0
    dead: bool = False
    reason: str | None = attrs.field(default=None, eq=False)
    attempt: int | None = attrs.field(default=None, eq=False)
    error: BaseException | None = attrs.field(default=None, eq=False, repr=False)
    counted: bool = attrs.field(default=True, eq=False, repr=False)
    trace: Any = attrs.field(default=None, eq=False, repr=False)
    origin: Origin | None = attrs.field(default=None, eq=False, repr=False)
    payload: bytes | None = attrs.field(default=None, repr=False)


@attrs.frozen
class DelayRequest:
    """The checked delay of a call of `reconsume_later`.

    Attributes:
        delay: Seconds; None: the level decides.
        level: The level; None: it is the number of the retry.
    """

    delay: float | None
    level: int | None

    @classmethod
    def of(cls, plan: Plan, delay: Duration | None, level: int | None) -> DelayRequest:
        """Check the arguments.

        Raises:
            ConfigError: retries are off, both are given, or one is out of range.
        """
        if plan.topics is None:
            raise ConfigError("reconsume_later needs a subscription with enable_retry=True")
        if delay is not None and level is not None:
            raise ConfigError.bad("level", level, f"no level, because delay={delay!r} is given")
        if level is not None:
            plan.levels.delay(level)
        if delay is not None:
            delay = seconds("delay", delay, maximum=MAX_DELAY)
        return cls(delay, level)


@attrs.define
class FailureDetails:
    """The details of a failure, which are written into the envelope of its letter.

    One is made for each failure; frozen, it costs twice.

    Attributes:
        error: The exception that was raised; None if there is none.
        attempt: The number of the failed attempt.
        when: When it failed.
        published: When the message was first published.
        stage: Where it failed.
        pubsub_attributes: Whether the letter has the attributes of Pub/Sub's dead letters, too.
        redact: Removes text that must not leave the process; None: nothing is removed.
    """

    error: BaseException | None
    attempt: int
    when: datetime
    published: datetime
    stage: str = "handler"
    pubsub_attributes: bool = False
    redact: Redact | None = None

    def on(
        self, carried: Mapping[str, str], origin: Origin, reason: str | None = None
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the properties that a letter keeps from *carried*, and those of its envelope.

        Args:
            carried: The message's properties, which may contain the envelope of an earlier failure.
            origin: Where the message was delivered from.
            reason: Why the message is dead; None if it is retried.
        """
        envelope = Envelope.of(
            self.error,
            attempt=self.attempt,
            when=self.when,
            published=self.published,
            stage=self.stage,
            reason=reason,
            topic=carried.get(REAL_TOPIC) or logical(origin.topic),
            subscription=carried.get(REAL_SUBSCRIPTION) or origin.subscription,
        )
        kept = without_envelope(carried, pubsub=self.pubsub_attributes)
        if reason is not None:  # a redriven message starts again without these
            kept.pop(FAILURE_STAMP, None)
            kept.pop(FAILURE_CRASHES, None)
        return kept, envelope.to_properties(
            pubsub_attributes=self.pubsub_attributes, redact=self.redact
        )


def reconsumed(
    plan: Plan,
    request: DelayRequest,
    carried: Mapping[str, str],
    origin: Origin,
    custom: Mapping[str, str] | None,
) -> Letter:
    """Return the letter for a message that is to be reconsumed later.

    Args:
        plan: The subscription's plan.
        request: The requested delay.
        carried: The message's properties.
        origin: Where the message was delivered from.
        custom: The caller's properties.

    Raises:
        ConfigError: *custom* would change a system property.
    """
    custom = checked_custom(custom, carried)
    carried = plan.recipient.own(carried, origin.topic)
    assert plan.topics is not None  # DelayRequest.of has checked
    assert plan.policy is not None  # a plan with topics has a policy
    count = reconsume_times(carried) + 1
    if request.delay is not None:
        delay, level = request.delay, _NO_LEVEL
    else:
        level = plan.levels.clamp(count if request.level is None else request.level)
        delay = plan.levels.delay(level)
    dead = exhausted(count, plan.policy.max_redeliver_count)
    return _counted(
        plan, carried, origin, count, delay=delay, level=level, custom=custom, dead=dead
    )


def retried(
    plan: Plan,
    action: RetryLater,
    carried: Mapping[str, str],
    origin: Origin,
    *,
    details: FailureDetails,
    custom: Mapping[str, str],
    least_delay: float = 0.0,
) -> Letter:
    """Return the letter for a retry that a policy has decided.

    Its count is the number of failed attempts. That is not compared with a limit here, because the
    policy has done so.

    Args:
        plan: The subscription's plan.
        action: The retry. If the attempt is not counted, the envelope of the last failure stays.
        carried: The message's properties.
        origin: Where the message was delivered from.
        details: The failure.
        custom: Additional properties.
        least_delay: The minimum delay in seconds at the broker, whatever the letter says.
    """
    carried = plan.recipient.own(carried, origin.topic)
    if action.counted:
        carried, envelope = details.on(carried, origin)
        custom = {**custom, **envelope}
    else:  # its age goes on
        custom = {**custom, FAILURE_PUBLISH_TIME: iso(details.published)}
    level = _NO_LEVEL if action.level is None else action.level
    return _counted(
        plan,
        carried,
        origin,
        details.attempt,
        delay=action.delay,
        level=level,
        custom=custom,
        dead=False,
        least_delay=least_delay,
        attempt=details.attempt if action.counted else details.attempt + 1,
        counted=action.counted,
        error=details.error,
    )


def dead_lettered(
    plan: Plan,
    carried: Mapping[str, str],
    origin: Origin,
    *,
    custom: Mapping[str, str] | None = None,
    reason: str | None = None,
    details: FailureDetails | None = None,
    used_up: bool = False,
) -> Letter:
    """Return the dead letter for a message that was not dead-lettered by its retry count.

    Args:
        plan: The subscription's plan.
        carried: The message's properties.
        origin: Where the message was delivered from.
        custom: The caller's properties.
        reason: Why the message is dead.
        details: The failure.
        used_up: Whether a policy has decided that its retries are used up. As in Java, its count is
            then one more than its retries. Without retry letters it has no count.

    Raises:
        ConfigError: there is no dead-letter policy, *reason* is not text, or *custom* would change
            a system property.
    """
    if plan.policy is None:
        raise ConfigError("dead_letter needs enable_retry=True or a dead_letter_policy")
    if reason is not None and not isinstance(reason, str):
        raise ConfigError.bad("reason", reason, "a str")
    custom = checked_custom(custom, carried)
    carried = plan.recipient.own(carried, origin.topic)
    attempt, error = (None, None) if details is None else (details.attempt, details.error)
    if details is not None:
        if stage := (custom or {}).get(FAILURE_STAGE):
            details = attrs.evolve(details, stage=stage)
        carried, envelope = details.on(carried, origin, reason)
        custom = {**(custom or {}), **envelope}
    facts: dict[str, Any] = {"dead": True, "reason": reason, "attempt": attempt, "error": error}
    if used_up and attempt is not None and plan.topics is not None:
        return _counted(
            plan, carried, origin, attempt, delay=0.0, level=_NO_LEVEL, custom=custom, **facts
        )
    topic = plan.dead_letter_topic(origin.topic)
    properties = dead_letter_properties(carried, origin, custom=custom)
    return Letter(topic, properties, origin=origin, **facts)


def _counted(
    plan: Plan,
    carried: Mapping[str, str],
    origin: Origin,
    count: int,
    *,
    delay: float,
    level: int,
    custom: Mapping[str, str] | None,
    dead: bool,
    least_delay: float = 0.0,
    **facts: Any,
) -> Letter:
    """Return a letter with a count; *facts* are other attributes of it."""
    assert plan.topics is not None  # all callers need retries
    return Letter(
        topic=plan.topics.dead_letter if dead else plan.topics.retry,
        properties=letter_properties(
            carried,
            origin,
            count=count,
            delay=delay,
            retry_topic=None if dead else plan.topics.retry,
            custom=custom,
            level=level if plan.writes_level else None,
        ),
        delay=0.0 if dead else max(delay, least_delay),
        dead=dead,
        origin=origin,
        **facts,
    )
