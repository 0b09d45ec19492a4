"""The dispatcher: it delivers a subscription to an HTTP endpoint, as Pub/Sub push does."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.errors import ConfigError
from pulsar_retry.observe.counting import COUNTERS
from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.policy.backoff import Immediate
from pulsar_retry.policy.checks import Duration, seconds, whole
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.engine.settler import LETTERS, NACK
from pulsar_retry.pull.options import LOOP, Redelivery, checked_options, effective
from pulsar_retry.pull.report import Report, StopMode
from pulsar_retry.pull.settings import RESUME, Breaker, FlowControl, Lanes, Lease, Letters
from pulsar_retry.pull.subscriber import Subscriber
from pulsar_retry.push.body import names_of_letters
from pulsar_retry.push.body import subscription_name as default_name
from pulsar_retry.push.endpoint import PushEndpoint
from pulsar_retry.push.form import Connections, Form, of_kind
from pulsar_retry.push.http import ACKS, Poster, room_for
from pulsar_retry.push.pacing import EXPONENTIAL_UP_TO, Pace, Pacer, RateLimit, Window, in_hand
from pulsar_retry.push.pusher import Pusher
from pulsar_retry.runtime.exiting import closes
from pulsar_retry.wire.names import Naming

#: Pub/Sub's ``ack_deadline_seconds``.
SHORTEST, LONGEST, USUAL = 10.0, 600.0, 10.0

#: How many messages pulsar-client fetches ahead, unless the user says a number.
_FETCHED = 100

#: The range of statuses that can be the last ones of an answer.
_LOWEST, _HIGHEST = 200, 599

#: Seconds to wait for connections to be closed.
_CLOSING = 5.0

_LANES, _BREAKER, _LETTERS = Lanes(), Breaker(), Letters()
_FORM, _CONNECTIONS = Form(), Connections()

#: The subscriber's lease never expires, because each request of a dispatcher has its own deadline.
_LEASE = Lease(max_total=math.inf)


class Dispatcher(Subscriber):
    """Posts every message of a subscription to an HTTP endpoint, and settles it by the answer.

    This is the counterpart of a Pub/Sub push subscription, with the same body, status codes, window
    and backoff. The statuses 102, 200, 201, 202 and 204 acknowledge a message. Every other result
    is a negative acknowledgement: other statuses, redirects, an answer that is not complete within
    *ack_deadline*, and a broken connection. After a 429 or 503 with a ``Retry-After``, nothing is
    sent for that time, at most 600 s. A dispatcher is a `Subscriber` whose handler sends requests:
    retries, dead letters, ordering, flow control and the circuit breaker are those of subscribers.

    Without a *retry_policy*, a message is redelivered at once after a negative acknowledgement, as
    fast as the push backoff allows, and the broker counts its attempts. With a *retry_policy*,
    retries use letters.

    Thread-safe. A dispatcher runs only once. Several dispatchers may serve one subscription; each
    has its own window and backoff.
    """

    def __init__(
        self,
        client: Client,
        topic: str | list[str],
        subscription: str,
        endpoint: str,
        *,
        ack_deadline: Duration = USUAL,
        retry_policy: RetryPolicy | None = None,
        dead_letter_policy: DeadLetterPolicy | pulsar.ConsumerDeadLetterPolicy | None = None,
        dead_letter_statuses: Iterable[int] = (),
        form: Form = _FORM,
        connections: Connections = _CONNECTIONS,
        max_outstanding: int = EXPONENTIAL_UP_TO,
        max_rate: float | None = None,
        consumer_type: pulsar.ConsumerType | None = None,
        redelivery: Redelivery | None = None,
        flow_control: FlowControl | None = None,
        lanes: Lanes = _LANES,
        breaker: Breaker | None = _BREAKER,
        crypto_key_reader: pulsar.CryptoKeyReader | None = None,
        letters: Letters = _LETTERS,
        hooks: Hooks | None = None,
    ) -> None:
        """Make a dispatcher; `start` or `run` starts it.

        Args:
            client: The client. The caller closes it.
            topic: A topic or a list of topics.
            subscription: The subscription. A new one starts at the earliest message.
            endpoint: An ``https://`` URL. ``http://`` is accepted for loopback hosts, or with
                `Connections.allow_http`.
            ack_deadline: Seconds or a timedelta, 10 to 600, in which the complete answer must
                arrive.
            retry_policy: What happens to a message that is not acknowledged (`PushNacked`). By
                default its `max_attempts` is 17, also without a *dead_letter_policy*.
                `RetryPolicy.pubsub` is Pub/Sub's policy, which retries without end. If this is
                None, the message is redelivered at once, and without a *dead_letter_policy* without
                end.
            dead_letter_policy: The topics of the letters, and the number of attempts if the retry
                policy has none. With it, wrapped bodies contain the ``deliveryAttempt``.
            dead_letter_statuses: Statuses after which a message is dead-lettered at once, such as
                ``{410, 422}``. The window and the backoff treat them like any other failure.
            form: What requests look like, and who signs them.
            connections: How the endpoint is connected to.
            max_outstanding: How many requests are outstanding at most, each on its own connection.
                Above 3000 the window grows slowly. If the process may not have that many files open
                (``ulimit -n``), the number is reduced.
            max_rate: How many requests are sent in a second at most. None: as many as window and
                backoff allow.
            consumer_type: See `Client.subscriber`. On Key_Shared the messages of a key are posted
                in order.
            redelivery: See `Client.subscriber`. None means ``"letters"`` with a retry policy, else
                ``"nack"``.
            flow_control: How much is in hand at most: outstanding, received ahead, or parked in
                lanes. None allows 100 MiB, and enough messages for *max_outstanding*.
            lanes: See `Client.subscriber`.
            breaker: See `Client.subscriber`. A negative acknowledgement counts as a failure, except
                with one of *dead_letter_statuses*. There is none if messages are never
                dead-lettered.
            crypto_key_reader: See `Client.subscriber`. The requests have the decrypted payload.
            letters: How letters are named and written.
            hooks: See `Client.subscriber`.

        Raises:
            ConfigError: an argument is invalid. Nothing was opened.
        """
        deadline = _deadline(ack_deadline)
        of_kind("connections", connections, Connections)
        of_kind("form", form, Form)
        final = _statuses(dead_letter_statuses)
        rate = None if max_rate is None else RateLimit(max_rate)
        window = Window(maximum=max_outstanding)
        window = attrs.evolve(window, maximum=room_for(window.maximum))
        usual = LETTERS
        if retry_policy is None:
            usual = NACK
            attempts = math.inf if dead_letter_policy is None else None
            retry_policy = RetryPolicy(max_attempts=attempts, backoff=Immediate())
        options = checked_options(
            topic=topic,
            subscription=subscription,
            retry_policy=retry_policy,
            dead_letter_policy=dead_letter_policy,
            flow_control=flow_control or _flow_control(window, rate),
            concurrency=window.maximum,
            consumer_type=consumer_type,
            redelivery=redelivery or usual,
            lease=_LEASE,
            lanes=lanes,
            breaker=breaker,
            crypto_key_reader=crypto_key_reader,
            letters=letters,
            hooks=hooks,
        )
        if not effective(options).has_end:
            options = attrs.evolve(options, breaker=None)
        name = form.subscription_name or default_name(topic, subscription)
        self._pacer = pacer = Pacer(window, rate)
        self._pusher = pusher = Pusher(
            Poster(
                PushEndpoint.of(endpoint, allow_http=connections.allow_http),
                deadline=deadline,
                tls=connections.tls,
                max_age=connections.renew_after,
            ),
            pacer,
            attrs.evolve(form, subscription_name=name),
            COUNTERS.of(topic, subscription),
            tells_attempt=dead_letter_policy is not None,
            of_letters=names_of_letters(
                Naming.of(letters.naming), pubsub_attributes=letters.pubsub_attributes
            ),
            dead_letter_statuses=final,
        )
        super().__init__(
            client,
            attrs.evolve(options, handler=pusher, workers=LOOP, admission=pacer, around=pusher),
        )

    def run(
        self,
        *,
        mode: StopMode = "drain",
        timeout: Duration = 30.0,
        ready: Callable[[], object] | None = None,
    ) -> Report:
        """Run until SIGTERM, SIGINT or `stop`; see `Subscriber.run`.

        To drain, the dispatcher waits for the answers to the requests that it has sent. Messages
        that were not sent yet are handed back.

        Args:
            mode: See `Subscriber.stop`.
            timeout: See `Subscriber.stop`.
            ready: Called on another thread when the dispatcher has subscribed.
        """
        self._pusher.ready = ready
        try:
            return super().run(mode=mode, timeout=timeout)
        finally:
            if not self.running:  # it may run already: then only this call has failed
                self._pusher.give_up(_CLOSING)

    @closes
    def stop(self, mode: StopMode = "drain", timeout: Duration = 30.0) -> Report | None:
        """Stop, and wait until the dispatcher has stopped; see `Subscriber.stop` and `run`.

        ``"abandon"`` breaks off the requests that are outstanding. Their messages are redelivered.
        """
        report = super().stop(mode, timeout)
        if self.course.ended.is_set():  # not so in its own handler, and before it is started
            self._pusher.give_up(_CLOSING)
        return report

    @property
    def pace(self) -> Pace:
        """The window, the outstanding requests, backoff and latency."""
        return self._pacer.pace()

    @property
    def endpoint(self) -> str:
        """The endpoint: only its origin, because the path may contain a secret."""
        return str(self._pusher.poster.endpoint)


def _flow_control(window: Window, rate: RateLimit | None) -> FlowControl:
    """Return a flow control that never holds back messages that the window lets pass.

    With a rate, no more messages are fetched ahead than those of a second.
    """
    return FlowControl(
        max_messages=max(EXPONENTIAL_UP_TO, math.ceil(in_hand(window.maximum) / RESUME)),
        prefetch=_FETCHED if rate is None else min(_FETCHED, math.ceil(rate.per_second)),
    )


def _deadline(value: Duration) -> float:
    """Return the acknowledgement deadline in seconds, within Pub/Sub's limits."""
    result = seconds("ack_deadline", value)
    if not SHORTEST <= result <= LONGEST:
        accepted = f"{SHORTEST:g} to {LONGEST:g} seconds"
        raise ConfigError.bad("ack_deadline", value, accepted)
    return result


def _statuses(value: Any) -> frozenset[int]:
    """Return the statuses after which a message is dead-lettered at once."""
    name, accepted = "dead_letter_statuses", "statuses from 200 to 599 that do not acknowledge"
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError.bad(name, value, accepted)
    statuses = [whole(name, each, _LOWEST, _HIGHEST, accepted=accepted) for each in value]
    if acks := ACKS.intersection(statuses):
        raise ConfigError.bad(name, min(acks), accepted)
    return frozenset(statuses)
