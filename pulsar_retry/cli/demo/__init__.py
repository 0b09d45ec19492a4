"""`pulsar-retry demo`: real, dirty data through retries into a dead-letter topic."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
import pulsar

import pulsar_retry as pr
from pulsar_retry.cli.demo import airports, pipeline
from pulsar_retry.cli.demo.account import Account, account_as_json, reckon
from pulsar_retry.cli.demo.pipeline import DELAY_LEVELS, RETRIES, Stage, WorkCount
from pulsar_retry.cli.demo.report import Storyteller
from pulsar_retry.testing.broker import running_broker

__all__ = ["command"]

_SAMPLES = 3
#: Seconds without progress after which missing records count as lost. The longest normal wait is a
#: delay level, or a redelivery after a failure.
PATIENCE = 10.0
_LOOK_EVERY = 0.1  # seconds


@click.command(short_help="Send real, dirty data through retries into a dead-letter topic.")
@click.option(
    "--service-url",
    envvar="PULSAR_SERVICE_URL",
    show_envvar=True,
    help="A running broker, pulsar://host:port.  [default: one is started for the demo]",
)
@click.option(
    "--token",
    envvar="PULSAR_TOKEN",
    show_envvar=True,
    help="A token for that broker, if it needs one.",
)
@click.option(
    "--tls-trust-certs",
    envvar="PULSAR_TLS_TRUST_CERTS",
    show_envvar=True,
    type=click.Path(exists=True, dir_okay=False),
    help="The certificates to trust, for pulsar+ssl://.",
)
@click.option(
    "--namespace",
    default="public/default",
    show_default=True,
    metavar="TENANT/NAMESPACE",
    callback=lambda _context, _option, value: _checked_namespace(value),
    help="The namespace of the demo's topics.",
)
@click.option(
    "--limit", type=click.IntRange(1), help="The number of records.  [default: all, 3376]"
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=8,
    show_default=True,
    help="Threads that process records.",
)
@click.option("--keep", is_flag=True, help="Keep the topics, the subscriptions and the broker.")
@click.option("--json", "as_json_", is_flag=True, help="Print the result as one JSON object.")
def command(
    *,
    service_url: str | None,
    token: str | None,
    tls_trust_certs: str | None,
    namespace: str,
    limit: int | None,
    workers: int,
    keep: bool,
    as_json_: bool,
) -> int:
    """Send real, dirty data through retries into a dead-letter topic, and account for all of it.

    The data are the US airports of the Python package vega-datasets. Invalid records become dead
    letters at once, with the reason. The look-up of an airport's time zone times out for one in
    five of them. These are retried after 200, 400 and 800 ms, and then become dead letters.

    At the end results and dead letters are read back from the broker. The exit code is 0 only if
    each published record is in exactly one of the two, and 1 otherwise.
    """
    # `kill` must end it as cleanly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report = Storyteller(stderr=as_json_)
    report.title("pulsar-retry demo: dirty data, retries by delay level, and a dead-letter topic")
    records = _load(limit)
    with contextlib.ExitStack() as stack:
        report.step(
            "data", f"{len(records)} US airports from the package vega-datasets, as they are:"
        )
        report.more("numbers as text, NA for cities, wrong codes, Guam in the open sea")
        url = stack.enter_context(_broker(service_url, report))
        stack.enter_context(_readable_errors(url))
        client = stack.enter_context(_connect(url, token, tls_trust_certs))
        topic = f"persistent://{namespace}/airports-{uuid.uuid4().hex[:8]}"
        with pipeline.open_stage(client, topic, keep=keep) as stage:
            account, seconds = _process(client, stage, records, workers, report)
        _tell(report, account, seconds)
        if as_json_:
            click.echo(json.dumps(_facts(url, stage, account, seconds)))
        if keep:
            _keep(report, stage, wait=service_url is None)
    return 0 if account.is_balanced else 1


def _checked_namespace(namespace: str) -> str:
    if not re.fullmatch(r"[^/\s]+/[^/\s]+", namespace):
        raise click.BadParameter(f"{namespace!r}: expected TENANT/NAMESPACE")
    return namespace


def _load(limit: int | None) -> list[airports.Record]:
    try:
        return airports.load(limit)
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f'{error.name} is missing; the demo needs: pip install "pulsar-retry[demo]"'
        ) from None


@contextlib.contextmanager
def _broker(service_url: str | None, report: Storyteller) -> Iterator[str]:
    """Yield the URL of the user's broker, or of a broker that runs only for the demo."""
    if service_url:
        report.step("broker", service_url)
        yield service_url
        return
    report.step("broker", "starting a real Pulsar (use --service-url if you have a running one)")
    started = time.monotonic()
    with running_broker() as broker:
        seconds = time.monotonic() - started
        report.more(f"{broker.service_url} ({broker.kind}), ready after {seconds:.1f} s")
        yield broker.service_url


