"""Spans of OpenTelemetry, on a real broker: who is whose child, and what is linked to what."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pulsar
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import pulsar_retry as pr
from support.pull import workers
from support.push.receiving import Receiver
from support.reading import SOON, SUBSCRIPTION
from support.waiting import eventually

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PRODUCER = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Recorded:
    """The spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, operation: str) -> list[ReadableSpan]:
        """Return those of an operation, oldest first."""
        spans = self.exporter.get_finished_spans()
        return [each for each in spans if each.name.split()[0] == operation]


@pytest.fixture
def recorded(monkeypatch) -> Recorded:
    """Record the spans of this test alone: a global provider could not be taken back."""
    recorded = Recorded()
    monkeypatch.setattr("pulsar_retry.observe.spans.tracer", lambda: recorded.tracer)
    return recorded


def ids(span: Any) -> tuple[str, str]:
    """Return the ids of a span's trace and of the span, or of a context."""
    context = span.get_span_context() if isinstance(span, ReadableSpan) else span
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return a span's attributes."""
    return dict(span.attributes or {})


def fails_twice_then_works() -> Any:
    """Return a handler."""
    calls: list[Any] = []

    def handle(message: Any) -> None:
        calls.append(message)
        if len(calls) < 3:
            raise ValueError("a text that is in no span")

    return handle


def test_attempts_of_a_subscriber(start, publish, recorded, topic):
    """All in the producer's trace; each later one is linked to the first, over the letters."""
    policy = pr.RetryPolicy(max_attempts=5, backoff=pr.Immediate(), jitter="none")
    start(fails_twice_then_works(), retry_policy=policy)
    publish(properties=PRODUCER)
    eventually(lambda: len(recorded.named("process")) == 3)
    eventually(lambda: len(recorded.named("retry")) == 2)
    first, second, third = recorded.named("process")
    assert {TRACE} == {ids(each)[0] for each in (first, second, third)}
    assert {PARENT} == {trace.format_span_id(each.parent.span_id) for each in (first, second)}
    assert [] == list(first.links)
    assert [ids(first)] == [ids(each.context) for each in second.links]
    assert [ids(first)] == [ids(each.context) for each in third.links]
    assert [1, 2, 3] == [attributes(e)["pulsar_retry.attempt"] for e in (first, second, third)]
    codes = [each.status.status_code for each in (first, second, third)]
    assert [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET] == codes
    told = "".join(each.to_json() for each in recorded.exporter.get_finished_spans())
    assert "a text" not in told
    assert {
        "messaging.system": "pulsar",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": topic,
        "messaging.destination.subscription.name": SUBSCRIPTION,
        "messaging.message.body.size": 5,
        "error.type": "ValueError",
    }.items() <= attributes(first).items()
    assert (f"process {topic}", SpanKind.CONSUMER) == (first.name, first.kind)


def test_the_hand_off_is_a_span(start, publish, recorded, topic):
    """A child of the attempt that failed, until the original is acknowledged."""
    policy = pr.RetryPolicy(max_attempts=2, backoff=pr.Immediate(), jitter="none")

    def handle(_message: Any) -> None:
        raise ValueError

    start(handle, retry_policy=policy)
    publish()
    for operation, count in (("process", 2), ("retry", 1), ("dead_letter", 1)):
        eventually(lambda o=operation, n=count: len(recorded.named(o)) == n)
    attempts, [retry], [dead] = map(recorded.named, ("process", "retry", "dead_letter"))
    attempts.sort(key=lambda each: each.start_time)
    assert [ids(each)[1] for each in attempts] == [
        trace.format_span_id(each.parent.span_id) for each in (retry, dead)
    ]
    assert {
        "messaging.operation.type": "settle",
        "messaging.operation.name": "retry",
        "messaging.destination.subscription.name": SUBSCRIPTION,
        "pulsar_retry.letter_topic": f"{topic}-{SUBSCRIPTION}-RETRY",
    }.items() <= attributes(retry).items()
    assert "retries-exhausted" == attributes(dead)["pulsar_retry.reason"]
    assert SpanKind.CLIENT is retry.kind


def test_a_dead_letter_carries_the_context(client, subscribe, publish, recorded, topic):
    """The producer's, and the first attempt's: whoever reads the letter finds both."""
    consumer = subscribe()
    dead_letters = client.subscribe(f"{topic}-{SUBSCRIPTION}-DLQ", "reader")
    publish(properties=PRODUCER)
    message = consumer.receive(SOON)
    with pr.process_span(message, SUBSCRIPTION):
        consumer.reconsume_later(message, delay=0)
    letter = consumer.receive(SOON)
    with pr.process_span(letter, SUBSCRIPTION):
        consumer.dead_letter(letter, reason="invalid")
    carried = dead_letters.receive(SOON).properties()
    first = recorded.named("process")[0]
    assert PRODUCER["traceparent"] == carried["traceparent"]
    assert "-".join(("00", *ids(first), "01")) == carried["FAILURE_TRACEPARENT"]


