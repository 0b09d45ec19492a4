"""The handler of a dispatcher's subscriber: it sends a request for each message."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, Self

import attrs

from pulsar_retry.observe.tracing import outgoing
from pulsar_retry.push.auth.tokens import ServiceAccount
from pulsar_retry.push.body import (
    OF_LETTERS,
    Header,
    Pushed,
    common_headers,
    unwrapped_headers,
    wrapped,
    wrapped_headers,
)
from pulsar_retry.push.errors import PushNacked
from pulsar_retry.push.http import Poster
from pulsar_retry.push.metrics import PushMetrics
from pulsar_retry.push.pacing.pacer import Pacer
from pulsar_retry.wire.owner import Recipient

_log = logging.getLogger("pulsar_retry")


@attrs.frozen(kw_only=True)
class Form:
    """What requests look like.

    Attributes:
        subscription: The subscription's name for receivers.
        wrapped: Whether the body is Pub/Sub's envelope.
        write_metadata: Whether an unwrapped body has its metadata in headers.
        attribute_headers: Names of attributes that are headers without a prefix, in lower case.
        tells_attempt: Whether ``deliveryAttempt`` is sent.
        audience: The audience of tokens; None means the URL of the endpoint.
        account: The account that signs requests, if any.
        of_letters: The names of properties that only letters have, and that are not sent.
    """

    subscription: str
    wrapped: bool = True
    write_metadata: bool = False
    attribute_headers: frozenset[str] = frozenset()
    tells_attempt: bool = False
    audience: str | None = None
    account: ServiceAccount | None = None
    of_letters: frozenset[str] = OF_LETTERS


class Pusher:
    """Called on an event loop with each message; raises an error if it is not acknowledged.

    As a context manager, it is entered on that loop before the first message and left after the
    last one. `change` and `give_up` may be called on any thread.

    Attributes:
        ready: Called when it is entered.
    """

    def __init__(
        self,
        poster: Poster,
        pacer: Pacer,
        form: Form,
        metrics: PushMetrics,
        *,
        recipient: Callable[[], Recipient],
        retries_in_place: Callable[[], int],
    ) -> None:
        """Make a pusher.

        Both functions are called with each message: *recipient* tells which letters are its own,
        *retries_in_place* how often a lane has retried it.
        """
        self._recipient = recipient
        self._poster = poster
        self._pacer = pacer
        self._form = form
        self._metrics = metrics
        self._retries_in_place = retries_in_place
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_work: set[asyncio.Task[Any]] = set()
        self._logged: set[str] = set()
        self._has_left = threading.Event()
        self.ready: Callable[[], object] | None = None

    @property
    def poster(self) -> Poster:
        """The current target of requests."""
        return self._poster

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self.ready is not None:
            self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._poster.aclose()
        finally:
            self._has_left.set()

    async def __call__(self, message: Any) -> None:
        """Push *message*.

        Raises:
            PushNacked: the endpoint has not acknowledged it.
            Exception: no request could be made for the message.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a running coroutine is always in a task
        self._at_work.add(task)
        ticket = self._pacer.begin()
        try:
            poster = self._poster
            body, headers = self._request(message)
            token = self._token(poster)
            if token:
                headers.append((b"Authorization", f"Bearer {token}".encode()))
            answer = await poster.post(body, headers)
        except Exception:
            self._pacer.leave(ticket, acked=False)
            self._metrics.unsent()
            raise
        except BaseException:
            self._pacer.forget()
            raise
        finally:
            self._at_work.discard(task)
        latency = self._pacer.leave(ticket, acked=answer.is_ack)
        self._metrics.answered(answer, latency)
        if not answer.is_ack:
            raise PushNacked.of(poster.endpoint, answer, token)

    def _request(self, message: Any) -> tuple[bytes, list[Header]]:
        """Return the body, and the headers without the token."""
        form = self._form
        pushed = Pushed.of(message, self._recipient(), form.of_letters)
        attempt = pushed.attempt + self._retries_in_place()
        headers = common_headers(pushed, attempt)
        if form.wrapped:
            body = wrapped(pushed, form.subscription, attempt if form.tells_attempt else None)
            headers += wrapped_headers()
        else:
            body = pushed.data or b""
            own, left_out = unwrapped_headers(
                pushed,
                form.subscription,
                write_metadata=form.write_metadata,
                attribute_headers=form.attribute_headers,
            )
            headers += own
            self._log_left_out(left_out)
        if traced := outgoing():
            taken = {name.lower() for name, _ in headers}
            own = [(name.encode(), value.encode()) for name, value in traced.items()]
            headers += [each for each in own if each[0].lower() not in taken]
        return body, headers

    def _token(self, poster: Poster) -> str:
        """Return the token that proves the sender; empty without an account."""
        account = self._form.account
        return "" if account is None else account.token(self._form.audience or poster.endpoint.url)

    def _log_left_out(self, left_out: list[str]) -> None:
        """Log each attribute that cannot be a header, once."""
        for name in left_out:
            if name not in self._logged and len(self._logged) < _MOST_LOGGED:
                self._logged.add(name)
                _log.warning(
                    "the attribute %.100r is not sent, because it cannot be a header", name
                )

    def change(self, poster: Poster) -> None:
        """Post to another endpoint from now on; outstanding requests are not affected."""
        before, self._poster = self._poster, poster
        self._pacer.begin_anew()
        self._on_loop(lambda: _spawn(before.aclose()))

    def give_up(self, timeout: float) -> None:
        """Break off all outstanding requests; wait until the connections are closed."""
        if self._loop is not None:
            self._on_loop(lambda: [task.cancel() for task in self._at_work])
            self._has_left.wait(timeout)

    def _on_loop(self, act: Callable[[], object]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(act)


_closing: set[asyncio.Task[None]] = set()


def _spawn(coroutine: Any) -> None:
    task = asyncio.get_running_loop().create_task(coroutine)
    _closing.add(task)
    task.add_done_callback(_closing.discard)


#: How many attributes are logged at most: producers can choose any names.
_MOST_LOGGED = 100
