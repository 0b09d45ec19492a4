"""The pages that only show something."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import attrs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from pulsar_retry.console.chart import Bars, bars
from pulsar_retry.console.filtering import Query
from pulsar_retry.console.jobs import Jobs
from pulsar_retry.console.lookup import LetterLookup
from pulsar_retry.console.payload import FORMS, displayed, payload_of
from pulsar_retry.console.store.history import History
from pulsar_retry.console.store.records import Records
from pulsar_retry.console.views import Views, link
from pulsar_retry.console.watch import JOBS, TOPICS, Watcher
from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.audit import read_audit
from pulsar_retry.ops.check_result import CheckResult
from pulsar_retry.ops.doctor import check_up
from pulsar_retry.ops.overview import LetterTopic
from pulsar_retry.ops.showing import record_of
from pulsar_retry.policy.explain import PRESETS, SCHEDULE_SETTINGS, Step, explain
from pulsar_retry.policy.retry import policy_of_texts
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.snapshots.snapshot import Snapshot
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import kind_of

_HOUR = 3600.0
#: The times that charts show, in seconds, and the number of their bars.
SPANS = {
    "1h": (_HOUR, 12),
    "24h": (24 * _HOUR, 48),
    "7d": (168 * _HOUR, 56),
    "30d": (720 * _HOUR, 60),
}
_USUAL = "24h"
_TOP, _ACTIONS = 10, 200
_WIDTH = 960


@attrs.frozen
class Pages:
    """The pages, and the objects that they show. Thread-safe."""

    cluster: Cluster
    lookup: LetterLookup
    jobs: Jobs
    history: History
    records: Records
    watcher: Watcher
    views: Views

    # -- overview ---------------------------------------------------------------------------------

    def overview(self, request: Request) -> Response:
        """Show all topics, and what fails most."""
        asked = request.query_params.get("namespace", "")
        namespaces = (asked,) if asked else self.lookup.namespaces
        topics = {each: list(self.lookup.topics(each)) for each in namespaces}
        all_topics = [topic for each in topics.values() for topic in each]
        dead = [each for each in all_topics if each.kind == "dead_letter"]
        names = [each.topic for each in dead]
        now = time.time()
        span, (seconds, _) = self._span(request)
        return self.views.page(
            "overview.html",
            request,
            listens=(TOPICS, JOBS, *names[:20]),
            namespaces=self.lookup.namespaces,
            asked=asked,
            topics=topics,
            totals=_totals(all_topics),
            span=span,
            spans=SPANS,
            bars=self._bars(names, request),
            top=self.history.top(names, now - seconds, now + 1, _TOP),
            before=self._arrived(names, now - 2 * seconds, now - seconds),
            problem=self.watcher.problem,
            running=sum(each.runs for each in self.jobs.all(most=20)),
        )

    def _arrived(self, topics: Sequence[str], since: float, until: float) -> int:
        return sum(self.history.arrivals(topics, since, until, 1))

    def _bars(self, topics: Sequence[str], request: Request, group: int | None = None) -> Bars:
        now = time.time()
        _, (seconds, count) = self._span(request)
        since = now - seconds
        return bars(self.history.arrivals(topics, since, now + 1, count, group), _WIDTH)

    @staticmethod
    def _span(request: Request) -> tuple[str, tuple[float, int]]:
        name = request.query_params.get("span", _USUAL)
        name = name if name in SPANS else _USUAL
        return name, SPANS[name]

    # -- letters ----------------------------------------------------------------------------------

    def topic(self, request: Request) -> Response:
        """Show the letters of a topic."""
        params = request.query_params
        topic = self.lookup.checked(params.get("name", ""))
        if kind_of(topic) == "retry":
            return RedirectResponse(link("/waiting", params.multi_items()), 303)
        query = Query(params.multi_items())
        if "filter" in params:  # what was typed becomes a URL that can be shared
            typed = Query.typed(params["filter"])
            return RedirectResponse(link("/topic", typed.pairs, name=topic), 303)
        contents = self.lookup.contents(
            topic, query.where(), after=params.get("after"), before=params.get("before")
        )
        owner = self._owner(topic)
        return self.views.page(
            "topic.html",
            request,
            listens=(topic,),
            topic=topic,
            query=query,
            contents=contents,
            owner=owner,
            bars=self._bars([topic], request),
            span=self._span(request)[0],
            spans=SPANS,
            is_first=not params.get("after") and not params.get("before"),
        )

    def group(self, request: Request) -> Response:
        """Show a group: letters with the same reason, error and fingerprint."""
        params = request.query_params
        topic = self.lookup.checked(params.get("name", ""))
        query = Query(params.multi_items())
        if not query:
            return RedirectResponse(link("/topic", name=topic), 303)
        contents = self.lookup.contents(
            topic, query.where(), after=params.get("after"), before=params.get("before")
        )
        group = next(iter(contents.groups), None)
        sample = None
        if contents.letters:
            sample = self.lookup.letter(topic, contents.letters[0].id)
        return self.views.page(
            "group.html",
            request,
            listens=(topic,),
            topic=topic,
            query=query,
            contents=contents,
            group=group,
            sample=sample,
            bars=self._bars([topic], request, None if group is None else group.id),
            span=self._span(request)[0],
            spans=SPANS,
        )

    def letter(self, request: Request) -> Response:
        """Show one letter."""
        params = request.query_params
        topic, message_id = self.lookup.checked(params.get("name", "")), params.get("id", "")
        facts = self.lookup.letter(topic, message_id)
        query = Query([each for each in params.multi_items() if each[0] != "id"])
        payload, record = payload_of(facts), record_of(facts)
        before, after = self.lookup.neighbours(topic, query.where(), message_id)
        return self.views.page(
            "letter.html",
            request,
            topic=topic,
            kind=kind_of(topic),
            query=query,
            facts=facts,
            forms=FORMS,
            payload=None if payload is None else displayed(payload, params.get("as"), record),
            before=before,
            after=after,
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
        """Download letters as JSON Lines, or as CSV."""
        topic = self.lookup.checked(request.query_params.get("name", ""))
        query = Query(request.query_params.multi_items())
        where = query.where()
        self.records.add(request.scope["user"], "export", topic, query.text())
        is_csv = request.query_params.get("format") == "csv"
        name = f"{topic.rpartition('/')[2]}.{'csv' if is_csv else 'jsonl'}"
        safe = "".join(each if each.isalnum() or each in "-._" else "_" for each in name)
        return StreamingResponse(
            self.lookup.exported(topic, where, is_csv=is_csv),
            media_type="text/csv" if is_csv else "application/x-ndjson",
            headers=_saved(safe.encode("ascii", "replace").decode().replace("?", "_")),
        )

    def waiting(self, request: Request) -> Response:
        """Show the letters of a retry topic, which wait for their delay."""
        params = request.query_params
        topic = self.lookup.checked(params.get("name", ""))
        if "filter" in params:
            typed = Query.typed(params["filter"])
            return RedirectResponse(link("/waiting", typed.pairs, name=topic), 303)
        query = Query(params.multi_items())
        return self.views.page(
            "waiting.html",
            request,
            listens=(TOPICS,),
            topic=topic,
            query=query,
            owner=self._owner(topic),
            found=self.lookup.waiting(topic, query.where()),
        )

    def _owner(self, topic: str) -> LetterTopic | None:
        namespace = "/".join(topic.partition("://")[2].split("/")[:2])
        return next((each for each in self.lookup.topics(namespace) if each.topic == topic), None)

    # -- what was done ----------------------------------------------------------------------------

    def job_list(self, request: Request) -> Response:
        """Show the jobs, the latest first."""
        before = request.query_params.get("before", "")
        try:
            until = float(before) if before else None
        except ValueError:
            raise ConfigError.bad("before", before, "a time in seconds since 1970") from None
        found = self.jobs.all(most=51, before=until)
        return self.views.page(
            "jobs.html",
            request,
            listens=(JOBS,),
            jobs=found[:50],
            before=found[49].began if len(found) > 50 else None,  # noqa: PLR2004 - a page
        )

    def job(self, request: Request) -> Response:
        """Show one job."""
        job = self.jobs.get(request.query_params.get("id", ""))
        if job is None:
            raise HTTPException(404, "There is no such job, or the console no longer remembers it.")
        remaining = None
        if job.may_resume and job.order.verb != "seek":
            self.lookup.refresh(job.order.source)
            remaining = self.lookup.count(job.order.source, job.order.query.where())
        return self.views.page("job.html", request, listens=(job.id,), job=job, remaining=remaining)

    def audit(self, request: Request) -> Response:
        """Show who did what: from the console, and by commands."""
        namespace = request.query_params.get("namespace") or self.lookup.namespaces[0]
        self.lookup.topics(namespace)  # checks it
        return self.views.page(
            "audit.html",
            request,
            namespaces=self.lookup.namespaces,
            namespace=namespace,
            entries=read_audit(self.cluster, namespace)[:_ACTIONS],
            actions=self.records.actions(_ACTIONS),
        )

    # -- tools ------------------------------------------------------------------------------------

    def tools(self, request: Request) -> Response:
        """Show the state of a subscription, its snapshots, and a form to move it."""
        params = request.query_params
        owners: dict[tuple[str, str], None] = {}
        for namespace in self.lookup.namespaces:
            for each in self.lookup.topics(namespace):
                if each.main_topic and each.subscription:
                    owners[each.main_topic, each.subscription] = None
        asked, name = params.get("name", ""), params.get("subscription", "").strip()
        results: list[CheckResult] = []
        snapshots: list[Snapshot] = []
        if asked and name:
            asked = self.lookup.checked(asked)
            results = list(check_up(Subscription(self.cluster, asked, name)))
            if not any(each.verdict == "error" and each.check == "topic" for each in results):
                snapshots = Snapshot.list(self.cluster, asked)
        return self.views.page(
            "tools.html",
            request,
            owners=list(owners),
            topic=asked,
            subscription=name,
            results=results,
            snapshots=snapshots,
        )

    def explain(self, request: Request) -> Response:
        """Show the schedule of a retry policy."""
        params = request.query_params
        texts = {name: params.get(name, "").strip() for name in SCHEDULE_SETTINGS}
        preset = params.get("preset", "")
        policy = PRESETS[preset]() if preset in PRESETS else None
        options = {name: text or None for name, text in texts.items()}
        found = explain(policy_of_texts(options, policy))
        steps: list[Step] = list(found.steps)
        return self.views.page(
            "explain.html",
            request,
            texts=texts,
            preset=preset,
            presets=list(PRESETS),
            steps=steps,
            total=found.total,
            complete=found.complete,
        )


def _totals(topics: Sequence[LetterTopic]) -> dict[str, Any]:
    dead = [each for each in topics if each.kind == "dead_letter"]
    ages = [each.oldest_age_seconds for each in dead if each.oldest_age_seconds is not None]
    return {
        "dead": sum(each.backlog for each in dead),
        "dead_topics": sum(bool(each.backlog) for each in dead),
        "waiting": sum(each.backlog for each in topics if each.kind == "retry"),
        "oldest": max(ages, default=None),
    }


def _saved(name: str) -> dict[str, str]:
    return {"Content-Disposition": f'attachment; filename="{name}"'}
