"""One client for each process and connection. It and its producers are kept from task to task.

A Spark worker runs one task after another in one process, and each task uses what earlier tasks
have opened. Spark ends workers without notice, so nothing may be left unsent when a task is done.
In any other process (the driver's), clients are closed at exit, because pulsar-client aborts a
process that leaves one open.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import Any

import attrs
import pulsar

from pulsar_retry.consumer.handoff.writer_schemas import WireSchema
from pulsar_retry.consumer.old_names import with_old_names
from pulsar_retry.letters.plan import Plan
from pulsar_retry.runtime.exiting import keep_until_exit
from pulsar_retry.runtime.fork import keep_for_ever
from pulsar_retry.wire.names import LetterTopics
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.schemas import TopicSchema

#: Seconds after which an unused client is closed.
IDLE = 60.0

#: Seconds for which a subscription counts as existing before rows are written. This is less than
#: the minute after which a broker deletes a topic without a subscription.
_KEPT = 30.0

_lock = threading.Lock()
_cached: dict[ClusterConnection, CachedClient] = {}
_modules = 0  # how many this worker had loaded when they were last left out of collections


@attrs.define(eq=False)
class CachedClient:
    """A client with its producers. Only one task at a time may use it; see `lease`.

    Attributes:
        client: The client.
        keys: Reads the keys of encrypted messages.
        leases: The number of its users; only this module changes it.
        timer: Closes the client when it was not used for a while.
        proven: By topic, the longest delay in seconds that the topic has accepted.
    """

    client: pulsar.Client
    keys: pulsar.CryptoKeyReader | None = None
    _producers: dict[Any, Any] = attrs.field(factory=dict, init=False)
    _letter_topics: dict[Plan, LetterTopics] = attrs.field(factory=dict, init=False)
    _wire_schemas: dict[TopicSchema, WireSchema] = attrs.field(factory=dict, init=False)
    _kept_until: dict[tuple[str, str], float] = attrs.field(factory=dict, init=False)
    leases: int = attrs.field(default=0, init=False)
    timer: threading.Timer | None = attrs.field(default=None, init=False)
    proven: dict[str, float] = attrs.field(factory=dict, init=False)

    def letter_topics(self, plan: Plan) -> LetterTopics:
        """Return the topics of a subscription, by their old-style names if those exist.

        They are looked up once, and remembered while the client is open.
        """
        if plan not in self._letter_topics:
            topics = with_old_names(plan, self.client).topics
            assert topics is not None  # every plan of a sink has retries
            self._letter_topics[plan] = topics
        return self._letter_topics[plan]

    def partitions(self, topic: str) -> list[str]:
        """Return the full names of the topic's partitions, or the topic itself if it has none."""
        return list(self.client.get_topic_partitions(topic))

    def keep(self, topic: str, subscription: str, written: Collection[str] = ()) -> None:
        """Make the durable *subscription*; without one, the broker may delete what is written.

        It starts at the earliest message. An existing one is not changed. Before rows are written,
        nothing is done if this was done a short time ago.

        Args:
            topic: The topic.
            subscription: The name of the subscription.
            written: After rows were written, the partitions that may have got them: only those are
                checked, but always.

        Raises:
            pulsar.PulsarException: the broker refuses.
        """
        if not written and time.monotonic() < self._kept_until.get((topic, subscription), 0.0):
            return
        for partition in written or self.partitions(topic):
            # The broker delivers nothing to a consumer without a queue, so this consumer takes no
            # letters away from the others.
            with contextlib.suppress(pulsar.ConsumerBusy):  # it exists, and has a consumer
                self.client.subscribe(
                    partition,
                    subscription,
                    pulsar.ConsumerType.Shared,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=0,
                ).close()
        self._kept_until[topic, subscription] = time.monotonic() + _KEPT

    def wire_schema(self, schema: TopicSchema) -> WireSchema:
        """Return *schema* as an argument of `producer`: equal schemas are one object."""
        if schema not in self._wire_schemas:
            self._wire_schemas[schema] = WireSchema(schema.info)
        return self._wire_schemas[schema]

    def reader(self, topic: str, start: Any, queue: int = 1, **arguments: Any) -> pulsar.Reader:
        """Return a reader of a partition that begins with the message *start*.

        It leaves out messages that it can't decrypt. With pulsar-client's own default, such
        messages would fill its queue.

        Raises:
            pulsar.PulsarException: the broker refuses.
        """
        discard = pulsar.ConsumerCryptoFailureAction.DISCARD
        given = {"crypto_key_reader": self.keys, "crypto_failure_action": discard} | arguments
        return self.client.create_reader(
            topic, start, receiver_queue_size=queue, start_message_id_inclusive=True, **given
        )

    def producer(self, topic: str, **arguments: Any) -> Any:
        """Return the raw producer of *topic*, a partition or an unpartitioned topic.

        It is kept for the next task.

        Raises:
            pulsar.PulsarException: the broker refuses.
        """
        key = (topic, frozenset(arguments.items()))
        raw = self._producers.get(key)
        if raw is None:
            raw = self._producers[key] = self.new_producer(topic, **arguments)
        return raw

    def new_producer(self, topic: str, **arguments: Any) -> Any:
        """Return a raw producer that the caller closes; see `producer`."""
        return self.client.create_producer(topic, **arguments)._producer

    def forget_producers(self) -> None:
        """Close the producers after a failure, because they may still be sending rows."""
        producers = list(self._producers.values())
        self._producers.clear()
        self._letter_topics.clear()
        self._kept_until.clear()
        self.proven.clear()
        for raw in producers:
            raw.close_async(_ignore)

    def close(self) -> None:
        """Close the client and everything that it has opened."""
        self._producers.clear()
        keep_until_exit(self.client)
        with contextlib.suppress(pulsar.PulsarException):
            self.client.close()


