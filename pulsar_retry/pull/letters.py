"""Letters as a policy wants them: with the failure's envelope, and counted as it has decided."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from pulsar_retry.consumer.consumer import Consumer
from pulsar_retry.consumer.letter import Letter
from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.actions import RETRIES_EXHAUSTED, DeadLetter, RetryLater
from pulsar_retry.policy.outcomes import Failure
from pulsar_retry.pull.quarantine import FAILURE_CRASHES
from pulsar_retry.pull.superseded import FAILURE_WRITER
from pulsar_retry.wire.codecs import Codec, read_envelope
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.names import logical
from pulsar_retry.wire.properties import (
    REAL_TOPIC,
    dead_letter_properties,
    letter_properties,
    message_id_text,
    origin_message_id,
    reconsume_times,
)

#: What TDMQ's client writes as the level of an explicit delay.
_NO_LEVEL = -1


class LetterWriter:
    """Writes the letters of failed messages. Thread-safe."""

    def __init__(self, consumer: Consumer, codec: Codec, redact: Redact | None) -> None:
        self._consumer = consumer
        self._plan = consumer._plan  # noqa: SLF001 - shells of one package, here and below
        self._codec = codec
        self._redact = redact

    def retry(
        self,
        message: Any,
        action: RetryLater,
        failure: Failure,
        *,
        attempt: int,
        custom: dict[str, str],
    ) -> Future[None]:
        """Publish a retry letter, then acknowledge the message.

        As `Consumer.reconsume_later_async`, but the policy has decided already: so the count is not
        compared with N, and stays as it is where the attempt is not counted.

        Args:
            message: The message.
            action: When it is to come back.
            failure: What happened.
            attempt: The attempt that failed.
            custom: More properties.
        """
        plan, raw = self._plan, message._message  # noqa: SLF001
        assert plan.topics is not None  # noqa: S101 - the subscriber subscribes with retries
        level = None
        if plan.naming.is_tdmq:
            level = _NO_LEVEL if action.level is None else action.level
        carried = raw.properties()
        told = self._told(raw, carried, failure, attempt) if action.counted else {}
        properties = letter_properties(
            self._codec.strip(carried) if told else carried,
            self._consumer._origin(raw),  # noqa: SLF001
            count=reconsume_times(carried) + action.counted,
            delay=action.delay,
            retry_topic=plan.topics.retry,
            custom=told | custom,
            level=level,
        )
        # The broker delays on Shared and Key_Shared subscriptions only.
        delay = action.delay if plan.shared else 0.0
        return self._consumer._hand_on(raw, Letter(plan.topics.retry, properties, delay))  # noqa: SLF001

    def dead(
        self, message: Any, action: DeadLetter, failure: Failure, *, attempt: int
    ) -> Future[None]:
        """Publish a dead letter, then acknowledge the message.

        Where its retries are used up its count is one more than theirs, as in Java.
        """
        plan, raw = self._plan, message._message  # noqa: SLF001
        origin = self._consumer._origin(raw)  # noqa: SLF001
        carried = raw.properties()
        told = self._told(raw, carried, failure, attempt, reason=action.reason)
        bare = self._codec.strip(carried)
        for name in (FAILURE_CRASHES, FAILURE_WRITER):
            bare.pop(name, None)  # whoever brings it back begins anew
        if action.reason == RETRIES_EXHAUSTED and plan.retry:
            properties = letter_properties(
                bare,
                origin,
                count=reconsume_times(carried) + 1,
                delay=0.0,
                retry_topic=None,
                custom=told,
                level=_NO_LEVEL if plan.naming.is_tdmq else None,
            )
        else:
            properties = dead_letter_properties(bare, origin, custom=told)
        letter = Letter(plan.dead_letter_topic(origin.topic), properties, dead=True)
        return self._consumer._hand_on(raw, letter)  # noqa: SLF001

    def _told(
        self,
        raw: Any,
        carried: dict[str, str],
        failure: Failure,
        attempt: int,
        *,
        reason: str | None = None,
    ) -> dict[str, str]:
        """Return the properties of the envelope."""
        envelope = read_envelope(carried).after(
            failure.cause,
            attempt=attempt,
            when=failure.when,
            origin=self._consumer._origin(raw),  # noqa: SLF001
            published=_time(raw),
            reason=reason,
        )
        return self._codec.write(envelope, redact=self._redact)


def checked_redact(redact: Callable[[str, str], str | None] | None) -> Redact | None:
    """Return *redact*.

    Raises:
        ConfigError: it cannot be called.
    """
    if redact is not None and not callable(redact):
        raise ConfigError.bad("redact", redact, "a function of a name and a text, or None")
    return redact


def published_at(message: Any) -> datetime:
    """Return when a message was first published; of other clients' letters, when the letter was."""
    return read_envelope(message.properties()).published or _time(message)


def origin_key(message: Any) -> str:
    """Return what tells a message from others, the same for all of its letters."""
    properties = message.properties()
    origin = origin_message_id(properties) or message_id_text(message.message_id())
    return f"{properties.get(REAL_TOPIC) or logical(message.topic_name())} {origin}"


def _time(message: Any) -> datetime:
    return datetime.fromtimestamp(message.publish_timestamp() / 1000, UTC)
