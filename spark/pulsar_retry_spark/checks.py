"""`doctor` checks that a session has what a job needs, before the job fails without it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeVar

import attrs
from pyspark.sql import SparkSession

from pulsar_retry.admin import AdminClient
from pulsar_retry.consumer.old_names import PROBE
from pulsar_retry.errors import AdminError, AdminNotFoundError, ConfigError
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions
from pulsar_retry_spark.parsing import Option
from pulsar_retry_spark.probes import BrokerView, Machine, look, this_machine, unreached, workers
from pulsar_retry_spark.sink.writing import parse_options

_NAME = "pulsar-failures"
_OLDEST_SPARK = (3, 5)
#: The first release with Python data sources, and the first one that gives them filters.
_DATA_SOURCES, _FILTERS = (4, 0), (4, 1)
_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_SECRET = re.compile(r"token|secret|password|credential", re.IGNORECASE)

_Answer = TypeVar("_Answer")


@attrs.frozen
class Finding:
    """The result of one check. Its text is one line, or two lines if something has to be done.

    Attributes:
        check: What was checked.
        level: `ok`, `warning` or `error`.
        text: What was found.
        remedy: What to do about it; None if nothing has to be done.
    """

    check: str
    level: Literal["ok", "warning", "error"]
    text: str
    remedy: str | None = None

    def __str__(self) -> str:
        line = f"{self.level:<7} {self.check}: {self.text}"
        return line if self.remedy is None else f"{line}\n{'':<7} → {self.remedy}"


def doctor(spark: SparkSession, options: Mapping[str, Option] | None = None) -> list[Finding]:
    """Check that this session can write and read failed rows.

    It runs one or two Spark jobs, of about a second each, on a few workers. It sends nothing,
    creates nothing and shows no secret. A problem is a finding, not an exception. Print each
    finding to see them all.

    Args:
        spark: The session. It may be one of Spark Connect.
        options: The sink's options. With them, the broker is checked too, from here and from the
            workers. If they have `admin.url`, the broker's settings are also checked.

    Returns:
        The findings, in the order of the checks. If Spark is too old, only the finding about that.
    """
    version = _version(spark)
    if version.level == "error":
        return [version]
    findings = [version, *_data_source(spark), *_conf(spark), *_workers(spark)]
    if options is None:
        return findings
    try:
        parsed = parse_options(options)
    except ConfigError as error:
        return [*findings, Finding("options", "error", str(error), "see docs/reference/spark.md")]
    seen = look(parsed)
    findings += [*_options(parsed), *_broker(seen)]
    if not any(each.level == "error" for each in findings if each.check == "workers"):
        findings += _broker_from_workers(spark, parsed, seen)
    return [*findings, *_settings(parsed, seen)]


def _version(spark: SparkSession) -> Finding:
    if _release(spark) >= _OLDEST_SPARK:
        return Finding("spark", "ok", f"Spark {spark.version}")
    oldest = ".".join(map(str, _OLDEST_SPARK))
    return Finding("spark", "error", f"Spark {spark.version}", f"use Spark {oldest} or later")


def _release(spark: SparkSession) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", spark.version)[:2])


def _data_source(spark: SparkSession) -> Iterator[Finding]:
    check = "data source"
    if _release(spark) < _DATA_SOURCES:
        text = f"Spark {spark.version} has no format({_NAME!r})"
        remedy = "use read_failures, write_failures and route_batches"
        yield Finding(check, "warning", text, remedy)
        return
    # Nothing is read: Spark only asks for the columns, which are always the same.
    any_topic = {"service.url": "pulsar://localhost:6650", "topic": "t", "subscription": "s"}
    try:
        spark.read.format(_NAME).options(**any_topic).load().schema  # noqa: B018 - it is what asks
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        remedy = "pulsar_retry_spark.register(spark)"
        yield Finding(check, "error", f"format({_NAME!r}) does not work: {_gist(error)}", remedy)
    else:
        yield Finding(check, "ok", f"format({_NAME!r}) works")


def _conf(spark: SparkSession) -> Iterator[Finding]:
    if _release(spark) < _FILTERS:
        yield Finding("filters", "ok", "this Spark gives a source no filters")
    elif spark.conf.get(_PUSHDOWN) == "true":
        yield Finding("filters", "ok", "the source gets the filters of a query")
    else:
        text = "the source reads all messages, and Spark filters them"
        yield Finding("filters", "warning", text, f"spark.conf.set({_PUSHDOWN!r}, 'true')")
    if spark.conf.get("spark.speculation", "false") == "true":
        text = "a task may run twice at the same time, and then its rows are written twice"
        remedy = "set spark.speculation=false, or recognize duplicates by their DEDUPE_ID"
        yield Finding("speculation", "warning", text, remedy)
    else:
        yield Finding("speculation", "ok", "off")
    secrets = [
        name for name, value in sorted(_all_conf(spark).items()) if _is_pulsar_secret(name, value)
    ]
    if secrets:
        text = f"every task and Spark's web pages may show {', '.join(secrets)}"
        yield Finding(
            "secrets", "warning", text, "use the option auth.token_env or auth.token_file"
        )
    else:
        yield Finding("secrets", "ok", "none in Spark's configuration")


def _all_conf(spark: SparkSession) -> dict[str, str]:
    if hasattr(type(spark.conf), "getAll"):
        return dict(spark.conf.getAll)
    return {row.key: row.value for row in spark.sql("SET").collect()}  # Spark 3.5


def _is_pulsar_secret(name: str, value: str) -> bool:
    """Return whether a setting looks like a secret for Pulsar, not one of Spark's own."""
    return value.startswith("eyJ") or ("pulsar" in name.lower() and bool(_SECRET.search(name)))


