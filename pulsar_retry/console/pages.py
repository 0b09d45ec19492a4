"""The pages, and the forms that change something, each after a dry run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from pulsar_retry.console.filtering import NAMES, Query
from pulsar_retry.console.forms import DONE, JobForm
from pulsar_retry.console.jobs import Jobs
from pulsar_retry.console.letters import histogram
from pulsar_retry.console.lookup import LetterLookup
from pulsar_retry.console.payload import FORMS, displayed, payload_of
from pulsar_retry.console.views import Views, link
from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.audit import read_audit
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.ops.showing import record_of
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.wire.names import kind_of

#: The fields of a form, of which a name may occur several times.
Form = Sequence[tuple[str, str]]

_HOUR = 3600.0
#: The times that charts show, in seconds, and the number of their bars.
SPANS = {
    "1h": (_HOUR, 12),
    "24h": (24 * _HOUR, 48),
    "7d": (168 * _HOUR, 56),
    "30d": (720 * _HOUR, 60),
}
_USUAL = "24h"
_TOP, _ENTRIES = 10, 200


@attrs.frozen
class Pages:
    """The pages, and the objects that they show. Thread-safe."""

    cluster: Cluster
    lookup: LetterLookup
    jobs: Jobs
    views: Views

    # -- letters ----------------------------------------------------------------------------------

    def overview(self, request: Request) -> Response:
        """Show all topics, and what their letters have died of."""
        asked = request.query_params.get("namespace", "")
        namespaces = (asked,) if asked else self.lookup.namespaces
        topics = {each: list(self.lookup.topics(each)) for each in namespaces}
        all_topics = [topic for each in topics.values() for topic in each]
        dead = [each.topic for each in all_topics if each.kind == "dead_letter" and each.backlog]
        found = [self.lookup.summary(each) for each in dead]
        deaths: Counter[int] = Counter()
        for each in found:
            deaths.update(each.deaths)
        groups = [group for each in found for group in each.groups[:_TOP]]
        jobs = self.jobs.all()
        return self.views.page(
            "overview.html",
            request,
            namespaces=self.lookup.namespaces,
            asked=asked,
            topics=topics,
            totals=_totals(all_topics),
            **_charted(deaths, request),
            top=sorted(groups, key=lambda each: -each.count)[:_TOP],
            running=sum(each.runs for each in jobs),
            awaiting=[each for each in jobs if each.awaits_answer],
        )

    def topic(self, request: Request) -> Response:
        """Show the letters of a topic."""
        params = request.query_params
        topic = self.lookup.checked(params.get("name", ""))
        query = Query(params.multi_items())
        if "filter" in params:  # what was typed becomes a URL that can be shared
            typed = Query.typed(params["filter"])
            return RedirectResponse(link("topic", typed.pairs, name=topic), 303)
        contents = self.lookup.contents(topic, query.where(), params.get("after"))
        sample = None
        # A page that asks for itself anew takes only its live parts.
        is_anew = "x-live" in request.headers
        if query and len(contents.groups) == 1 and contents.letters and not is_anew:
            sample = self.lookup.letter(topic, contents.letters[0].id)
        return self.views.page(
            "topic.html",
            request,
            topic=topic,
            kind=kind_of(topic),
            query=query,
            contents=contents,
            sample=sample,
            owner=self._owner(topic),
            **_charted(contents.deaths, request),
            is_first=not params.get("after"),
        )

    def letter(self, request: Request) -> Response:
        """Show one letter."""
        params = request.query_params
        topic, message_id = self.lookup.checked(params.get("name", "")), params.get("id", "")
        facts = self.lookup.letter(topic, message_id)
        query = Query([each for each in params.multi_items() if each[0] != "id"])
        payload, record = payload_of(facts), record_of(facts)
        return self.views.page(
            "letter.html",
            request,
            topic=topic,
            query=query,
            facts=facts,
            forms=FORMS,
            payload=None if payload is None else displayed(payload, params.get("as"), record),
        )

    def payload(self, request: Request) -> Response:
        """Download a payload as it is."""
        params = request.query_params
        topic, message_id = self.lookup.checked(params.get("name", "")), params.get("id", "")
        payload = payload_of(self.lookup.letter(topic, message_id))
        if payload is None:
            raise HTTPException(404, "This letter has a null value: there is no payload.")
        return Response(
            payload, media_type="application/octet-stream", headers=_saved("payload.bin")
        )

    def export(self, request: Request) -> Response:
        """Download letters as JSON Lines."""
        topic = self.lookup.checked(request.query_params.get("name", ""))
        where = Query(request.query_params.multi_items()).where()
        name = f"{topic.rpartition('/')[2]}.jsonl"
        safe = "".join(each if each.isalnum() or each in "-._" else "_" for each in name)
        return StreamingResponse(
            self.lookup.exported(topic, where),
            media_type="application/x-ndjson",
            headers=_saved(safe.encode("ascii", "replace").decode().replace("?", "_")),
        )

    def _owner(self, topic: str) -> LetterTopic | None:
        namespace = "/".join(topic.partition("://")[2].split("/")[:2])
        return next((each for each in self.lookup.topics(namespace) if each.topic == topic), None)

    # -- what is done -----------------------------------------------------------------------------

    def job_list(self, request: Request) -> Response:
        """Show the dry runs that await an answer, and the jobs, the latest first."""
        found = self.jobs.all()
        return self.views.page(
            "jobs.html",
            request,
            awaiting=[each for each in found if each.awaits_answer],
            jobs=[each for each in found if each.runs or not each.dry_run][:_ENTRIES],
        )

    def job(self, request: Request) -> Response:
        """Show one job."""
        job = self.jobs.get(request.query_params.get("id", ""))
        if job is None:
            raise HTTPException(
                404, "The console does not know this job. The audit log may have what was done."
            )
        return self.views.page("job.html", request, job=job)

    def audit(self, request: Request) -> Response:
        """Show who did what: from the console, and by commands."""
        namespace = request.query_params.get("namespace") or self.lookup.namespaces[0]
        self.lookup.topics(namespace)  # checks it
        entries = read_audit(self.cluster, namespace)[:_ENTRIES]
        return self.views.page(
            "audit.html",
            request,
            namespaces=self.lookup.namespaces,
            namespace=namespace,
            entries=[(each, _again(each.verb, each.target, each.given)) for each in entries],
        )

    # -- forms ------------------------------------------------------------------------------------

    def form(self, request: Request) -> Response:
        """Show the form of a job."""
        pairs = request.query_params.multi_items()
        wanted = JobForm.of(pairs, self.lookup.checked(_one(pairs, "name")))
        if wanted.verb not in DONE:
            raise ConfigError.bad("verb", wanted.verb, ", ".join(DONE))
        self.lookup.refresh(wanted.source)
        owner = self._owner(wanted.source)
        if owner and kind_of(wanted.source) is None and not (wanted.topic or wanted.subscription):
            wanted = attrs.evolve(
                wanted, topic=owner.main_topic or "", subscription=owner.subscription or ""
            )
        return self.views.page(
            "act.html",
            request,
            form=wanted,
            matching=self.lookup.count(wanted.source, wanted.query.where()),
            is_retry=kind_of(wanted.source) == "retry",
        )

    def look(self, request: Request, form: Form) -> Response:
        """Start a dry run."""
        wanted = JobForm.of(form, self.lookup.checked(_one(form, "name"))).settled()
        total = self.lookup.count(wanted.source, wanted.query.where()) if wanted.query else None
        job = self.jobs.look(wanted, _user(request), total)
        return RedirectResponse(link("job", id=job.id), 303)

    def confirm(self, request: Request, form: Form) -> Response:
        """Start the work of a dry run."""
        job = self.jobs.confirm(_one(form, "plan"), _user(request))
        return RedirectResponse(link("job", id=job.id), 303)

    def cancel(self, _request: Request, form: Form) -> Response:
        """Let a job end early."""
        job = self.jobs.cancel(_one(form, "id"))
        if job is None:
            raise HTTPException(404, "The console does not know this job.")
        return RedirectResponse(link("job", id=job.id), 303)


def _charted(deaths: Mapping[int, int], request: Request) -> dict[str, Any]:
    """Return the chart of a page, and the times that it can show."""
    asked = request.query_params.get("span", _USUAL)
    span = asked if asked in SPANS else _USUAL
    seconds, bars = SPANS[span]
    now = time.time()
    counts = histogram(deaths, now - seconds, now + 1, bars)
    return {"counts": counts, "span": span, "spans": SPANS}


def _totals(topics: Sequence[LetterTopic]) -> dict[str, Any]:
    dead = [each for each in topics if each.kind == "dead_letter"]
    ages = [each.oldest_age_seconds for each in dead if each.oldest_age_seconds is not None]
    return {
        "dead": sum(each.backlog for each in dead),
        "dead_topics": sum(bool(each.backlog) for each in dead),
        "waiting": sum(each.backlog for each in topics if each.kind == "retry"),
        "oldest": max(ages, default=None),
    }


def _again(verb: str, target: str, given: Mapping[str, Any]) -> str | None:
    """Return the address of the filled form for an entry of the audit log, if there is one.

    The options of a command may be others than those of the console.
    """
    names = {each.name for each in attrs.fields(JobForm)} | set(NAMES)
    if verb not in DONE or not given.keys() <= names:
        return None
    pairs = [
        (name, text)
        for name, value in given.items()
        for text in (value if isinstance(value, list) else [value])
    ]
    return link("act", pairs, name=target, verb=verb)


def _user(request: Request) -> str:
    user: str = request.scope["user"]
    return user


def _one(form: Form, name: str) -> str:
    return next((text for each, text in form if each == name), "")


def _saved(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
