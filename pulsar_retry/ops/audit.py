"""The audit log: who changed letters or subscriptions, when, how, and with which result.

It is a topic in the namespace of what is changed. Nobody acknowledges its messages, so the broker
keeps them. Each command writes two entries: before it acts, and when it has ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import attrs
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.client import Client
from pulsar_retry.consumer.handoff.producers import create_subscription, letter_client_of
from pulsar_retry.errors import AdminForbiddenError, AuditError, shown
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.reading import read_letters
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import Redriven
from pulsar_retry.replay.redriving.source import AUDIT_TOPIC, operator_name
from pulsar_retry.wire.names import TopicName, parts_of_namespace

_log = logging.getLogger("pulsar_retry")

BEGUN, ENDED = "begun", "ended"
#: The numbers of a result.
_COUNTED = ("redriven", "discarded", "replayed", "purged")
_VERSION = 1
#: Seconds to wait for the receipt of an entry.
_SEND_TIMEOUT_MS = 10_000


def audit_topic(topic: str) -> str:
    """Return the full name of the audit topic beside *topic*."""
    return TopicName.parse(topic).sibling(AUDIT_TOPIC).replace("non-persistent:", "persistent:")


def audit_topic_of(namespace: str) -> str:
    """Return the full name of the audit topic of ``tenant/namespace``."""
    return str(TopicName("persistent", *parts_of_namespace(namespace), AUDIT_TOPIC))


@attrs.frozen(kw_only=True)
class Act:
    """A command that changes something.

    Attributes:
        verb: The command, such as ``redrive``.
        target: The topic, with the subscription if there is one.
        by: Who gave the command.
        why: The reason that was given; None if there is none.
        given: The arguments, such as the filter, as JSON-compatible values.
        job: The id of the command.
    """

    verb: str
    target: str
    by: str = attrs.field(factory=operator_name)
    why: str | None = None
    given: Mapping[str, Any] = attrs.field(factory=dict)
    job: str = attrs.field(factory=lambda: uuid.uuid4().hex[:12])


class AuditLog:
    """Writes the entries of one audit topic. Not thread-safe."""

    def __init__(self, client: Client, topic: str) -> None:
        """Open the topic, and make the subscription that keeps it.

        Raises:
            AuditError: this was not possible.
        """
        self._topic = topic
        self._client = letter_client_of(client)
        try:
            self.keep()
            self._producer = BareClient.create_producer(
                client, topic, batching_enabled=False, send_timeout_millis=_SEND_TIMEOUT_MS
            )
        except pulsar.PulsarException as error:
            raise self._error(error) from error

    def keep(self) -> None:
        """Create the subscription that keeps the entries, if there is none.

        If the topic is deleted, the producer creates it again without one.

        Raises:
            pulsar.PulsarException: it could not be created.
        """
        create_subscription(self._client, self._topic, KEEPING_SUBSCRIPTION)

    def write(self, act: Act, phase: str, **facts: Any) -> None:
        """Write an entry, and wait for its receipt.

        Raises:
            AuditError: it was not stored.
        """
        entry = {
            "version": _VERSION,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "phase": phase,
            **attrs.asdict(act),
            **facts,
        }
        text = json.dumps(entry, ensure_ascii=False, default=str)
        try:
            self._producer.send(text.encode("utf-8", "replace"), partition_key=act.job)
            if phase == ENDED:
                self.keep()
        except pulsar.PulsarException as error:
            raise self._error(error) from error

    def _error(self, error: BaseException) -> AuditError:
        return AuditError(f"the audit log {self._topic} cannot be written: {shown(error)}")


@contextlib.contextmanager
def audited(
    cluster: Cluster, topic: str, act: Act, *, enabled: bool = True
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write an entry before the body runs and one after it; yield a function that takes the result.

    The result is written at once; a later one replaces it. If the body raises, the last entry has
    the error. If only the second entry cannot be written, this is logged, because the work is done.

    Args:
        cluster: The cluster.
        topic: A topic in the namespace whose audit log is written.
        act: The command.
        enabled: False writes nothing.

    Raises:
        AuditError: the first entry cannot be written; the body did not run.
    """
    if not enabled:
        yield lambda _result: None
        return
    written: Mapping[str, Any] | None = None
    with contextlib.closing(cluster.client()) as client:
        log = AuditLog(client, audit_topic(topic))
        log.write(act, BEGUN)

        def record(result: Mapping[str, Any]) -> None:
            nonlocal written
            if result != written:
                written = result
                _end(log, act, result=result)

        try:
            yield record
        except BaseException as error:
            text = f"{type(error).__name__}: {shown(error)}"
            _end(log, act, result=written or {}, error=text)
            raise
        if written is None:
            record({})