def _workers(spark: SparkSession) -> Iterator[Finding]:
    check, here = "workers", this_machine()
    try:
        machines = workers(spark)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        remedy = "set PYSPARK_PYTHON to a Python of the workers with the same minor version as here"
        yield Finding(check, "error", f"Python does not run on the workers: {_gist(error)}", remedy)
        return
    for machine in machines:
        facts = [f"Python {machine.python}", _shown(machine), machine.rows]
        text = f"{machine.host}: {', '.join(filter(None, facts))}"
        missing = [name for name, version in machine.versions.items() if version is None]
        if missing:
            remedy = f"install {' and '.join(missing)} in the Python that PYSPARK_PYTHON names"
            yield Finding(check, "error", text, remedy)
        elif machine.versions != here.versions:
            yield Finding(check, "warning", text, f"use the same versions as here: {_shown(here)}")
        else:
            yield Finding(check, "ok", text)


def _shown(machine: Machine) -> str:
    return ", ".join(f"{name} {version or '—'}" for name, version in machine.versions.items())


def _options(options: SinkOptions) -> Iterator[Finding]:
    if options.connection.token is None:
        yield Finding("options", "ok", "accepted")
    else:
        text = "auth.token is visible in Spark's plans: use it only for tests"
        yield Finding("options", "warning", text, "use auth.token_env or auth.token_file")


def _broker(seen: BrokerView) -> Iterator[Finding]:
    if seen.error is None and not seen.topics:
        text = "not checked, because the options name no topic"
        yield Finding("broker", "warning", text, "give the options topic and subscription")
        return
    yield _reached("broker", "here", seen.error)
    for topic, exists in seen.topics.items():
        if exists:
            yield Finding("topics", "ok", f"{topic} exists")
        else:
            text = f"{topic} does not exist: the first row creates it, if the broker allows that"
            yield Finding("topics", "warning", text, "check its name")


def _broker_from_workers(
    spark: SparkSession, options: SinkOptions, seen: BrokerView
) -> Iterator[Finding]:
    topic = options.targets.dead_letter or options.targets.retry
    if topic is None:
        return
    there = next((name for name, exists in seen.topics.items() if exists), None)
    for error in unreached(spark, options.connection, topic, there) or (None,):
        yield _reached("broker from workers", "a worker", error)


