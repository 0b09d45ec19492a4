"""The console as an ASGI application."""

from __future__ import annotations

import base64
import contextlib
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
from _pulsar import PulsarException
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import Route

from pulsar_retry._throttle import TooManyTriesError
from pulsar_retry.console.access import COOKIE, Access
from pulsar_retry.console.chart import chart
from pulsar_retry.console.depth import Depths
from pulsar_retry.console.desk import LetterBrowser
from pulsar_retry.console.gate import AccessMiddleware, address_of, retry_after
from pulsar_retry.console.jobs import Jobs, RedriveRequest, where_of
from pulsar_retry.console.payload import FORMS, displayed
from pulsar_retry.console.views import FILES, Views, link
from pulsar_retry.errors import (
    AdminError,
    AdminForbiddenError,
    AdminNotFoundError,
    ConfigError,
    PulsarRetryError,
    UnreachableError,
)
from pulsar_retry.ops.showing import record_of
from pulsar_retry.wire.letter_topics import kind_of

__all__ = ["Console"]

_POST = ["POST"]
#: The limits for a form, in bytes and fields.
_MOST, _FIELDS = 16 * 1024, 40
_FILTER = ("reason", "error", "fingerprint", "key", "since", "until")

_Form = dict[str, str]
_Handler = Callable[[Request, _Form], Response]