def test_within_a_span_of_ones_own(subscribe, publish, recorded):
    """Then that is the parent, and the producer's is linked."""
    consumer = subscribe()
    publish(properties=PRODUCER)
    message = consumer.receive(SOON)
    with recorded.tracer.start_as_current_span("mine") as mine, pr.process_span(message) as span:
        assert trace.get_current_span() is span
        consumer.acknowledge(message)
    [process] = recorded.named("process")
    assert ids(mine.get_span_context())[1] == trace.format_span_id(process.parent.span_id)
    assert [(TRACE, PARENT)] == [ids(each.context) for each in process.links]


def test_an_async_handler(start, publish, recorded):
    """Its own spans are the attempt's children; an outcome that it chose is no error."""

    async def handle(_message: Any) -> Any:
        with recorded.tracer.start_as_current_span("query"):
            return pr.Drop("unwanted")

    start(handle)
    publish()
    eventually(lambda: bool(recorded.named("process")))
    [process], [query] = recorded.named("process"), recorded.named("query")
    assert ids(process)[1] == trace.format_span_id(query.parent.span_id)
    assert "drop" == attributes(process)["pulsar_retry.outcome"]
    assert StatusCode.UNSET is process.status.status_code


@pytest.mark.parametrize("form", [workers.hiding, workers.awaiting])
def test_work_that_is_not_done(start, publish, recorded, form):
    """The span of its attempt is that of a failure."""
    start(form(workers.awaiting(print)))
    publish()
    eventually(lambda: bool(recorded.named("process")))
    process, *_ = recorded.named("process")
    assert StatusCode.ERROR is process.status.status_code
    assert "UnfinishedError" == attributes(process)["error.type"]


def test_a_hand_off_that_fails(subscribe, publish, recorded, admin, topic):
    """Its span says so, by the type of the error."""
    consumer = subscribe(letter_send_timeout=2)
    publish()
    message = consumer.receive(SOON)
    admin.terminate(f"{topic}-{SUBSCRIPTION}-RETRY")
    with pr.process_span(message), pytest.raises(pr.LetterPublishError):
        consumer.reconsume_later(message)
    [retry] = recorded.named("retry")
    assert "LetterPublishError" == attributes(retry)["error.type"]


def test_a_dispatcher(client, publish, recorded, topic):
    """Its receivers are told of the attempt, in a header that their own tracing understands."""
    with Receiver() as receiver:
        with pr.push.Dispatcher(client, topic, SUBSCRIPTION, receiver.url):
            publish(properties=PRODUCER)
            eventually(lambda: len(recorded.named("process")) == 1)
        headers = {name.lower(): value for name, value in receiver.requests[0].headers.items()}
    [process] = recorded.named("process")
    assert "-".join(("00", *ids(process), "01")) == headers["traceparent"]
    assert TRACE == ids(process)[0]


def test_partitions(client, publish, recorded, admin, topic):
    """The destination is the topic, whichever partition it was."""
    admin.create_partitioned_topic(topic, 1)
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    publish()
    message = consumer.receive(SOON)
    with pr.process_span(message):
        pass
    [process] = recorded.named("process")
    assert {
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": "0",
    }.items() <= attributes(process).items()


@pytest.mark.parametrize("installed", [True, False])
def test_without_a_provider_there_is_nothing(installed, broker, topic):
    """And without the extra neither: the same program runs, and pays nothing."""
    program = f"""
import sys
if not {installed}:
    sys.modules["opentelemetry"] = None
import pulsar, pulsar_retry as pr
done = []
with pr.Client({broker.service_url!r}) as client:
    client.create_producer({topic!r}).send(b"order")
    consumer = client.subscribe({topic!r}, "a", pulsar.ConsumerType.Shared, enable_retry=True,
                                initial_position=pulsar.InitialPosition.Earliest)
    message = consumer.receive(60_000)
    with pr.process_span(message) as span:
        assert span is None
        consumer.reconsume_later(message, delay=0)
    letter = consumer.receive(60_000)
    assert "FAILURE_TRACEPARENT" not in letter.properties()
    consumer.acknowledge(letter)
    with client.subscriber({topic!r}, "b", done.append) as subscriber:
        while not done:
            pass
assert "opentelemetry.sdk" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
