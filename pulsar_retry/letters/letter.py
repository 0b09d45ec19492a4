"""What becomes of a message that is handed on: the decision that every shell carries out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.watch import HandOffSpan
from pulsar_retry.policy.actions import (
    RETRIES_EXHAUSTED,
    DeadLetter,
    RetryLater,
    decide_reconsume,
)
from pulsar_retry.policy.durations import MAX_DELAY, Duration, seconds
from pulsar_retry.wire.codecs import Codec, read_envelope
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.properties import (
    FAILURE_CRASHES,
    FAILURE_STAGE,
    FAILURE_WRITER,
    Origin,
    check_custom,
    dead_letter_properties,
    letter_properties,
    reconsume_times,
)

#: What TDMQ's client writes as the level of an explicit delay.
_NO_LEVEL = -1


@attrs.frozen
class Letter:
    """A letter to publish in place of a message.

    Attributes:
        topic: The full name of the topic that it goes to.
        properties: All of its properties.
        delay: Seconds until it is to be delivered.
        dead: Whether it is a dead letter.
        reason: Why it is dead, for those who watch, as the next two are; None: its count says so.
        attempt: Which attempt has failed; None: what the message says.
        error: What was raised; None: nothing, or nobody has said so.
        span: The span of the hand-off; None: nobody traces it.
    """

    topic: str
    properties: dict[str, str]
    delay: float = 0.0
    dead: bool = False
    reason: str | None = attrs.field(default=None, eq=False)
    attempt: int | None = attrs.field(default=None, eq=False)
    error: BaseException | None = attrs.field(default=None, eq=False, repr=False)
    span: HandOffSpan | None = attrs.field(default=None, eq=False, repr=False)


@attrs.frozen
class DelayRequest:
    """When a caller of `reconsume_later` wants the message back; checked.

    Attributes:
        delay: Seconds; None: by level.
        level: The level; None: by the number of the retry.
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
            raise ConfigError.bad("level", level, f"no level beside delay={delay!r}")
        if level is not None:
            plan.levels.delay(level)
        if delay is not None:
            delay = seconds("delay", delay, maximum=MAX_DELAY)
        return cls(delay, level)