@contextlib.contextmanager
def _readable_errors(url: str) -> Iterator[None]:
    """Turn the client's exceptions into one line for the user."""
    try:
        yield
    except pulsar.Interrupted:  # Ctrl-C while the client was waiting for the broker
        raise KeyboardInterrupt from None
    except pulsar.PulsarException as error:
        raise click.ClickException(f"{url}: {error}") from error


def _connect(url: str, token: str | None, tls_trust_certs: str | None) -> pr.Client:
    try:
        return pr.Client(
            url,
            authentication=pulsar.AuthenticationToken(token) if token else None,
            tls_trust_certs_file_path=tls_trust_certs,
            operation_timeout_seconds=10,
            # The C++ client would log to standard output, between our lines.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        )
    except ValueError as error:  # not a URL; nothing was opened
        raise click.BadParameter(str(error), param_hint="--service-url") from error


def _process(
    client: pr.Client,
    stage: Stage,
    records: list[airports.Record],
    workers: int,
    report: Storyteller,
) -> tuple[Account, float]:
    """Publish, consume and read back; return the account, and the seconds that consuming took."""
    published = pipeline.publish(client, stage.topic, records)
    report.step("publish", f"{len(published)} messages, keyed by airport code, to {stage.topic}")
    report.step("consume", f"{workers} workers look up each airport's time zone")
    report.more(f"time-out: retried after {DELAY_LEVELS}; a dead letter after {RETRIES} retries")
    report.more(f"invalid record: a dead letter at once, to {stage.dead_letter_topic}")
    started = time.monotonic()
    _consume(stage, len(published), workers, report)
    seconds = time.monotonic() - started
    report.step("read back", "results and dead letters, through subscriptions at the broker")
    results = pipeline.read_all(client, stage.processed_topic)
    dead_letters = pipeline.read_all(client, stage.dead_letter_topic)
    return reckon(published, results, dead_letters, retries=RETRIES), seconds


def _consume(stage: Stage, total: int, workers: int, report: Storyteller) -> None:
    """Let the workers run until all is settled, or nothing has happened for `PATIENCE`."""
    tally, stop = WorkCount(), threading.Event()
    with ThreadPoolExecutor(workers, "demo") as pool, report.progress(total) as show:
        try:  # `try` before the first worker: after Ctrl-C the pool must not wait for it
            jobs = [pool.submit(pipeline.work, stage, tally, stop) for _ in range(workers)]
            while tally.settled < total and tally.idle < PATIENCE:
                show(tally)
                if any(job.done() for job in jobs):
                    break  # a worker has raised an error
                time.sleep(_LOOK_EVERY)
            show(tally)
        finally:
            stop.set()
    for job in jobs:
        job.result()


def _tell(report: Storyteller, account: Account, seconds: float) -> None:
    report.table(account, seconds)
    report.samples(account.samples(_SAMPLES))
    report.verdict(account)


def _facts(url: str, stage: Stage, account: Account, seconds: float) -> dict[str, Any]:
    return {
        **account_as_json(account, _SAMPLES),
        "seconds": round(seconds, 3),
        "records_per_second": round(len(account.published) / seconds, 1),
        "service_url": url,
        "topic": stage.topic,
        "processed_topic": stage.processed_topic,
        "dead_letter_topic": stage.dead_letter_topic,
    }


def _keep(report: Storyteller, stage: Stage, *, wait: bool) -> None:
    """Say what is kept; with *wait*, keep our own broker until Ctrl-C."""
    report.step("kept", f"{stage.topic}, {stage.processed_topic}")
    report.more(f"and {stage.dead_letter_topic}")
    if wait:
        report.more("the broker runs until Ctrl-C")
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
