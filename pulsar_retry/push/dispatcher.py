"""The dispatcher: delivers a subscription to an HTTP endpoint, as Pub/Sub push does."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Sequence
from typing import Literal, Self

import attrs
import pulsar

from pulsar_retry.consumer.client import Client
from pulsar_retry.errors import ConfigError
from pulsar_retry.letters.plan import DEFAULT_MOST
from pulsar_retry.observe.hooks import Hooks
from pulsar_retry.observe.watch import Watch
from pulsar_retry.policy.checks import not_blank
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.durations import Duration
from pulsar_retry.policy.retry import RetryPolicy
from pulsar_retry.policy.settings import Setting
from pulsar_retry.pull.engine.settler import LETTERS, NACK
from pulsar_retry.pull.health import Health
from pulsar_retry.pull.options import LOOP, Options, checked_options
from pulsar_retry.pull.report import Report, StopMode
from pulsar_retry.pull.rules.breaker import Breaker
from pulsar_retry.pull.rules.flow import FlowControl
from pulsar_retry.pull.rules.lanes import Lanes
from pulsar_retry.pull.rules.lease import Lease
from pulsar_retry.pull.subscriber import Subscriber
from pulsar_retry.pull.workers.loop import RETRIES_IN_PLACE
from pulsar_retry.push.arguments import (
    USUAL,
    attribute_headers_of,
    checked_kind,
    checked_tls,
    deadline_of,
    flow_control_for,
    policy_of,
    signers_of,
)
from pulsar_retry.push.auth.hmacs import Hmac
from pulsar_retry.push.body import subscription_name as default_name
from pulsar_retry.push.http.descriptors import room_for
from pulsar_retry.push.http.endpoint import PushEndpoint
from pulsar_retry.push.http.guard import Guard
from pulsar_retry.push.http.poster import Poster
from pulsar_retry.push.metrics import PushMetrics
from pulsar_retry.push.pacing.pacer import Pace, Pacer
from pulsar_retry.push.pacing.window import EXPONENTIAL_UP_TO, LATENCY_LIMIT, Window
from pulsar_retry.push.pusher import Form, Pusher, Signer
from pulsar_retry.wire.codecs import Codec
from pulsar_retry.wire.envelope import Redact
from pulsar_retry.wire.names import Naming

#: Seconds to wait for connections to be closed.
_CLOSING = 5.0

_LANES, _GUARD = Lanes(), Guard()
_EARLIEST = pulsar.InitialPosition.Earliest

#: Leases are the subscriber's clock; a dispatcher's is the deadline of each request.
_LEASE = Lease(max_total=math.inf)


class Dispatcher:
    """Posts every message of a subscription to an endpoint, and settles it by the answer.

    The counterpart of a Pub/Sub push subscription: its body, its codes, its window and its backoff.
    102, 200, 201, 202 and 204 acknowledge; everything else, a redirect, no whole answer within
    *ack_deadline* and a connection that breaks included, is a negative acknowledgement. Underneath
    is a `Subscriber`: retries, dead letters, ordering, flow control and the breaker are its own.

    Without a *retry_policy* a negative acknowledgement has the message redelivered at once, as fast
    as the push backoff allows, and the broker counts its attempts; with one it goes by letters.

    Thread-safe. A dispatcher runs once. Several may serve one subscription: each has a window and a
    backoff of its own.
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
        sign: Signer | Sequence[Signer] | None = None,
        audience: str | None = None,
        wrapped: bool = True,
        write_metadata: bool = False,
        attribute_headers: Sequence[str] = (),
        subscription_name: str | None = None,
        consumer_type: pulsar.ConsumerType | None = None,
        redelivery: Literal["letters", "nack"] | None = None,
        flow_control: FlowControl | None = None,
        lanes: Lanes = _LANES,
        breaker: Breaker | None = None,
        max_outstanding: int = EXPONENTIAL_UP_TO,
        latency_limit: Duration = LATENCY_LIMIT,
        guard: Guard = _GUARD,
        allow_http: bool = False,
        http2: bool = True,
        tls: ssl.SSLContext | None = None,
        paused: bool = False,
        prefetch: int = 100,
        initial_position: pulsar.InitialPosition = _EARLIEST,
        naming: Naming | str = Naming.PULSAR,
        codec: Codec | str = Codec.PULSAR,
        redact: Redact | None = None,
        consumer_name: str | None = None,
        letter_send_timeout: Duration = 30.0,
        dedupe_letters: int = DEFAULT_MOST,
        hooks: Hooks | None = None,
    ) -> None:
        """Make a dispatcher; it is not started.

        Args:
            client: The client. It stays the caller's to close.
            topic: A topic or a list of topics.
            subscription: The subscription. A new one starts at *initial_position*.
            endpoint: An ``https://`` URL; ``http://`` to loopback, or with *allow_http*.
            ack_deadline: Seconds or a timedelta, 10 to 600, for the whole answer.
            retry_policy: What becomes of what is not acknowledged (`PushNacked`). What it leaves
                open the client's `retry_policy` says, or the default: after 17 attempts a message
                is dead-lettered, also where there is no *dead_letter_policy*; Pub/Sub's own, which
                goes on without end, is `RetryPolicy.pubsub`. None: it is redelivered at once,
                without end where there is no *dead_letter_policy* either.
            dead_letter_policy: The letters' topics, and the number of attempts where the retry
                policy has none. With it receivers are told the ``deliveryAttempt``.
            sign: What proves to receivers who posts: a `ServiceAccount`, an `Hmac`, or both. None:
                nothing.
            audience: The ``aud`` of tokens, which a `ServiceAccount` has to sign. None: the
                endpoint's URL.
            wrapped: Whether the body is Pub/Sub's JSON; else it is the payload.
            write_metadata: Whether an unwrapped message's id, time, key and attributes are sent as
                headers; attributes as ``X-Pulsar-Attribute-<name>``.
            attribute_headers: Attributes that are sent without that prefix, such as
                ``["Content-Type"]``: producers choose their values, and receivers act upon headers.
            subscription_name: What receivers are told as ``subscription``. None:
                ``projects/<tenant>/subscriptions/<subscription>``.
            consumer_type: See `Client.subscriber`. On Key_Shared a key's messages are posted in
                order.
            redelivery: See `Client.subscriber`. None: ``"letters"`` with a retry policy, else
                ``"nack"``.
            flow_control: How much is in hand at most: outstanding, received ahead, or parked in
                lanes. None: so many messages that *max_outstanding* is the limit, and 100 MiB.
            lanes: See `Client.subscriber`.
            breaker: See `Client.subscriber`. A negative acknowledgement is a failure.
            max_outstanding: Requests outstanding at most, each on a connection of its own; beyond
                3000 the window grows slowly. Fewer where the process may not have so many files
                open (``ulimit -n``), which is logged.
            latency_limit: Seconds or a timedelta: while answers take longer on average, no more
                than 3000 requests are outstanding; math.inf: no such limit.
            guard: Which addresses may be connected to.
            allow_http: Whether ``http://`` is accepted to other hosts than loopback.
            http2: Whether HTTP/2 is offered; one request at a time on each connection, as on
                HTTP/1.1. (There 102 alone is no answer: the protocol has no such thing, and such a
                request fails.)
            tls: Whose certificates are trusted, and the client's own. Certificates and host names
                have to be verified. Several dispatchers may share it: each sets its ALPN protocols
                anew, whenever it connects. None: what the system trusts.
            paused: Whether nothing is sent before `resume`.
            prefetch: Messages in pulsar-client's own queue, beside those in hand.
            initial_position: Where a new subscription starts.
            naming: See `Client.subscriber`.
            codec: See `Client.subscriber`.
            redact: See `Client.subscriber`.
            consumer_name: The consumer's name.
            letter_send_timeout: Seconds until a letter without a receipt has failed.
            dedupe_letters: Letters that are remembered to tell duplicates (`Client.subscribe`).
            hooks: See `Client.subscriber`.

        Raises:
            ConfigError: an argument is not acceptable. Nothing was opened.
        """
        self._guard = checked_kind("guard", guard, Guard)
        self._tls = checked_tls(tls)
        self._deadline = deadline_of(ack_deadline)
        for name, value in {
            "wrapped": wrapped,
            "write_metadata": write_metadata,
            "allow_http": allow_http,
            "http2": http2,
            "paused": paused,
        }.items():
            checked_kind(name, value, bool)
        if wrapped and write_metadata:
            raise ConfigError.bad("write_metadata", True, "wrapped=False beside it")  # noqa: FBT003 - a value
        for name, text in {"audience": audience, "subscription_name": subscription_name}.items():
            if text is not None:
                not_blank(name, text, "a text that is not blank, or None")
        signers = signers_of(sign)
        if audience is not None and all(isinstance(each, Hmac) for each in signers):
            raise ConfigError.bad(
                "audience", audience, "a ServiceAccount as sign: it is of its tokens"
            )
        self._allow_http, self._http2 = allow_http, http2
        window = Window(maximum=max_outstanding, latency_limit=latency_limit)
        window = attrs.evolve(window, maximum=room_for(window.maximum))
        options = checked_options(
            # What a policy of the dispatcher's leaves open. Having none has a meaning of its own.
            client_policy=None if retry_policy is None else getattr(client, "retry_policy", None),
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
            codec=codec,
            redact=redact,
            consumer_name=consumer_name,
            letter_send_timeout=letter_send_timeout,
            dedupe_letters=dedupe_letters,
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
            signers=signers,
            codec=options.codec,
        )
        self._pacer = Pacer(window)
        self._tally = PushMetrics(Watch.of(topic, subscription).ledger)
        self._pusher = Pusher(
            self._poster(endpoint),
            self._pacer,
            form,
            self._tally,
            retries_in_place=RETRIES_IN_PLACE.get,
        )
        if paused:
            self._pacer.pause()
        self._subscriber = Subscriber(client, _with(options, self._pusher, self._pacer))
        self._tally.watch(self._pacer.pace)

    def _poster(self, endpoint: str) -> Poster:
        return Poster(
            PushEndpoint.of(endpoint, allow_http=self._allow_http),
            deadline=self._deadline,
            guard=self._guard,
            http2=self._http2,
            trust=self._tls,
        )

    # -- starting and stopping --------------------------------------------------------------------

    def start(self) -> Self:
        """Subscribe and begin, on threads of its own; see `Subscriber.start`."""
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

        Draining waits for the answers to what was sent, and sends nothing more: what was not sent
        yet is handed back. *ready* is called, on another thread, when it has subscribed.
        """
        self._pusher.ready = ready
        try:
            return self._subscriber.run(mode=mode, timeout=timeout)
        finally:
            if not self.running:  # it may run already: this call has failed, the others go on
                self._close()

    def stop(self, mode: StopMode = "drain", timeout: Duration = 30.0) -> Report | None:
        """Stop, and wait until that is done; see `Subscriber.stop`, and `run`.

        ``"abandon"`` breaks off requests that are on their way; their messages are redelivered.
        """
        report = self._subscriber.stop(mode, timeout)
        self._close()
        return report

    def result(self, timeout: Duration | None = None) -> Report:
        """Wait until the subscription has ended, and return how; see `Subscriber.result`."""
        return self._subscriber.result(timeout)

    def _close(self) -> None:
        self._pusher.give_up(_CLOSING)
        self._tally.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- while it runs ----------------------------------------------------------------------------

    def pause(self) -> None:
        """Send nothing more until `resume`; what is on its way is settled as usual.

        Where Pub/Sub stops by changing the subscription to pull. The subscription stays, and
        messages wait in it.
        """
        self._pacer.pause()

    def resume(self) -> None:
        """Go on after a pause."""
        self._pacer.resume()

    def change_endpoint(self, endpoint: str) -> None:
        """Post to another endpoint from now on, with a new window and without backoff.

        What is on its way to the earlier one is settled by its answer.

        Raises:
            ConfigError: it is not acceptable; nothing has changed.
        """
        self._pusher.change(self._poster(endpoint))

    def update_policy(self, retry_policy: RetryPolicy) -> None:
        """Judge what is not acknowledged by another policy; see `Subscriber.update_policy`."""
        self._subscriber.update_policy(retry_policy)

    def describe(self) -> tuple[Setting, ...]:
        """Return each value of the retry policy with its origin; see `Subscriber.describe`."""
        return self._subscriber.describe()

    @property
    def in_hand(self) -> tuple[int, int]:
        """How many messages it holds, and how many bytes: what flow control limits."""
        return self._subscriber.in_hand

    @property
    def health(self) -> Health:
        """How its subscription is; see `Subscriber.health`."""
        return self._subscriber.health

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._subscriber.running

    @property
    def pace(self) -> Pace:
        """The window, what is outstanding, backoff and latency; whether it is paused or ends."""
        return self._pacer.pace()

    @property
    def endpoint(self) -> str:
        """Where it posts to now: the origin alone, for the path may hold a secret."""
        return str(self._pusher.poster.endpoint)

    @property
    def metrics(self) -> PushMetrics:
        """What Prometheus is told: the metrics of this process, its own among them."""
        return self._tally


def _with(options: Options, pusher: Pusher, pacer: Pacer) -> Options:
    return attrs.evolve(options, handler=pusher, workers=LOOP, admission=pacer, around=pusher)
