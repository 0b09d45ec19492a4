"""The console as an ASGI application."""

from __future__ import annotations

import contextlib
import logging
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from _pulsar import PulsarException
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from pulsar_retry.console.indexing import Indexer
from pulsar_retry.console.jobs import Jobs
from pulsar_retry.console.login import (
    COOKIE,
    Access,
    AccessMiddleware,
    address_of,
    user_of_token,
)
from pulsar_retry.console.lookup import LetterLookup
from pulsar_retry.console.pages import Form, Pages
from pulsar_retry.console.views import FILES, Views
from pulsar_retry.console.watch import Watcher
from pulsar_retry.errors import (
    AdminError,
    AdminForbiddenError,
    AdminNotFoundError,
    ConfigError,
    PulsarRetryError,
    UnreachableError,
)
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.wire.names import parts_of_namespace

__all__ = ["Console"]

_log = logging.getLogger("pulsar_retry")

_POST = ["POST"]
#: The limits for a form, in bytes and fields.
_MOST, _FIELDS = 64 * 1024, 300

_Handler = Callable[[Request, Form], Response]


class Console:
    """All objects of a console, and its pages. All its addresses are relative.

    So it can be below a prefix of a proxy, which removes the prefix.

    Attributes:
        lookup: Reads letters.
        jobs: Runs what was asked for.
        watcher: Watches topics.
        access: Decides about access.
    """

    def __init__(
        self,
        cluster: Cluster,
        access: Access,
        namespaces: Sequence[str],
        *,
        every: float = 15.0,
        audits: bool = True,
    ) -> None:
        """Connect the parts; nothing is asked yet.

        Args:
            cluster: The cluster.
            access: Decides about access.
            namespaces: The namespaces to show, as ``tenant/namespace``.
            every: Seconds between two questions to the broker.
            audits: Whether the audit log of each namespace is written.

        Raises:
            ConfigError: a namespace is invalid, or there is none.
        """
        names = _checked_namespaces(namespaces)
        indexer = Indexer(cluster)
        self.watcher = Watcher(cluster, names, every, indexer)
        self.lookup = LetterLookup(cluster, names, self.watcher, indexer)
        self.jobs = Jobs(cluster, audits=audits)
        self.access = access
        self._views = Views(access, lambda: self.watcher.problem)
        self._pages = Pages(cluster, self.lookup, self.jobs, self._views)

    def app(self) -> Starlette:
        """Return the ASGI application."""
        pages = self._pages
        routes = [
            Route("/", pages.overview),
            Route("/topic", pages.topic),
            Route("/letter", pages.letter),
            Route("/payload", pages.payload),
            Route("/export", pages.export),
            Route("/jobs", pages.job_list),
            Route("/job", pages.job),
            Route("/audit", pages.audit),
            Route("/act", pages.form),
            Route("/look", self._reading_form(pages.look), methods=_POST),
            Route("/confirm", self._reading_form(pages.confirm), methods=_POST),
            Route("/cancel", self._reading_form(pages.cancel), methods=_POST),
            Route("/login", self._login_page),
            Route("/login", self._reading_form(self._log_in), methods=_POST),
            Route("/logout", self._reading_form(self._log_out), methods=_POST),
            Route("/style.css", _file("style.css", "text/css; charset=utf-8")),
            Route("/console.js", _file("console.js", "text/javascript; charset=utf-8")),
            Route("/icon.svg", _file("icon.svg", "image/svg+xml")),
        ]
        faults = (HTTPException, PulsarRetryError, PulsarException)
        return Starlette(
            routes=routes,
            middleware=[Middleware(AccessMiddleware, access=self.access)],
            exception_handlers=dict.fromkeys(faults, self._error_page),
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.watcher.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.jobs.close)
            await run_in_threadpool(self.watcher.stop)

    # -- logging in -------------------------------------------------------------------------------

    def _login_page(self, request: Request) -> Response:
        return self._views.page("login.html", request, fault=None)

    def _log_in(self, request: Request, form: Form) -> Response:
        address = address_of(request.scope)
        session = self.access.log_in(dict(form).get("token", ""), address)
        if session is None:
            _log.warning("somebody from %s has sent a wrong token to the console", address)
            return self._views.page("login.html", request, status=403, fault="The token is wrong.")
        _log.info("%s has logged in to the console", user_of_token(address))
        answer = RedirectResponse("./", 303)
        # Behind a proxy with TLS, only the browser knows the scheme.
        secure = request.headers.get("origin", "").startswith("https")
        answer.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=secure)
        return answer

    def _log_out(self, request: Request, _form: Form) -> Response:
        self.access.log_out(request.cookies.get(COOKIE))
        answer = RedirectResponse("login", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    # -- forms and faults -------------------------------------------------------------------------

    def _reading_form(self, handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that reads one of our forms, and passes it to *handler*."""

        async def take(request: Request) -> Response:
            form = await _form(request)
            return await run_in_threadpool(handler, request, form)

        return take

    def _error_page(self, request: Request, error: Exception) -> Response:
        status, text = _status_and_text(error)
        return self._views.page("fault.html", request, status=status, text=text, code=status)


def _checked_namespaces(given: Sequence[str]) -> tuple[str, ...]:
    for each in given:
        parts_of_namespace(each)
    if not given:
        raise ConfigError("namespace: expected at least one")
    return tuple(dict.fromkeys(given))


async def _form(request: Request) -> Form:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST:
            raise HTTPException(413, "The form is too long.")
    try:
        return urllib.parse.parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        raise HTTPException(400, "This is not a valid form.") from None


#: The status of each kind of error; subclasses come before their base classes.
_STATUS = (
    (ConfigError, 400),
    (AdminForbiddenError, 403),
    (AdminNotFoundError, 404),
    (AdminError, 502),
    (UnreachableError, 502),
    (PulsarRetryError, 404),  # the topic or letter does not exist
)


def _status_and_text(error: Exception) -> tuple[int, str]:
    """Return the status and the text of an error."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status, str(error)
    return 502, f"The broker was not reached, or refused the request: {error}"


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    return lambda _request: FileResponse(FILES / name, media_type=kind)
