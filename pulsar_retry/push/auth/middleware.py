"""WSGI and ASGI middleware for receivers: it passes on only verified requests."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from pulsar_retry.errors import PulsarRetryError

#: The key of the environ, or of the scope, under which an application finds the claims.
CLAIMS = "pulsar_retry.push.claims"

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class VerificationError(PulsarRetryError):
    """A request does not come from the expected sender. Answer 401: the dispatcher tries again."""


class KeysUnavailableError(VerificationError):
    """Nothing can be verified now, because the keys cannot be fetched. Answer 503."""


class RequestVerifier(ABC):
    """Verifies requests, and wraps applications."""

    @abstractmethod
    def verify(self, headers: Mapping[str, str]) -> Mapping[str, object]:
        """Return the verified claims of a request about its sender; raise `VerificationError`."""

    def wsgi(self, app: Wsgi) -> Wsgi:
        """Return a WSGI application that calls *app* only with verified requests.

        Other requests are answered 401, or 503 while the keys cannot be fetched. The verified
        claims are in the environ, as ``pulsar_retry.push.claims``.
        """

        def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            headers = {
                name.removeprefix("HTTP_").replace("_", "-"): value
                for name, value in environ.items()
                if name.startswith("HTTP_")
            }
            try:
                environ[CLAIMS] = self.verify(headers)
            except VerificationError as error:
                status, answer = _answer(error)
                start_response(status, [("Content-Type", "text/plain")])
                return [answer]
            return app(environ, start_response)

        return guarded

    def asgi(self, app: Asgi) -> Asgi:
        """Return an ASGI application that calls *app* only with verified requests; see `wsgi`.

        The verified claims are in the scope. Web sockets are closed; ``lifespan`` passes.
        """

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await app(scope, receive, send)
                return
            if scope["type"] != "http":
                await send({"type": "websocket.close", "code": 1008})
                return
            headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
            try:
                # On a thread, because it may fetch keys.
                scope[CLAIMS] = await asyncio.to_thread(self.verify, headers)
            except VerificationError as error:
                status, answer = _answer(error)
                await send(
                    {
                        "type": "http.response.start",
                        "status": int(status.split()[0]),
                        "headers": [(b"content-type", b"text/plain")],
                    }
                )
                await send({"type": "http.response.body", "body": answer})
                return
            await app(scope, receive, send)

        return guarded


def _answer(error: VerificationError) -> tuple[str, bytes]:
    """Return status and body; the body does not give the reason of the refusal."""
    if isinstance(error, KeysUnavailableError):
        return "503 Service Unavailable", b"keys are not available\n"
    return "401 Unauthorized", b"not verified\n"
