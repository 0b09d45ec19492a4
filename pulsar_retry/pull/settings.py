"""What can be set for a subscriber, in values that are checked when they are made. Pure."""

from __future__ import annotations

import math

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.backoff import DEFAULT_DELAY_LEVELS, Levels, levels_of
from pulsar_retry.policy.checks import Duration, flag, positive, whole
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.names import Naming, NamingLike

#: Receiving pauses at this load. This number and the next one are those of python-pubsub.
PAUSE = 1.0
#: Receiving continues below this load.
RESUME = 0.8

#: How many messages are fetched ahead at most, unless the user says a number.
_MOST_FETCHED = 200


@attrs.frozen(kw_only=True)
class FlowControl:
    """How much a subscriber has in hand at most.

    A message is in hand from its receipt until it is settled: while it waits for a worker, is
    handled, or its letter is being published. One message may exceed the byte limit; the message
    limit is never exceeded. Messages in lanes have a limit of their own (`Lanes`).

    Attributes:
        max_messages: The limit in messages.
        max_bytes: The limit in bytes of payload.
        prefetch: How many messages pulsar-client fetches ahead (its ``receiver_queue_size``), in
            addition to those in hand. A small number leaves more to other consumers. None: as many
            as *max_messages*, at most 200.
    """

    max_messages: int = 1000
    max_bytes: int = 100 << 20
    prefetch: int | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse what is no limit."""
        whole("max_messages", self.max_messages)
        whole("max_bytes", self.max_bytes)
        if self.prefetch is not None:
            whole("prefetch", self.prefetch)

    @property
    def fetched_ahead(self) -> int:
        """How many messages are fetched ahead."""
        return min(_MOST_FETCHED, self.max_messages) if self.prefetch is None else self.prefetch


@attrs.frozen(init=False)
class Lease:
    """How long a delivery may be in hand. After that it expires, and the message comes back.

    An expired delivery counts as a failed attempt (`LeaseExpired`), as in Pub/Sub. A settlement
    after that is refused, because the message is being delivered again.

    Attributes:
        max_total: Seconds, or a timedelta, from the call of the handler or the pull; math.inf for
            no limit.
        max_abandoned: How many handlers may run on after their lease. A thread cannot be ended, nor
            a coroutine that ignores its cancellation. Such handlers are left alone, and other
            workers take their places. One more than this ends the subscription
            (`WorkersLostError`). None means 32, or the subscriber's ``concurrency`` if that is
            more.
    """

    max_total: float
    max_abandoned: int | None

    def __init__(self, *, max_total: Duration = 3600.0, max_abandoned: int | None = None) -> None:
        if max_abandoned is not None:
            whole("max_abandoned", max_abandoned)
        self.__attrs_init__(max_total=_limit("max_total", max_total), max_abandoned=max_abandoned)


def _limit(argument: str, value: Duration) -> float:
    return math.inf if value == math.inf else positive(argument, value)


@attrs.frozen(kw_only=True)
class Lanes:
    """How an ordered subscription retries: the key of a failed message is parked, other keys go on.

    The failed message is retried in place, before any later message of its key. Its attempts are
    counted in memory: after a crash or a stop the count starts anew for what was in a lane.

    Attributes:
        max_parked: How many messages may wait in parked lanes: the failed ones, and those behind
            them. On Key_Shared they do not count for the message limit of flow control, so that
            other keys go on; their bytes do count. When there are so many, nothing more is
            received, and the subscriber's health says so.
    """

    max_parked: int = 1000

    def __attrs_post_init__(self) -> None:
        """Refuse what is no limit."""
        whole("max_parked", self.max_parked)


@attrs.frozen(init=False)
class Breaker:
    """Keeps the messages of an outage out of the dead-letter topic. On by default.

    It opens when nearly everything fails: since the last success, ten different messages have
    failed here for the first time, and less than a tenth of the last 50 messages have succeeded.
    So retries of messages that are known to fail do not open it, nor do failures among successes.

    While it is open, one message at a time is tried, after 1 s, 2 s, up to 30 s. A failure uses up
    no attempt, unless the message is one of those whose failures have opened the breaker: they go
    on with their attempts, but keep the last one. When one has succeeded, two may be handled at a
    time, then four, and so on, until one fails. The breaker closes when sixteen of the last 50 that
    were tried have succeeded, or as soon as retries succeed where first attempts fail. What
    `Reject`, `Drop`, `Defer` or a list of errors in the policy decides happens at once, and counts
    as neither.

    Attributes:
        hold: Seconds or a timedelta; math.inf for ever. When the breaker has been open for so long,
            failures use up attempts again. So a topic that has nothing but bad messages drains
            slowly into the dead-letter topic.
    """

    hold: float

    def __init__(self, *, hold: Duration = 900.0) -> None:
        self.__attrs_init__(hold=_limit("hold", hold))


@attrs.frozen(kw_only=True)
class Letters:
    """How the letters of a subscription are named and written.

    Attributes:
        naming: The rules for the names of letters' topics that no policy names.
        pubsub_attributes: Whether letters also have the attributes that Pub/Sub adds to dead
            letters: ``CloudPubSubDeadLetterSource…``. They are always read.
        redact: A function that is called with ``reason``, ``message`` or ``traceback``, and the
            text of it, before a letter takes the text out of the process. It returns the text to
            publish, or None.
        letter_send_timeout: Seconds, or a timedelta. A letter without a receipt after this time has
            failed.
        delay_levels: The table of the consumer's delay levels, such as ``"1s 10s 1m"``.
        letter_encryption_key: The name of the key that encrypts letters. With a key reader, either
            this or *plain_letters* is required (`Client.subscribe`).
        plain_letters: Publish letters unencrypted, although messages are decrypted.

    Raises:
        ConfigError: a value is invalid. Those about encryption are checked where they are used.
    """

    naming: NamingLike = Naming.PULSAR
    pubsub_attributes: bool = False
    redact: Redact | None = None
    letter_send_timeout: Duration = 30.0
    delay_levels: Levels | str = DEFAULT_DELAY_LEVELS
    letter_encryption_key: str | None = None
    plain_letters: bool = False

    def __attrs_post_init__(self) -> None:
        """Refuse values that are invalid."""
        Naming.of(self.naming)
        levels_of(self.delay_levels)
        flag("pubsub_attributes", self.pubsub_attributes)
        positive("letter_send_timeout", self.letter_send_timeout)
        if self.redact is not None and not callable(self.redact):
            raise ConfigError.bad("redact", self.redact, "a function of a name and a text, or None")
