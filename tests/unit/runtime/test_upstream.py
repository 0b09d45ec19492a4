"""Other versions of pulsar-client."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from typing import Any

import pulsar
import pytest

from pulsar_retry.runtime import upstream

#: Makes the installed pulsar-client a later one.
_LATER = """
import inspect, _pulsar, pulsar
pulsar.__version__ = "3.14.0"
original = pulsar.Client.subscribe
def subscribe(self, *args, newest=None, **kwargs):
    return original(self, *args, **kwargs)
known = inspect.signature(original)
newest = inspect.Parameter("newest", inspect.Parameter.KEYWORD_ONLY, default=None)
subscribe.__signature__ = known.replace(parameters=[*known.parameters.values(), newest])
pulsar.Client.subscribe = subscribe
"""

_USE = """
import pulsar_retry as pr
from pulsar_retry.testing import MemoryBroker
memory = MemoryBroker()
consumer = memory.client().subscribe(
    "orders", "billing", pulsar.ConsumerType.Shared, enable_retry=True, newest=7
)
memory.client().create_producer("orders").send(b"tea")
consumer.reconsume_later(consumer.receive(5000), delay=0)
assert pr.attempt_of(consumer.receive(5000)) == 2
memory.close()
"""


def test_a_later_pulsar_client_is_used() -> None:
    """A new argument does no harm, and is passed on."""
    program = [sys.executable, "-c", _LATER + _USE]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert (0, "") == (done.returncode, done.stderr)


class OldClient:
    """The raw client of pulsar-client 3.9."""

    def get_topic_partitions(self, topic: str) -> list[str]:
        """Know one topic."""
        if topic != "orders":
            raise pulsar.TopicNotFound("no such topic")
        return [topic]


@pytest.mark.parametrize(
    ("topic", "result"),
    [("orders", (pulsar.Result.Ok, ["orders"])), ("teas", (pulsar.Result.TopicNotFound, None))],
)
def test_an_old_pulsar_client_is_asked_for_partitions(topic: str, result: Any) -> None:
    """On a thread; the answer is as from a newer one."""
    answer: Future[Any] = Future()
    upstream.ask_partitions(OldClient(), topic, lambda *each: answer.set_result(each))
    assert result == answer.result(60)


def test_a_message_of_an_old_pulsar_client_has_no_null_value() -> None:
    """It cannot tell; its letters have an empty payload."""
    assert not upstream._has_null_value(object())