@attrs.frozen
class Console:
    """The pages, and the objects that they use.

    Attributes:
        desk: Reads letters.
        jobs: Runs redrives.
        depths: Knows earlier backlogs.
        access: Decides about access.
    """

    desk: LetterBrowser
    jobs: Jobs
    depths: Depths
    access: Access
    _views: Views = attrs.field(
        init=False, default=attrs.Factory(lambda self: Views(self.access), takes_self=True)
    )

    def app(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            Route("/", self._topics),
            Route("/topic", self._topic),
            Route("/letter", self._letter),
            Route("/redrives", self._redrives),
            Route("/redrive", self._redrive),
            Route("/redrive/look", self._reading_form(self._start_dry_run), methods=_POST),
            Route("/redrive/confirm", self._reading_form(self._confirm), methods=_POST),
            Route("/redrive/cancel", self._reading_form(self._cancel), methods=_POST),
            Route("/job", self._job),
            Route("/login", self._login_page),
            Route("/login", self._reading_form(self._log_in), methods=_POST),
            Route("/logout", self._reading_form(self._log_out), methods=_POST),
            Route("/style.css", _file("style.css", "text/css; charset=utf-8")),
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
        self.depths.start()
        try:
            yield
        finally:
            self.depths.stop()
            await run_in_threadpool(self.jobs.close)

    # -- reading ----------------------------------------------------------------------------------

    def _topics(self, request: Request) -> Response:
        namespace = request.query_params.get("namespace") or self.desk.namespaces[0]
        topics = self.desk.topics(namespace)
        lines = {each.topic: chart(self.depths.of(each.topic), 120, 28) for each in topics}
        return self._views.page(
            "topics.html",
            request,
            namespaces=self.desk.namespaces,
            namespace=namespace,
            topics=topics,
            lines=lines,
        )

    def _topic(self, request: Request) -> Response:
        query = dict(request.query_params)
        topic = self.desk.checked(query.get("name", ""))
        asked = {name: query[name] for name in _FILTER if query.get(name)}
        return self._views.page(
            "topic.html",
            request,
            topic=topic,
            kind=kind_of(topic),
            asked=asked,
            contents=self.desk.contents(topic, where_of(asked)),
            line=chart(self.depths.of(topic), 720, 140),
        )

    def _letter(self, request: Request) -> Response:
        query = request.query_params
        topic, message_id = self.desk.checked(query.get("name", "")), query.get("id", "")
        facts = self.desk.letter(topic, message_id)
        payload, record = _payload(facts), record_of(facts)
        shown = None if payload is None else displayed(payload, query.get("as"), record)
        return self._views.page(
            "letter.html",
            request,
            topic=topic,
            facts=facts,
            forms=FORMS,
            payload=shown,
        )

    # -- redriving --------------------------------------------------------------------------------

    def _redrives(self, request: Request) -> Response:
        return self._views.page("redrives.html", request, jobs=self.jobs.all())

    def _redrive(self, request: Request) -> Response:
        query = dict(request.query_params)
        topic = self.desk.checked(query.get("name", ""))
        return self._views.page(
            "redrive.html", request, topic=topic, wanted=RedriveRequest.of(query, topic)
        )

    def _start_dry_run(self, _request: Request, form: _Form) -> Response:
        job = self.jobs.look(RedriveRequest.of(form, self.desk.checked(form.get("name", ""))))
        return _to(link("/job", id=job.id))

    def _confirm(self, _request: Request, form: _Form) -> Response:
        return _to(link("/job", id=self.jobs.confirm(form.get("plan", "")).id))

    def _cancel(self, _request: Request, form: _Form) -> Response:
        job = self.jobs.get(form.get("id", ""))
        if job is None:
            raise HTTPException(404)
        job.cancel()
        return _to(link("/job", id=job.id))

    def _job(self, request: Request) -> Response:
        job = self.jobs.get(request.query_params.get("id", ""))
        if job is None:
            raise HTTPException(
                404, "There is no such redrive, or the console no longer remembers it."
            )
        return self._views.page("job.html", request, job=job, progress=job.progress)

    # -- logging in -------------------------------------------------------------------------------

    def _login_page(self, request: Request) -> Response:
        return self._views.page("login.html", request, fault=None)

    def _log_in(self, request: Request, form: _Form) -> Response:
        try:
            session = self.access.log_in(form.get("token", ""), address_of(request.scope))
        except TooManyTriesError as error:
            page = self._views.page("login.html", request, status=429, fault=f"There were {error}.")
            page.headers.update(retry_after(error))
            return page
        if session is None:
            return self._views.page("login.html", request, status=403, fault="The token is wrong.")
        answer = _to("/")
        # Behind a proxy with TLS, only the browser knows the scheme.
        secure = request.headers.get("origin", "").startswith("https:")
        answer.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=secure)
        return answer

    def _log_out(self, request: Request, _form: _Form) -> Response:
        self.access.log_out(request.cookies.get(COOKIE))
        answer = _to("/login")
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    # -- forms and faults -------------------------------------------------------------------------

    def _reading_form(self, handler: _Handler) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint that reads one of our forms, and passes it to *handler*."""

        async def take(request: Request) -> Response:
            form = await _form(request)
            if not self.access.is_our_form(form.get("form_token", "")):
                raise HTTPException(
                    403,
                    "This form does not come from this console, or is older than its last start.",
                )
            return await run_in_threadpool(handler, request, form)

        return take

    def _error_page(self, request: Request, error: Exception) -> Response:
        status, text = _status_and_text(error)
        return self._views.page("fault.html", request, status=status, text=text, code=status)


async def _form(request: Request) -> _Form:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST:
            raise HTTPException(413, "The form is too long.")
    try:
        pairs = urllib.parse.parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=_FIELDS
        )
    except ValueError:
        raise HTTPException(400, "This is not a valid form.") from None
    return dict(pairs)


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


def _payload(facts: dict[str, Any]) -> bytes | None:
    """Return the payload from `facts_of`; None for a null value."""
    if "payload" in facts:
        return str(facts["payload"]).encode()
    if "payload_base64" in facts:
        return base64.b64decode(facts["payload_base64"])
    return None


def _to(address: str) -> RedirectResponse:
    return RedirectResponse(address, 303)


def _file(name: str, kind: str) -> Callable[[Request], Response]:
    return lambda _request: FileResponse(FILES / name, media_type=kind)