@attrs.frozen
class FailureDetails:
    """What a letter tells of the failure that made it: the one way in which envelopes are written.

    Attributes:
        error: What was raised; None if nothing was.
        attempt: The attempt that failed.
        when: When that was.
        published: When the message was published.
        stage: Where it failed.
        codec: Whose readers the letter is for.
        redact: What of the texts may leave the process; None: all.
    """

    error: BaseException | None
    attempt: int
    when: datetime
    published: datetime
    stage: str = "handler"
    codec: Codec = Codec.PULSAR
    redact: Redact | None = None

    def on(
        self, carried: Mapping[str, str], origin: Origin, reason: str | None = None
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return what a letter keeps of *carried*, and the properties of its envelope.

        Args:
            carried: The message's properties, with the envelope of an earlier failure, perhaps.
            origin: Where it was delivered from.
            reason: Why it is dead; None if it is retried.
        """
        envelope = read_envelope(carried).after(
            self.error,
            attempt=self.attempt,
            when=self.when,
            origin=origin,
            published=self.published,
            stage=self.stage,
            reason=reason,
        )
        kept = self.codec.strip(carried)
        if reason is not None:  # whoever brings a dead letter back begins anew
            kept.pop(FAILURE_WRITER, None)
            kept.pop(FAILURE_CRASHES, None)
        return kept, self.codec.write(envelope, redact=self.redact)


def reconsumed(
    plan: Plan,
    request: DelayRequest,
    carried: Mapping[str, str],
    origin: Origin,
    custom: Mapping[str, str] | None,
) -> Letter:
    """Return the letter for a message that is to be reconsumed later.

    Args:
        plan: The subscription's.
        request: When it is to come back.
        carried: The message's properties.
        origin: Where it was delivered from.
        custom: The caller's properties.

    Raises:
        ConfigError: *custom* would change a system property.
    """
    check_custom(custom, carried)
    assert plan.topics is not None  # noqa: S101 - DelayRequest.of has checked
    assert plan.policy is not None  # noqa: S101 - there is one wherever there are topics
    count = reconsume_times(carried) + 1
    if request.delay is not None:
        delay, level = request.delay, _NO_LEVEL
    else:
        level = plan.levels.clamp(count if request.level is None else request.level)
        delay = plan.levels.delay(level)
    action = decide_reconsume(count, plan.policy.max_redeliver_count, delay)
    dead = isinstance(action, DeadLetter)
    return _counted(
        plan, carried, origin, count, delay=delay, level=level, custom=custom, dead=dead
    )


def retried(
    plan: Plan,
    action: RetryLater,
    carried: Mapping[str, str],
    origin: Origin,
    *,
    failures: int,
    details: FailureDetails,
    custom: Mapping[str, str],
) -> Letter:
    """Return the letter for a message whose retry a policy has decided.

    Its count is not compared with N: the policy has done that.

    Args:
        plan: The subscription's.
        action: When it is to come back. Where the attempt is not counted, the envelope of the
            last failure stays.
        carried: The message's properties.
        origin: Where it was delivered from.
        failures: How many of its attempts have failed: its new count.
        details: What the letter tells.
        custom: More properties.
    """
    if action.counted:
        carried, envelope = details.on(carried, origin)
        custom = {**custom, **envelope}
    level = _NO_LEVEL if action.level is None else action.level
    letter = _counted(
        plan,
        carried,
        origin,
        failures,
        delay=action.delay,
        level=level,
        custom=custom,
        dead=False,
    )
    attempt = failures if action.counted else failures + 1
    return attrs.evolve(letter, attempt=attempt, error=details.error)


def dead_lettered(
    plan: Plan,
    carried: Mapping[str, str],
    origin: Origin,
    *,
    custom: Mapping[str, str] | None = None,
    reason: str | None = None,
    details: FailureDetails | None = None,
) -> Letter:
    """Return the dead letter for a message that no count decided about: a nack, or the caller.

    Raises:
        ConfigError: there is no dead-letter policy, *reason* is no text, or *custom* would change
            a system property.
    """
    if plan.policy is None:
        raise ConfigError("dead_letter needs enable_retry=True or a dead_letter_policy")
    if reason is not None and not isinstance(reason, str):
        raise ConfigError.bad("reason", reason, "a str")
    check_custom(custom, carried)
    attempt, error = (None, None) if details is None else (details.attempt, details.error)
    if details is not None:
        if stage := (custom or {}).get(FAILURE_STAGE):
            details = attrs.evolve(details, stage=stage)
        carried, envelope = details.on(carried, origin, reason)
        custom = {**(custom or {}), **envelope}
    return Letter(
        topic=plan.dead_letter_topic(origin.topic),
        properties=dead_letter_properties(carried, origin, custom=custom),
        dead=True,
        reason=reason,
        attempt=attempt,
        error=error,
    )


def used_up(
    plan: Plan,
    carried: Mapping[str, str],
    origin: Origin,
    *,
    failures: int,
    details: FailureDetails,
) -> Letter:
    """Return the dead letter for a message whose retries a policy found used up.

    As in Java its count is one more than its retries; without retry letters it has none.
    """
    if plan.topics is None:
        return dead_lettered(plan, carried, origin, reason=RETRIES_EXHAUSTED, details=details)
    carried, envelope = details.on(carried, origin, RETRIES_EXHAUSTED)
    letter = _counted(
        plan,
        carried,
        origin,
        failures,
        delay=0.0,
        level=_NO_LEVEL,
        custom=envelope,
        dead=True,
    )
    return attrs.evolve(letter, reason=RETRIES_EXHAUSTED, attempt=failures, error=details.error)


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
) -> Letter:
    assert plan.topics is not None  # noqa: S101 - nobody gets here without retries
    return Letter(
        topic=plan.topics.dead_letter if dead else plan.topics.retry,
        properties=letter_properties(
            carried,
            origin,
            count=count,
            delay=delay,
            retry_topic=None if dead else plan.topics.retry,
            custom=custom,
            level=level if plan.naming.is_tdmq else None,
        ),
        delay=0.0 if dead else delay,
        dead=dead,
    )
