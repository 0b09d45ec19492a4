"""The handler of a dispatcher's subscriber: it sends a request for each message."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, Self

from pulsar_retry.observe.counting import Counters
from pulsar_retry.observe.tracing import outgoing
from pulsar_retry.policy.outcomes import Reject
from pulsar_retry.policy.retry import NOT_RETRYABLE
from pulsar_retry.pull.workers.loop import RECIPIENT
from pulsar_retry.push.body import (
    BYTES_CONTENT,
    JSON_CONTENT,
    Header,
    Pushed,
    common_headers,
    wrapped,
)
from pulsar_retry.push.errors import PushNacked
from pulsar_retry.push.form import Form
from pulsar_retry.push.http import Poster
from pulsar_retry.push.pacing import Pacer


class Pusher:
    """Called on an event loop with each message; raises an error if it is not acknowledged.

    As a context manager, it is entered on that loop before the first message and left after the
    last one. `give_up` may be called on any thread.

    Attributes:
        poster: Sends the requests.
        ready: Called when it is entered.
    """

    def __init__(
        self,
        poster: Poster,
        pacer: Pacer,
        form: Form,
        counters: Counters,
        *,
        tells_attempt: bool,
        of_letters: frozenset[str],
        dead_letter_statuses: frozenset[int],
    ) -> None:
        """Make a pusher.

        Args:
            poster: Sends the requests.
            pacer: Told of each request and its result.
            form: What requests look like, with the subscription's name.
            counters: Count each result.
            tells_attempt: Whether ``deliveryAttempt`` is sent.
            of_letters: The names of properties that only letters have, and that are not sent.
            dead_letter_statuses: The statuses after which a message is not retried.
        """
        self._tells_attempt = tells_attempt
        self._of_letters = of_letters
        self._dead_letter_statuses = dead_letter_statuses
        self.poster = poster
        self._pacer = pacer
        self._form = form
        self._counters = counters
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_work: set[asyncio.Task[Any]] = set()
        self._has_left = threading.Event()
        self.ready: Callable[[], object] | None = None
        counters.attach(self)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self.ready is not None:
            self.ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.poster.close()
        self._has_left.set()

    async def __call__(self, message: Any) -> None:
        """Push *message*.

        Raises:
            PushNacked: the endpoint has not acknowledged it.
            Reject: … with a status that is final.
            Exception: no request could be made for the message.
        """
        task = asyncio.current_task()
        assert task is not None  # a running coroutine is always in a task
        self._at_work.add(task)
        ticket = self._pacer.begin()
        try:
            body, headers = self._request(message)
            token = self._token()
            if token:
                headers.append((b"Authorization", f"Bearer {token}".encode()))
            answer = await self.poster.post(body, headers)
        except Exception:
            self._pacer.leave(ticket, acked=False)
            self._counters.count("push_requests", "unsent")
            self._counters.count("push_nacked")
            raise
        except BaseException:
            self._pacer.forget()
            raise
        finally:
            self._at_work.discard(task)
        self._pacer.leave(ticket, acked=answer.is_ack, retry_after=answer.retry_after)
        self._counters.count("push_requests", answer.code)
        self._counters.count("push_acked" if answer.is_ack else "push_nacked")
        if not answer.is_ack:
            error = PushNacked.of(self.poster.endpoint, answer, token)
            if answer.status in self._dead_letter_statuses:
                raise Reject(NOT_RETRYABLE) from error
            raise error

    def _request(self, message: Any) -> tuple[bytes, list[Header]]:
        """Return the body, and the headers without the token."""
        form, subscription = self._form, self._form.subscription_name or ""
        pushed = Pushed.of(message, RECIPIENT.get(), self._of_letters)
        attempt = pushed.attempt + message.retries_in_lane
        headers = common_headers(pushed, attempt)
        if form.wrapped:
            body = wrapped(pushed, subscription, attempt if self._tells_attempt else None)
            headers.append(JSON_CONTENT)
        else:
            body = pushed.data or b""
            headers.append(BYTES_CONTENT)
        if traced := outgoing():
            taken = {name.lower() for name, _ in headers}
            own = [(name.encode(), value.encode()) for name, value in traced.items()]
            headers += [each for each in own if each[0].lower() not in taken]
        return body, headers

    def _token(self) -> str:
        """Return the token that proves the sender; empty without an account."""
        form = self._form
        audience = form.audience or self.poster.endpoint.url
        return "" if form.sign is None else form.sign.token(audience)

    def gauges(self) -> dict[str, float]:
        """Return the current values of gauges."""
        pace = self._pacer.pace()
        return {
            "push_window": float(pace.window),
            "push_outstanding": float(pace.outstanding),
            "push_backoff_seconds": pace.delay,
            "push_latency_seconds": pace.latency,
        }

    def give_up(self, timeout: float) -> None:
        """Break off all outstanding requests; wait until the connections are closed."""
        self._counters.detach(self)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._at_work])
            self._has_left.wait(timeout)
