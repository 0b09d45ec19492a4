"""The dispatcher: it delivers a subscription to an HTTP endpoint, as Pub/Sub push does."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Sequence
from typing import Self

import attrs
import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import DEFAULT_MOST
from pulsar_retry.observe.counting import COUNTERS
from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.policy.checks import not_blank
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.durations import Duration
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.pull.engine.settler import LETTERS, NACK
from pulsar_retry.pull.health import Health
from pulsar_retry.pull.options import LOOP, Options, Redelivery, checked_options
from pulsar_retry.pull.report import Report, StopMode
from pulsar_retry.pull.rules.breaker import Breaker
from pulsar_retry.pull.rules.flow import FlowControl
from pulsar_retry.pull.rules.lanes import Lanes
from pulsar_retry.pull.rules.lease import Lease
from pulsar_retry.pull.subscriber import Subscriber
from pulsar_retry.pull.workers.loop import RECIPIENT, RETRIES_IN_PLACE
from pulsar_retry.push.arguments import (
    USUAL,
    attribute_headers_of,
    checked_account,
    checked_kind,
    checked_tls,
    deadline_of,
    flow_control_for,
    policy_of,
)
from pulsar_retry.push.auth.tokens import ServiceAccount
from pulsar_retry.push.body import names_of_letters
from pulsar_retry.push.body import subscription_name as default_name
from pulsar_retry.push.endpoint import Guard, PushEndpoint
from pulsar_retry.push.http import Poster, room_for
from pulsar_retry.push.metrics import PushMetrics
from pulsar_retry.push.pacing.pacer import Pace, Pacer
from pulsar_retry.push.pacing.window import EXPONENTIAL_UP_TO, LATENCY_LIMIT, Window
from pulsar_retry.push.pusher import Form, Pusher
from pulsar_retry.runtime.exiting import closes
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.names import Naming, NamingLike

#: Seconds to wait for connections to be closed.
_CLOSING = 5.0

_LANES, _GUARD = Lanes(), Guard()
_EARLIEST = pulsar.InitialPosition.Earliest

#: The subscriber's lease never expires, because each request of a dispatcher has its own deadline.
_LEASE = Lease(max_total=math.inf)


class Dispatcher:
    """Posts every message of a subscription to an HTTP endpoint, and settles it by the answer.

    This is the counterpart of a Pub/Sub push subscription, with the same body, status codes, window
    and backoff. The statuses 102, 200, 201, 202 and 204 acknowledge a message. Every other result
    is a negative acknowledgement: other statuses, redirects, an answer that is not complete within
    *ack_deadline*, and a broken connection. A dispatcher contains a `Subscriber`, which does
    retries, dead letters, ordering, flow control and the circuit breaker.

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
        sign: ServiceAccount | None = None,
        audience: str | None = None,
        wrapped: bool = True,
        write_metadata: bool = False,
        attribute_headers: Sequence[str] = (),
        subscription_name: str | None = None,
        consumer_type: pulsar.ConsumerType | None = None,
        redelivery: Redelivery | None = None,
        flow_control: FlowControl | None = None,
        lanes: Lanes = _LANES,
        breaker: Breaker | None = None,
        max_outstanding: int = EXPONENTIAL_UP_TO,
        latency_limit: Duration = LATENCY_LIMIT,
        guard: Guard = _GUARD,
        allow_http: bool = False,
        tls: ssl.SSLContext | None = None,
        paused: bool = False,
        prefetch: int = 100,
        initial_position: pulsar.InitialPosition = _EARLIEST,
        naming: NamingLike = Naming.PULSAR,
        pubsub_attributes: bool = False,
        redact: Redact | None = None,
        consumer_name: str | None = None,
        letter_send_timeout: Duration = 30.0,
        dedupe_letters: int = DEFAULT_MOST,
        crypto_key_reader: pulsar.CryptoKeyReader | None = None,
        letter_encryption_key: str | None = None,
        plain_letters: bool = False,
        hooks: Hooks | None = None,
    ) -> None:
        """Make a dispatcher; `start` or `run` starts it.

        Args:
            client: The client. The caller closes it.
            topic: A topic or a list of topics.
            subscription: The subscription. A new one starts at *initial_position*.
            endpoint: An ``https://`` URL. ``http://`` is accepted for loopback hosts, or with
                *allow_http*.
            ack_deadline: Seconds or a timedelta, 10 to 600, in which the complete answer must
                arrive.
            retry_policy: What happens to a message that is not acknowledged (`PushNacked`). By
                default its `max_attempts` is 17, also without a *dead_letter_policy*.
                `RetryPolicy.pubsub` is Pub/Sub's policy, which retries without end. If this is
                None, the message is redelivered at once, and without a *dead_letter_policy* without
                end.
            dead_letter_policy: The topics of the letters, and the number of attempts if the retry
                policy has none. With it, wrapped bodies contain the ``deliveryAttempt``.
            sign: The account whose tokens prove the sender to receivers. None sends no token.
            audience: The ``aud`` claim of the tokens; only with *sign*. None means the URL of the
                endpoint.
            wrapped: Whether the body is Pub/Sub's JSON envelope. If False, it is the payload.
            write_metadata: Whether the id, time, key and attributes of an unwrapped message are
                sent as headers. Attributes are sent as ``X-Pulsar-Attribute-<name>``.
            attribute_headers: Attributes that are sent without that prefix, such as
                ``["Content-Type"]``. Be careful: producers choose the values, and receivers act
                upon headers.
            subscription_name: The ``subscription`` that receivers see. None means
                ``projects/<tenant>/subscriptions/<subscription>``.
            consumer_type: See `Client.subscriber`. On Key_Shared the messages of a key are posted
                in order.
            redelivery: See `Client.subscriber`. None means ``"letters"`` with a retry policy, else
                ``"nack"``.
            flow_control: How much is in hand at most: outstanding, received ahead, or parked in
                lanes. None allows 100 MiB, and enough messages for *max_outstanding*.
            lanes: See `Client.subscriber`.
            breaker: See `Client.subscriber`. A negative acknowledgement counts as a failure.
            max_outstanding: How many requests are outstanding at most, each on its own connection.
                Above 3000 the window grows slowly. If the process may not have that many files open
                (``ulimit -n``), the number is reduced.
            latency_limit: Seconds or a timedelta. While the mean latency of answers is longer, at
                most 3000 requests are outstanding. math.inf switches this limit off.
            guard: The addresses that may be connected to.
            allow_http: Whether ``http://`` is accepted for hosts other than loopback.
            tls: The TLS context, with the trusted certificates and the client's own certificate. It
                must verify certificates and host names. Several dispatchers may share it; its ALPN
                protocol is set to HTTP/1.1. None uses the trusted certificates of the system.
            paused: Whether nothing is sent before `resume`.
            prefetch: How many messages pulsar-client's own queue holds, in addition to those in
                hand.
            initial_position: Where a new subscription starts.
            naming: See `Client.subscriber`.
            pubsub_attributes: See `Client.subscriber`.
            redact: See `Client.subscriber`.
            consumer_name: The consumer's name.
            letter_send_timeout: Seconds after which a letter without a receipt has failed.
            dedupe_letters: How many letters are remembered to detect duplicates
                (`Client.subscribe`).
            crypto_key_reader: See `Client.subscriber`. The requests have the decrypted payload.
            letter_encryption_key: See `Client.subscriber`.
            plain_letters: See `Client.subscriber`.
            hooks: See `Client.subscriber`.

        Raises:
            ConfigError: an argument is invalid. Nothing was opened.
        """
        self._guard = checked_kind("guard", guard, Guard)
        self._tls = checked_tls(tls)
        self._deadline = deadline_of(ack_deadline)
        for name, value in {
            "wrapped": wrapped,
            "write_metadata": write_metadata,
            "allow_http": allow_http,
            "paused": paused,
        }.items():
            checked_kind(name, value, bool)
        if wrapped and write_metadata:
            raise ConfigError.bad("write_metadata", True, "wrapped=False too")  # noqa: FBT003 - a value
        for name, text in {"audience": audience, "subscription_name": subscription_name}.items():
            if text is not None:
                not_blank(name, text, "a text that is not blank, or None")
        account = checked_account(sign)
        if audience is not None and account is None:
            raise ConfigError.bad(
                "audience",
                audience,
                "a ServiceAccount in sign, because the audience is part of its tokens",
            )
        self._allow_http = allow_http
        window = Window(maximum=max_outstanding, latency_limit=latency_limit)
        window = attrs.evolve(window, maximum=room_for(window.maximum))
        options = checked_options(
            topic=topic,
            subscription=subscription,
            retry_policy=policy_of(retry_policy, dead_letter_policy),
            dead_letter_policy=dead_letter_policy,
            flow_control=flow_control_for(window) if flow_control is None else flow_control,
            concurrency=max_outstanding,
            consumer_type=consumer_type,
            redelivery=redelivery or (NACK if retry_policy is None else LETTERS),
            lease=_LEASE,
            lanes=lanes,
            breaker=breaker,
            prefetch=prefetch,
            initial_position=initial_position,
            naming=naming,
            pubsub_attributes=pubsub_attributes,
            redact=redact,
            consumer_name=consumer_name,
            letter_send_timeout=letter_send_timeout,
            dedupe_letters=dedupe_letters,
            crypto_key_reader=crypto_key_reader,
            letter_encryption_key=letter_encryption_key,
            plain_letters=plain_letters,
            hooks=hooks,
        )
        form = Form(
            subscription=subscription_name or default_name(topic, subscription),
            wrapped=wrapped,
            write_metadata=write_metadata,
            attribute_headers=attribute_headers_of(
                attribute_headers, write_metadata=write_metadata
            ),
            tells_attempt=dead_letter_policy is not None,
            audience=audience,
            account=account,
            of_letters=names_of_letters(Naming.of(naming), pubsub_attributes=pubsub_attributes),
        )
        self._pacer = Pacer(window)
        self._metrics = PushMetrics(COUNTERS.of(topic, subscription), self._pacer.pace)
        self._pusher = Pusher(
            self._poster(endpoint),
            self._pacer,
            form,
            self._metrics,
            recipient=RECIPIENT.get,
            retries_in_place=RETRIES_IN_PLACE.get,
        )
        if paused:
            self._pacer.pause()
        self._subscriber = Subscriber(client, _for_subscriber(options, self._pusher, self._pacer))

    def _poster(self, endpoint: str) -> Poster:
        return Poster(
            PushEndpoint.of(endpoint, allow_http=self._allow_http),
            deadline=self._deadline,
            guard=self._guard,
            trust=self._tls,
        )

    # -- starting and stopping --------------------------------------------------------------------

    def start(self) -> Self:
        """Subscribe and start to send, on background threads; see `Subscriber.start`."""
        self._subscriber.start()
        return self

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
            return self._subscriber.run(mode=mode, timeout=timeout)
        finally:
            if not self.running:  # it may run already: then only this call has failed
                self._close()

    @closes
    def stop(self, mode: StopMode = "drain", timeout: Duration = 30.0) -> Report | None:
        """Stop, and wait until the dispatcher has stopped; see `Subscriber.stop` and `run`.

        ``"abandon"`` breaks off the requests that are outstanding. Their messages are redelivered.
        """
        report = self._subscriber.stop(mode, timeout)
        self._close()
        return report

    def result(self, timeout: Duration | None = None) -> Report:
        """Wait until the subscription has ended, and return the report; see `Subscriber.result`."""
        return self._subscriber.result(timeout)

    def _close(self) -> None:
        self._pusher.give_up(_CLOSING)
        self._metrics.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop()
        if kind is None and (error := self._subscriber.course.unraised()) is not None:
            raise error

    # -- while it runs ----------------------------------------------------------------------------

    def pause(self) -> None:
        """Send nothing more until `resume`; outstanding requests are settled as usual.

        The subscription stays open, and its messages wait. Pub/Sub does the same by a change of the
        subscription to pull.
        """
        self._pacer.pause()

    def resume(self) -> None:
        """Send again after `pause`."""
        self._pacer.resume()

    def change_endpoint(self, endpoint: str) -> None:
        """Post to another endpoint from now on, with a new window and without backoff.

        Outstanding requests to the earlier endpoint are settled by their answers.

        Raises:
            ConfigError: the endpoint is invalid; nothing has changed.
        """
        self._pusher.change(self._poster(endpoint))

    def update_policy(self, retry_policy: RetryPolicy) -> None:
        """Use another policy for all later failures; see `Subscriber.update_policy`."""
        self._subscriber.update_policy(retry_policy)

    @property
    def in_hand(self) -> tuple[int, int]:
        """How many messages, and how many bytes, are in hand: what flow control limits."""
        return self._subscriber.in_hand

    @property
    def health(self) -> Health:
        """The health of its subscription; see `Subscriber.health`."""
        return self._subscriber.health

    @property
    def running(self) -> bool:
        """Whether the dispatcher was started and has not ended."""
        return self._subscriber.running

    @property
    def pace(self) -> Pace:
        """The window, the outstanding requests, backoff and latency; also whether it is paused."""
        return self._pacer.pace()

    @property
    def endpoint(self) -> str:
        """The current endpoint: only its origin, because the path may contain a secret."""
        return str(self._pusher.poster.endpoint)

    @property
    def metrics(self) -> PushMetrics:
        """The metrics for Prometheus: those of the whole process, including this dispatcher's."""
        return self._metrics


def _for_subscriber(options: Options, pusher: Pusher, pacer: Pacer) -> Options:
    return attrs.evolve(options, handler=pusher, workers=LOOP, admission=pacer, around=pusher)
