"""`pulsar-retry demo`: real, dirty data through retries into a dead-letter topic.

The data are the US airports of the package vega-datasets, with their errors: every value is text,
some codes are not airport codes, some airports are abroad or have no city (``NA``), and in the
Pacific territories longitudes and latitudes have lost their sign, which puts Guam into the open
sea. Only the time-outs of the look-up are invented; they are the same in every run.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import json
import logging
import signal
import threading
import time
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import click
import pulsar
from click.core import ParameterSource

import pulsar_retry as pr
from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.options import example
from pulsar_retry.policy.dead_letter import KEEPING_SUBSCRIPTION
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.testing.broker import running_broker
from pulsar_retry.wire.names import TopicName

__all__ = ["command"]

SUBSCRIPTION = "demo"
RETRIES = 3
#: Short, for a demo. A broker may deliver up to its delayedDeliveryTickTimeMillis earlier (default:
#: 1000, in our standalone: 100), so with the default there may be no delay at all.
DELAYS = "200ms 400ms 800ms"
POLICY = pr.RetryPolicy(max_attempts=RETRIES + 1, backoff=f"levels {DELAYS}", jitter="none")
#: Seconds without progress after which missing records count as lost. The longest normal wait is a
#: delay level, or a redelivery after a failure.
PATIENCE = 10.0

#: The share of records by the number of time-outs; below the first bound no attempt succeeds.
_BOUNDS = (0.006, 0.02, 0.06, 0.20)
_TIMEOUTS = (1_000_000, 3, 2, 1, 0)
_EASTERN, _SOUTHERN = {"GU", "CQ"}, {"AS"}  # Guam and Northern Mariana Islands; American Samoa

#: Prints a line of a step; the other lines of a step have an empty name.
Say = Callable[[str, str], None]


@click.command(
    short_help="Send real, dirty data through retries into a dead-letter topic.",
    epilog=example("pulsar-retry demo --keep"),
)
@click.option("--namespace", default="public/default", show_default=True, metavar="NAMESPACE")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N of the 3376 records.")
@click.option("--keep", is_flag=True, help="Keep the topics, the subscriptions and the broker.")
@json_option
@cluster_options
def command(
    *, cluster: Cluster, namespace: str, limit: int | None, keep: bool, as_json: bool
) -> int:
    """Send real, dirty data through retries into a dead-letter topic, and account for all of it.

    Without --service-url it starts a broker for itself. The data are the US airports of the Python
    package vega-datasets. Invalid records become dead letters at once, with the reason. The look-up
    of an airport's time zone times out for one in five of them. These are retried after 200, 400
    and 800 ms, and then become dead letters.

    At the end results and dead letters are read back from the broker. The exit code is 0 only if
    each published record is in exactly one of the two, and 1 otherwise.
    """
    # `kill` must end it as cleanly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Without a handler, Python would print each kind of failure among our lines.
    logging.getLogger("pulsar_retry").addHandler(logging.NullHandler())

    def say(step: str, text: str) -> None:
        click.echo(f"{step:<10} {text}", err=as_json)

    topic = str(TopicName.parse(f"{namespace}/airports-{uuid.uuid4().hex[:8]}"))
    results, dead = f"{topic}-results", pr.Naming.PULSAR.topics(topic, SUBSCRIPTION).dead_letter
    records = load(limit)
    say("data", f"{len(records)} US airports from the package vega-datasets, as they are")
    source = click.get_current_context().get_parameter_source("service_url")
    is_own = source is ParameterSource.DEFAULT
    with contextlib.ExitStack() as stack:
        if is_own:
            say("start", "a real Pulsar is started (use --service-url if you have a running one)")
            cluster = Cluster(stack.enter_context(running_broker()).service_url)
        say("broker", cluster.service_url)
        client = stack.enter_context(cluster.client())
        stack.enter_context(_subscribed(client, topic, results, dead, keep=keep))
        published = publish(client, topic, records)
        say("publish", f"{len(published)} messages, keyed by airport code, to {topic}")
        seconds = _consume(client, topic, results, len(published), say)
        say("read back", "results and dead letters, through subscriptions at the broker")
        account = Account.of(
            published,
            _read(client, results, SUBSCRIPTION),
            _read(client, dead, KEEPING_SUBSCRIPTION),
        )
        _tell(account, seconds, say)
        if as_json:
            where = {"service_url": cluster.service_url, "topic": topic, "dead_letter_topic": dead}
            click.echo(json.dumps(account.facts() | where | {"seconds": round(seconds, 3)}))
        if keep:
            say("kept", f"look at them: pulsar-retry dlq show {dead}")
        if keep and is_own:
            say("", "the broker runs until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return 0 if account.is_balanced else 1


# -- what an application does ---------------------------------------------------------------------


def process(message: pulsar.Message, results: pulsar.Producer) -> None:
    """Process one airport. This and the subscriber in `_consume` are the part to copy from."""
    airport = json.loads(message.data())
    check(airport)  # raises pr.Reject: a retry cannot help
    attempt = pr.attempt_of(message)
    offset = time_zone(airport, attempt)  # a retry may help against its TimeoutError
    result = json.dumps({**airport, "utc_offset": offset}).encode()
    results.send(result, partition_key=airport["iata"], properties={"retries": str(attempt - 1)})


def check(airport: Mapping[str, str]) -> None:
    """Check a record.

    Raises:
        Reject: it is invalid, and stays so with every retry. The reason is short and stable.
    """
    state, latitude, longitude = (airport[each] for each in ("state", "latitude", "longitude"))
    if len(airport["iata"]) != 3:  # noqa: PLR2004 - as IATA's codes
        raise pr.Reject("not-an-iata-code")
    if airport["country"] != "USA":
        raise pr.Reject("foreign-country")
    if "NA" in (airport["city"], state):
        raise pr.Reject("missing-city")
    is_east, is_south = float(longitude) > 0, float(latitude) < 0
    if is_east != (state in _EASTERN) or is_south != (state in _SOUTHERN):
        raise pr.Reject("impossible-position")


def time_zone(airport: Mapping[str, str], attempt: int) -> int:
    """Ask an unreliable service for an airport's offset from UTC in hours.

    There is no real service: the answer is the nautical time zone. Whether it times out depends
    only on the airport's code and on the *attempt*, so every run is the same.

    Raises:
        TimeoutError: the service did not answer in time. The next attempt may succeed.
    """
    digest = hashlib.sha256(airport["iata"].encode()).digest()
    draw = int.from_bytes(digest[:8]) / 2**64
    if attempt <= _TIMEOUTS[bisect_right(_BOUNDS, draw)]:
        raise TimeoutError(f"no time zone for {airport['iata']}: attempt {attempt} timed out")
    return round(float(airport["longitude"]) / 15)


def _consume(client: pr.Client, topic: str, results_topic: str, total: int, say: Say) -> float:
    """Let a subscriber run until all is settled, or nothing has happened for `PATIENCE`."""
    say("consume", "a subscriber looks up each airport's time zone")
    say("", f"time-out: retried after {DELAYS}; a dead letter after {RETRIES} retries")
    say("", "invalid record: a dead letter at once")
    fates: list[tuple[str, str]] = []  # of each delivery, with the key
    results = client.create_producer(results_topic, batching_enabled=False)

    def handle(message: pulsar.Message) -> None:
        fate = "processed"
        try:
            process(message, results)
        except Exception as error:
            is_dead = isinstance(error, pr.Reject) or pr.attempt_of(message) > RETRIES
            fate = "dead" if is_dead else "sent to retry"
            raise
        finally:
            fates.append((fate, message.partition_key()))

    began = said = changed = time.monotonic()
    seen, settled = 0, set[str]()
    with client.subscriber(topic, SUBSCRIPTION, handle, retry_policy=POLICY):
        while len(settled) < total and time.monotonic() - changed < PATIENCE:
            time.sleep(0.1)
            if len(fates) > seen:
                seen, changed = len(fates), time.monotonic()
                settled = {key for fate, key in fates[:seen] if fate != "sent to retry"}
            if time.monotonic() - said >= 1 or len(settled) >= total:
                said, counts = time.monotonic(), Counter(fate for fate, _ in fates)
                words = ", ".join(f"{count} {fate}" for fate, count in sorted(counts.items()))
                say("", f"{len(settled)} of {total}: {words}")
    return time.monotonic() - began


# -- what is only needed for the account ----------------------------------------------------------


def load(limit: int | None) -> list[dict[str, str]]:
    """Return the records of the data set, or *limit* of them spread evenly over the file."""
    try:
        from vega_datasets import local_data
    except ModuleNotFoundError as error:
        text = f'{error.name} is missing; the demo needs: pip install "pulsar-retry[demo]"'
        raise click.ClickException(text) from None
    records = list(csv.DictReader(local_data.airports.raw().decode().splitlines()))
    count = len(records) if limit is None else min(limit, len(records))
    return [records[position * len(records) // count] for position in range(count)]


@contextlib.contextmanager
def _subscribed(
    client: pr.Client, topic: str, results: str, dead: str, *, keep: bool
) -> Iterator[None]:
    """Make the subscriptions; at the end remove them, unless *keep* is set.

    A broker keeps messages only for subscriptions, so they must exist before the first message. By
    default it removes topics without subscriptions after a while.
    """
    _subscribe(client, topic, SUBSCRIPTION, enable_retry=True).close()
    _subscribe(client, results, SUBSCRIPTION).close()
    try:
        yield
    finally:
        if not keep:
            _subscribe(client, topic, SUBSCRIPTION, enable_retry=True).unsubscribe()
            _subscribe(client, results, SUBSCRIPTION).unsubscribe()
            _subscribe(client, dead, KEEPING_SUBSCRIPTION).unsubscribe()


def _subscribe(client: pr.Client, topic: str, name: str, **options: Any) -> pr.Consumer:
    shared, earliest = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
    return client.subscribe(topic, name, shared, initial_position=earliest, **options)


def publish(client: pr.Client, topic: str, records: Iterable[Mapping[str, str]]) -> set[str]:
    """Publish *records* as JSON, keyed by their code, and return the keys that have a receipt."""
    keys: set[str] = set()
    producer = client.create_producer(topic, block_if_queue_full=True)
    for record in records:
        key = record["iata"]

        def received(result: pulsar.Result, _message_id: object, key: str = key) -> None:
            if result == pulsar.Result.Ok:
                keys.add(key)

        producer.send_async(json.dumps(record).encode(), received, partition_key=key)
    producer.flush()
    producer.close()
    return keys


def _read(client: pr.Client, topic: str, subscription: str) -> Iterator[pulsar.Message]:
    """Yield all messages that *topic* keeps for the subscription; acknowledge none."""
    with contextlib.closing(_subscribe(client, topic, subscription)) as consumer:
        last = consumer.get_last_message_id()
        more = last.entry_id() >= 0  # an empty topic's last entry is -1
        while more:
            message = consumer.receive(timeout_millis=10_000)  # it is known to exist
            more = message.message_id() < last
            yield message


@attrs.frozen
class Account:
    """Where the published records ended, according to the broker.

    A record counts once, by its key: as processed if there is a result, or as dead if there is a
    dead letter. Pulsar delivers at least once, so there may be copies; they are no error. These
    are: a record that ended nowhere, or in both places, or was never published.

    Attributes:
        published: The keys for which there is a receipt.
        processed: The number of retries, by key, of the records that have a result.
        dead: The properties of each dead letter, by key.
        copies: Results and dead letters beyond the first of each key.
    """

    published: set[str]
    processed: dict[str, int]
    dead: dict[str, dict[str, str]]
    copies: int

    @classmethod
    def of(
        cls, published: set[str], results: Iterable[Any], dead_letters: Iterable[Any]
    ) -> Account:
        """Return the account of the published keys and of the broker's messages."""
        done = [(each.partition_key(), int(each.properties()["retries"])) for each in results]
        dead = [(each.partition_key(), dict(each.properties())) for each in dead_letters]
        found = cls(published, dict(done[::-1]), dict(dead[::-1]), 0)
        copies = len(done) + len(dead) - len(found.processed) - len(found.dead)
        return attrs.evolve(found, copies=copies)

    @property
    def faults(self) -> dict[str, list[str]]:
        """The keys of records that did not end in exactly one place, by what is wrong."""
        processed, dead = self.processed.keys(), self.dead.keys()
        return {
            "missing": sorted(self.published - processed - dead),
            "in_both": sorted(processed & dead),
            "unknown": sorted((processed | dead) - self.published),
        }

    @property
    def is_balanced(self) -> bool:
        """Whether each published record ended in exactly one place, and no other record exists."""
        return not any(self.faults.values())

    @property
    def reasons(self) -> dict[str, int]:
        """How many records are dead for each reason, the most frequent first."""
        return dict(Counter(each["FAILURE_REASON"] for each in self.dead.values()).most_common())

    @property
    def samples(self) -> dict[str, dict[str, str]]:
        """A dead letter of each of the three most frequent reasons, by key."""
        first = {self.dead[key]["FAILURE_REASON"]: key for key in sorted(self.dead, reverse=True)}
        return {first[reason]: self.dead[first[reason]] for reason in list(self.reasons)[:3]}

    @property
    def retried(self) -> dict[int, int]:
        """How many records reached each attempt, from the second attempt on."""
        dead = [pr.RetryProperties.read(each).reconsume_times for each in self.dead.values()]
        made = [*self.processed.values(), *(min(each, RETRIES) for each in dead)]
        return {n: sum(retries + 1 >= n for retries in made) for n in range(2, RETRIES + 2)}

    def facts(self) -> dict[str, Any]:
        """Return the account in the form that `--json` prints."""
        return {
            "ok": self.is_balanced,
            "published": len(self.published),
            "processed": len(self.processed),
            "dead_lettered": len(self.dead),
            "retried": self.retried,
            "reasons": self.reasons,
            "copies": self.copies,
            **self.faults,
            "samples": self.samples,
        }


def _tell(account: Account, seconds: float, say: Say) -> None:
    """Print where the records ended, some dead letters, and whether the account is balanced."""
    published, processed, dead = map(len, (account.published, account.processed, account.dead))
    say("published", f"{published}, {published / seconds:.0f} a second, with the delays")
    say("processed", f"{processed}")
    for (attempt, count), delay in zip(account.retried.items(), DELAYS.split(), strict=True):
        say("retried", f"{count}, attempt {attempt} after {delay}")
    say("dead", ", ".join(f"{count} {reason}" for reason, count in account.reasons.items()))
    for number, (key, properties) in enumerate(account.samples.items(), 1):
        say("sample", f"dead letter {number} of {len(account.samples)}: {key}")
        for name, value in properties.items():  # of a traceback, the last line
            say("", f"{name:<24} {value.rstrip().rpartition(chr(10))[2]}")
    if account.is_balanced:
        sums = f"{processed} processed + {dead} dead-lettered = {published} published"
        say("ok", f"{sums}: each accounted for by its key")
    for what, keys in account.faults.items():
        if keys:
            say("FAILED", f"{len(keys)} {what}: {', '.join(keys[:10])}")
    if account.copies:
        say("", f"{account.copies} copies, which at-least-once delivery permits")