def _ignore(_result: Any) -> None:
    """Ignore the result of closing."""


@contextlib.contextmanager
def lease(connection: ClusterConnection) -> Iterator[CachedClient]:
    """Yield the process's client for *connection*; it is opened if necessary, and closed later.

    Thread-safe, but the leased client is not: two threads that send need different connections.

    Raises:
        PulsarFailuresError: the token is missing, or pulsar-client refuses the configuration.
    """
    client = _acquire(connection)
    try:
        yield client
    except BaseException:
        client.forget_producers()
        raise
    finally:
        _release(connection, client)


def _acquire(connection: ClusterConnection) -> CachedClient:
    with _lock:
        client = _cached.get(connection)
        if client is None:
            client = _cached[connection] = CachedClient(connection.open(), connection.key_reader())
        client.leases += 1
        if client.timer is not None:
            client.timer.cancel()
            client.timer = None
        return client


def _release(connection: ClusterConnection, client: CachedClient) -> None:
    _freeze_modules()
    with _lock:
        client.leases -= 1
        if client.leases == 0:
            timer = threading.Timer(IDLE, _close_idle, (connection, client))
            timer.daemon = True
            timer.start()
            client.timer = timer


def _freeze_modules() -> None:
    """Leave the modules of a Spark worker, which are never garbage, out of its collections.

    Spark collects all garbage of a worker after each task. With the objects of PySpark, pyarrow
    and pandas this takes some 45 ms, which is longer than a task with few rows.
    """
    global _modules  # noqa: PLW0603 - what a process has loaded
    spark = sys.modules.get("pyspark")  # rows can be sent without Spark
    if spark and spark.TaskContext.get() is not None and len(sys.modules) > _modules:
        _modules = len(sys.modules)
        gc.freeze()


def _close_idle(connection: ClusterConnection, client: CachedClient) -> None:
    with _lock:
        if client.leases or _cached.get(connection) is not client:
            return
        del _cached[connection]
    client.close()


@atexit.register
def close_all() -> None:
    """Close every client of this process."""
    with _lock:
        clients = list(_cached.values())
        _cached.clear()
    for client in clients:
        client.close()


def _forget_inherited() -> None:
    """After a fork, never use or close the parent's clients: their threads do not exist here."""
    global _lock  # noqa: PLW0603 - a thread of the parent may have held it
    _lock = threading.Lock()
    for client in _cached.values():
        keep_for_ever(client)
    _cached.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_inherited)