def audited_redrive(
    cluster: Cluster,
    redrive: Redrive,
    act: Act,
    tell: Callable[[Redriven], None],
    *,
    enabled: bool = True,
) -> Redriven:
    """Run *redrive* within entries of the audit log; *tell* gets its progress.

    The result is written before it is watched what becomes of the letters, and again at the end.

    Raises:
        AuditError: see `audited`.
    """
    with audited(cluster, redrive.source, act, enabled=enabled) as record:
        is_recorded = False

        def told(so_far: Redriven) -> None:
            nonlocal is_recorded
            if so_far.became is not None and not is_recorded:
                is_recorded = True
                record(so_far.recorded())
            tell(so_far)

        done = redrive.run(told)
        record(done.recorded())
        return done


def _end(log: AuditLog, act: Act, **facts: Any) -> None:
    try:
        log.write(act, ENDED, **facts)
    except AuditError as error:
        _log.error("%s; the command %s of %s has ended", error, act.job, act.by)


@attrs.frozen(kw_only=True)
class AuditEntry:
    """A command in the audit log.

    Attributes:
        at: When it began (ISO 8601, UTC).
        ended: When it ended; None if it runs, or was killed.
        by: Who gave it.
        verb: The command.
        target: What was changed.
        why: The reason that was given.
        given: Its arguments.
        job: Its id.
        result: Its result; empty if it failed or has not ended.
        error: Why it failed.
    """

    at: str
    by: str
    verb: str
    target: str
    job: str
    ended: str | None = None
    why: str | None = None
    given: Mapping[str, Any] = attrs.field(factory=dict)
    result: Mapping[str, Any] = attrs.field(factory=dict)
    error: str | None = None

    @property
    def place(self) -> str:
        """What was changed, without its namespace, which is that of the log."""
        return self.target.split("/", 4)[-1]

    @property
    def options(self) -> dict[str, Any]:
        """The arguments without those that `target` shows."""
        is_move = self.verb in {"redrive", "discard"}
        shown = {"dlqs"} if is_move else {"topic", "subscription"}
        return {name: each for name, each in self.given.items() if name not in shown}

    @property
    def outcome(self) -> str:
        """The result in words, such as ``redriven 7, handled 5, waiting 2, dead 0``."""
        if self.error or self.ended is None:
            return f"failed: {self.error}" if self.error else "not ended"
        counts = {name: self.result[name] for name in _COUNTED if name in self.result}
        counts |= self.result.get("became") or {}
        said = [f"{name} {count}" for name, count in counts.items()] or ["done"]
        said += [stopped] if (stopped := self.result.get("stopped")) else []
        return ", ".join(said) + ("" if self.result.get("complete", True) else ": incomplete")

    def facts(self) -> dict[str, Any]:
        """Return the entry as JSON-compatible values."""
        return attrs.asdict(self)


def joined(lines: Iterator[Mapping[str, Any]]) -> list[AuditEntry]:
    """Return one entry for each command, the latest first, from the lines of the log. Pure."""
    found: dict[str, AuditEntry] = {}
    for each in lines:
        job = str(each.get("job", ""))
        if each.get("phase") == ENDED and job in found:
            found[job] = attrs.evolve(
                found[job],
                ended=each.get("at"),
                result=each.get("result") or {},
                error=each.get("error"),
            )
        elif each.get("phase") == BEGUN:
            texts: dict[str, Any] = {
                name: str(each.get(name, "")) for name in ("at", "by", "verb", "target")
            }
            found[job] = AuditEntry(
                **texts, job=job, why=each.get("why"), given=each.get("given") or {}
            )
    return sorted(found.values(), key=lambda each: each.at, reverse=True)


def read_audit(cluster: Cluster, namespace: str) -> list[AuditEntry]:
    """Return the commands in the audit log of a namespace, the latest first.

    Entries that are not JSON are left out, with a warning in the log.

    Raises:
        ConfigError: *namespace* is not of the form ``tenant/namespace``.
        AdminError: the REST API is unreachable, or refuses a request; there is no such namespace.
        pulsar.PulsarException: the broker is unreachable, or refuses a request.
    """
    topic = audit_topic_of(namespace)
    with cluster.admin() as admin, contextlib.closing(cluster.client()) as client:
        if not admin.topics.exists(topic):
            with contextlib.suppress(AdminForbiddenError):
                admin.namespaces.topics(namespace)  # an error, if there is no such namespace
            return []

        def lines() -> Iterator[Mapping[str, Any]]:
            for each in read_letters(client, admin, admin.topics.partition_names(topic)):
                try:
                    facts = json.loads(each.raw.data())
                except ValueError:
                    facts = None
                if isinstance(facts, dict):
                    yield facts
                else:
                    _log.warning("%s of %s is no entry of an audit log", each.position, topic)

        return joined(lines())
