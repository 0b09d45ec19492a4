"""The forms that change something, each after a dry run."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pulsar_retry.console.jobs import Jobs
from pulsar_retry.console.lookup import LetterLookup
from pulsar_retry.console.orders import DONE, Order
from pulsar_retry.console.store.records import Records
from pulsar_retry.console.views import Views, link
from pulsar_retry.console.watch import JOBS, Changes
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.snapshots.snapshot import Snapshot
from pulsar_retry.replay.subscription import Subscription

#: The fields of a form, of which a name may occur several times.
Form = Sequence[tuple[str, str]]


@attrs.frozen
class Forms:
    """What operators may do. Thread-safe."""

    cluster: Cluster
    lookup: LetterLookup
    jobs: Jobs
    records: Records
    changes: Changes
    views: Views

    def form(self, request: Request) -> Response:
        """Show the form of an order."""
        pairs = request.query_params.multi_items()
        order = Order.of(pairs, self.lookup.checked(_one(pairs, "name")))
        if order.verb not in DONE:
            raise ConfigError.bad("verb", order.verb, ", ".join(DONE))
        matching = None
        if order.verb != "seek":
            self.lookup.refresh(order.source)
            matching = self.lookup.count(order.source, order.query.where())
        return self.views.page("act.html", request, order=order, matching=matching)

    def look(self, request: Request, form: Form) -> Response:
        """Start a dry run."""
        order = Order.of(form, self.lookup.checked(_one(form, "name"))).settled()
        total = None
        if order.verb != "seek" and order.query:
            total = self.lookup.count(order.source, order.query.where())
        job = self.jobs.look(order, _user(request), total)
        return _to(link("/job", id=job.id))

    def confirm(self, request: Request, form: Form) -> Response:
        """Start the work of a dry run."""
        job = self.jobs.confirm(_one(form, "plan"), _user(request))
        order = job.order
        self.records.add(_user(request), order.verb, order.source, order.query.text())
        self.changes.tell(JOBS)
        return _to(link("/job", id=job.id))

    def cancel(self, request: Request, form: Form) -> Response:
        """Let a job end early."""
        job = self.jobs.cancel(_one(form, "id"))
        if job is None:
            raise HTTPException(404)
        self.records.add(_user(request), "cancel job", job.order.source, job.order.verb)
        return _to(link("/job", id=job.id))

    def resume(self, request: Request, form: Form) -> Response:
        """Continue a job that has ended before it was done."""
        job = self.jobs.resume(_one(form, "id"), _user(request))
        self.records.add(_user(request), "resume job", job.order.source, job.order.verb)
        self.changes.tell(JOBS)
        return _to(link("/job", id=job.id))

    def snapshot(self, request: Request, form: Form) -> Response:
        """Keep what a subscription has not acknowledged."""
        topic, name = self.lookup.checked(_one(form, "name")), _one(form, "subscription")
        target = Subscription(self.cluster, topic, name)
        made = Snapshot.create(target, name=_one(form, "snapshot").strip() or None)
        self.records.add(_user(request), "snapshot", f"{topic} {name}", made.name)
        return _to(link("/tools", name=topic, subscription=name))


def _user(request: Request) -> str:
    user: str = request.scope["user"]
    return user


def _one(form: Form, name: str) -> str:
    return next((text for each, text in form if each == name), "")


def _to(address: str) -> RedirectResponse:
    return RedirectResponse(address, 303)