def _reached(check: str, whence: str, error: str | None) -> Finding:
    if error is None:
        return Finding(check, "ok", f"reached from {whence}")
    remedy = "check service.url, the network and auth.* there"
    return Finding(check, "error", f"not reached from {whence}: {error}", remedy)


def _settings(options: SinkOptions, seen: BrokerView) -> Iterator[Finding]:
    """Check the cluster's settings, if the options name the REST API."""
    if options.connection.admin_url is None:
        return
    try:
        with _cluster(options.connection).admin() as admin:
            for topic, exists in seen.topics.items():
                if exists:
                    dead = topic not in (options.targets.retry, options.report_topic)
                    keeper = options.initial_subscription_name if dead else None
                    yield from _subscriptions(admin, topic, keeper)
            yield from _size(admin, options.max_message_bytes)
    except (AdminError, OSError, ValueError, PulsarFailuresError) as error:
        text = f"gave no answer: {_gist(error)}"
        yield Finding("admin.url", "warning", text, "check admin.url and auth.*")


def _cluster(connection: ClusterConnection) -> Cluster:
    return Cluster(
        connection.service_url,
        admin_url=connection.admin_url,
        token=connection.read_token,
        tls_trust_certs_file=connection.trust_certs_file,
        tls_allow_insecure=connection.allow_insecure,
    )


def _unless_missing(ask: Callable[[], _Answer]) -> _Answer | None:
    """Return what *ask* returns; None if the thing does not exist, or does not exist yet."""
    try:
        return ask()
    except AdminNotFoundError:
        return None


def _subscriptions(admin: AdminClient, topic: str, keeper: str | None) -> Iterator[Finding]:
    """Check that *topic* has a subscription that keeps its messages, and none that nobody reads.

    *keeper* is the subscription that the sink makes on a dead-letter topic; None if it makes none
    there.
    """
    check = "subscriptions"
    names = _unless_missing(lambda: admin.subscriptions.names(topic)) or []
    left_behind = [name for name in names if name.startswith(PROBE)]
    for name in left_behind:
        text = f"{topic} has {name}, which a killed process left behind: it keeps all messages"
        remedy = f"pulsar-admin topics unsubscribe --subscription {name} {topic}"
        yield Finding(check, "warning", text, remedy)
    users = sorted(set(names) - set(left_behind))
    if users and keeper is not None and keeper not in users:
        text = (
            f"{topic} has {', '.join(users)}, and the sink also creates {keeper}, which keeps "
            "every dead letter until it is acknowledged there"
        )
        yield Finding(check, "warning", text, f"initial_subscription_name={users[0]}")
        return
    if users:
        yield Finding(check, "ok", f"{topic} has a subscription")
        return
    kept = _unless_missing(lambda: admin.topics.retention(topic))
    if kept and not kept.keeps_nothing:
        yield Finding(
            check, "ok", f"{topic} has no subscription, but the broker keeps messages for a while"
        )
        return
    text = f"{topic} has no subscription, so the broker may delete the rows that are written there"
    remedy = f"pulsar-admin topics create-subscription --subscription NAME {topic}"
    yield Finding(check, "warning", text, remedy)


def _size(admin: AdminClient, ours: int) -> Iterator[Finding]:
    settings = _unless_missing(admin.broker_configuration) or {}
    broker = int(settings.get("maxMessageSize", 0))
    if 0 < broker < ours:
        text = f"max_message_bytes={ours}, but the broker accepts only {broker}"
        yield Finding("message size", "error", text, f"max_message_bytes={broker - (16 << 10)}")
    elif broker:
        yield Finding(
            "message size",
            "ok",
            f"the broker accepts {broker} bytes, and the sink sends at most {ours}",
        )


def _gist(error: Exception) -> str:
    """Return the line of a Spark error that says what happened."""
    text = str(error).strip()
    found = re.search(r"\[[A-Z][A-Z_.]+\] .+", text)
    return (found[0] if found else text.splitlines()[0] if text else type(error).__name__)[:300]
