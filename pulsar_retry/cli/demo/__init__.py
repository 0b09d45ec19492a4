"""`pulsar-retry demo`: real, dirty data through retries into a dead-letter topic."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import attrs
import click
import pulsar

import pulsar_retry as pr
from pulsar_retry.cli.demo import airports
from pulsar_retry.cli.demo.account import Account, reckon
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.testing.broker import running_broker

__all__ = ["command"]

SUBSCRIPTION = "demo"
RETRIES = 3
#: Short, for a demo. A broker may deliver up to its delayedDeliveryTickTimeMillis earlier (default:
#: 1000, in our standalone: 100), so with the default there may be no delay at all.
DELAYS = "200ms 400ms 800ms"
POLICY = pr.RetryPolicy(max_attempts=RETRIES + 1, backoff=f"levels {DELAYS}", jitter="none")

_SAMPLES = 3
#: Seconds without progress after which missing records count as lost. The longest normal wait is a
#: delay level, or a redelivery after a failure.
PATIENCE = 10.0
_LOOK_EVERY, _SAY_EVERY = 0.1, 1.0  # seconds
_READ_TIMEOUT = 10_000  # milliseconds for a message that is known to exist
_SHOWN_KEYS = 10

#: Prints a line of a step; the other lines of a step have an empty name.
Say = Callable[[str, str], None]

#: The result of one delivery of an airport.
Fate = Literal["processed", "retried", "dead"]


@click.command(short_help="Send real, dirty data through retries into a dead-letter topic.")
@click.option(
    "--service-url",
    envvar="PULSAR_SERVICE_URL",
    show_envvar=True,
    metavar="URL",
    help="A running broker.  [default: one is started for the demo]",
)
@click.option(
    "--token",
    envvar="PULSAR_TOKEN",
    show_envvar=True,
    help="A token for that broker, if it needs one.",
)
@click.option(
    "--tls-trust-certs-file",
    envvar="PULSAR_TLS_TRUST_CERTS_FILE",
    show_envvar=True,
    metavar="FILE",
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
@click.option("--keep", is_flag=True, help="Keep the topics, the subscriptions and the broker.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def command(
    *,
    service_url: str | None,
    token: str | None,
    tls_trust_certs_file: str | None,
    namespace: str,
    limit: int | None,
    keep: bool,
    as_json: bool,
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
    # Without a handler, Python would print each kind of failure among our lines.
    logging.getLogger("pulsar_retry").addHandler(logging.NullHandler())

    def say(step: str, text: str) -> None:
        click.echo(f"{step:<10} {text}", err=as_json)

    records = _load(limit)
    say("data", f"{len(records)} US airports from the package vega-datasets, as they are:")
    say("", "numbers as text, NA for cities, wrong codes, Guam in the open sea")
    with contextlib.ExitStack() as stack:
        url = service_url or stack.enter_context(_own_broker(say))
        say("broker", url)
        cluster = Cluster(url, token=token, tls_trust_certs_file=tls_trust_certs_file)
        client = stack.enter_context(cluster.client())
        topic = f"persistent://{namespace}/airports-{uuid.uuid4().hex[:8]}"
        stage = stack.enter_context(_opened(client, topic, keep=keep))
        published = publish(client, topic, records)
        say("publish", f"{len(published)} messages, keyed by airport code, to {topic}")
        seconds = _consume(client, stage, len(published), say)
        say("read back", "results and dead letters, through subscriptions at the broker")
        results = read_all(client, stage.results_topic, SUBSCRIPTION)
        dead_letters = read_all(client, stage.dead_letter_topic, KEEPING_SUBSCRIPTION)
        account = reckon(published, results, dead_letters, retries=RETRIES)
        _tell(account, seconds, say)
        if as_json:
            facts = account.as_json(_SAMPLES) | attrs.asdict(stage)
            click.echo(json.dumps({**facts, "service_url": url, "seconds": round(seconds, 3)}))
        if keep:
            say("kept", ", ".join(attrs.astuple(stage)))
        if keep and service_url is None:
            say("", "the broker runs until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
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
def _own_broker(say: Say) -> Iterator[str]:
    """Yield the URL of a broker that runs only for the demo."""
    say("start", "a real Pulsar is started (use --service-url if you have a running one)")
    with running_broker() as broker:
        yield broker.service_url


@attrs.frozen
class Stage:
    """The demo's topics.

    Attributes:
        topic: The topic of the airports.
        results_topic: The topic of the results.
        dead_letter_topic: The topic of airports that cannot be processed.
    """

    topic: str
    results_topic: str
    dead_letter_topic: str


@contextlib.contextmanager
def _opened(client: pr.Client, topic: str, *, keep: bool) -> Iterator[Stage]:
    """Yield the topics; at the end remove their subscriptions unless *keep* is set.

    A broker keeps messages only for subscriptions, so they must exist before the first message. By
    default it removes topics without subscriptions after a while.
    """
    dead_letter_topic = pr.Naming.PULSAR.topics(topic, SUBSCRIPTION).dead_letter
    stage = Stage(topic, f"{topic}-results", dead_letter_topic)
    _subscribe(client, topic, SUBSCRIPTION, enable_retry=True).close()
    _subscribe(client, stage.results_topic, SUBSCRIPTION).close()
    try:
        yield stage
    finally:
        if not keep:
            _subscribe(client, topic, SUBSCRIPTION, enable_retry=True).unsubscribe()
            _subscribe(client, stage.results_topic, SUBSCRIPTION).unsubscribe()
            _subscribe(client, dead_letter_topic, KEEPING_SUBSCRIPTION).unsubscribe()


def _subscribe(client: pr.Client, topic: str, name: str, **options: Any) -> pr.Consumer:
    shared, earliest = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
    return client.subscribe(topic, name, shared, initial_position=earliest, **options)


def publish(client: pr.Client, topic: str, records: Sequence[airports.Record]) -> set[str]:
    """Publish *records* as JSON, keyed by their code, and return the keys.

    Raises:
        pulsar.PulsarException: there is no receipt for a record.
    """
    keys: set[str] = set()
    producer = client.create_producer(topic, block_if_queue_full=True)
    for record in records:
        key = record["iata"]

        def received(result: pulsar.Result, _message_id: Any, key: str = key) -> None:
            if result == pulsar.Result.Ok:
                keys.add(key)

        producer.send_async(json.dumps(record).encode(), received, partition_key=key)
    producer.flush()
    producer.close()
    if len(keys) < len(records):
        raise pulsar.PulsarException(f"{len(records) - len(keys)} records were not published")
    return keys


def process(message: pulsar.Message, results: Any) -> None:
    """Process one airport. This and the subscriber in `_consume` are the part to copy from."""
    try:
        airport = airports.read(message.data())
    except airports.InvalidRecordError as error:
        raise pr.Reject(error.reason) from error  # a retry cannot help
    attempt = pr.attempt_of(message)
    offset = airports.time_zone(airport, attempt)  # a retry may help against its TimeoutError
    result = json.dumps({**attrs.asdict(airport), "utc_offset": offset}).encode()
    results.send(result, partition_key=airport.code, properties={"retries": str(attempt - 1)})


class _Tally:
    """What the handlers have done so far. Thread-safe. The account at the end does not use it.

    Attributes:
        counts: The number of deliveries by result.
        settled: The keys of the airports that are processed or dead.
        changed: When the last delivery ended, by the monotonic clock.
    """

    def __init__(self) -> None:
        self.counts: Counter[Fate] = Counter()
        self.settled: set[str] = set()
        self.changed = time.monotonic()
        self._lock = threading.Lock()

    def add(self, fate: Fate, key: str) -> None:
        """Count the result of one delivery of the airport *key*."""
        with self._lock:
            self.changed = time.monotonic()
            self.counts[fate] += 1
            if fate != "retried":
                self.settled.add(key)


def _consume(client: pr.Client, stage: Stage, total: int, say: Say) -> float:
    """Let a subscriber run until all is settled, or nothing has happened for `PATIENCE`."""
    say("consume", "a subscriber looks up each airport's time zone")
    say("", f"time-out: retried after {DELAYS}; a dead letter after {RETRIES} retries")
    say("", f"invalid record: a dead letter at once, to {stage.dead_letter_topic}")
    tally, results = _Tally(), client.create_producer(stage.results_topic, batching_enabled=False)

    def handle(message: pulsar.Message) -> None:
        key = message.partition_key()
        try:
            process(message, results)
        except Exception as error:
            is_dead = isinstance(error, pr.Reject) or pr.attempt_of(message) > RETRIES
            tally.add("dead" if is_dead else "retried", key)
            raise
        tally.add("processed", key)

    began = said = time.monotonic()
    with client.subscriber(stage.topic, SUBSCRIPTION, handle, retry_policy=POLICY):
        while len(tally.settled) < total and time.monotonic() - tally.changed < PATIENCE:
            time.sleep(_LOOK_EVERY)
            if time.monotonic() - said >= _SAY_EVERY:
                said = time.monotonic()
                _say_progress(tally, total, say)
    _say_progress(tally, total, say)
    return time.monotonic() - began


def _say_progress(tally: _Tally, total: int, say: Say) -> None:
    counts = tally.counts
    words = f"{counts['processed']} processed, {counts['retried']} sent to retry"
    say("", f"{len(tally.settled)} of {total}: {words}, {counts['dead']} dead")


def read_all(client: pr.Client, topic: str, subscription: str) -> Iterator[pulsar.Message]:
    """Yield all messages that *topic* keeps for the subscription; acknowledge none."""
    with contextlib.closing(_subscribe(client, topic, subscription)) as consumer:
        last = consumer.get_last_message_id()
        read = None if last.entry_id() < 0 else last  # an empty topic's last entry is -1
        while read is not None:
            message = consumer.receive(timeout_millis=_READ_TIMEOUT)
            yield message
            read = None if message.message_id() >= last else last


def _tell(account: Account, seconds: float, say: Say) -> None:
    """Print where the records ended, some dead letters, and whether the account is balanced."""
    say("published", f"{len(account.published)}")
    say("processed", f"{len(account.processed)}")
    for (attempt, count), delay in zip(account.retried.items(), DELAYS.split(), strict=True):
        say("retried", f"{count}, attempt {attempt} after {delay}")
    say("dead", f"{len(account.dead)}")
    for reason, count in account.reasons.items():
        say("", f"{count} {reason}")
    say("throughput", f"{len(account.published) / seconds:.0f} records/s, with the delays")
    samples = account.samples(_SAMPLES)
    for number, letter in enumerate(samples, 1):
        say("sample", f"dead letter {number} of {len(samples)}: {letter.reason}")
        rows = {"key": letter.key, "payload": letter.payload, **letter.properties}
        for name, value in rows.items():  # of a traceback, the last line
            say("", f"{name:<24} {value.rstrip().rpartition(chr(10))[2]}")
    if account.is_balanced:
        sums = f"{len(account.processed)} processed + {len(account.dead)} dead-lettered"
        say("ok", f"{sums} = {len(account.published)} published: each accounted for by its key")
    for what, keys in account.faults.items():
        if keys:
            shown = ", ".join(keys[:_SHOWN_KEYS]) + (", …" if len(keys) > _SHOWN_KEYS else "")
            say("FAILED", f"{len(keys)} {what}: {shown}")
    if account.copies:
        text = "copies, which at-least-once delivery permits: each record was counted once"
        say("", f"{account.copies} {text}")
