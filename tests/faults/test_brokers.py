"""Brokers are killed or restarted, and topics are unloaded, while letters are in flight."""

from __future__ import annotations

import pytest

from support.faults.handing import manage, publish, retry_many
from support.reading import SUBSCRIPTION, retry_topic
from support.waiting import eventually

pytestmark = pytest.mark.timeout(600)

COUNT, SOME = 200, 50

#: How often the broker is killed, and how often topics are unloaded.
KILLS, UNLOADS = 2, 3

# After each fault, all recent messages may be delivered again: originals, which then get new
# letters, and letters. So each fault may at most triple the number of completions.


def begin_round(stage):
    """Publish more messages, and wait until some of them have been delivered."""
    before = stage.ledger.account().deliveries
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    eventually(lambda: stage.ledger.account().deliveries >= before + SOME)


def test_a_broker_that_is_killed_again_and_again(own_stage, own_broker, fault, caplog):
    """After each `kill -9` with letters in flight, a consumer and a subscriber continue."""
    with own_stage.working(retry_many, manage):
        for _ in range(KILLS):
            begin_round(own_stage)
            own_broker.kill()
            fault.is_over()
            own_broker.start()

    assert "refuses the letter" not in caplog.text  # the connections were only lost
    fault.survived(
        f"broker killed with `kill -9`, {KILLS} times",
        own_stage.account(),
        bound=3**KILLS * COUNT,
    )


def test_a_thousand_delayed_letters_and_a_restart(own_stage, own_broker, fault):
    """Letters wait in the topic, not in the broker's memory, and none is delivered early."""
    count, delay = 1000, 12.0
    publish(own_stage.client, own_stage.topic, own_stage.ledger, count)
    with own_stage.working(retry_many, delay=delay):
        eventually(lambda: own_stage.ledger.account().retried >= count)
        eventually(lambda: own_stage.admin.backlog(own_stage.topic, SUBSCRIPTION) == 0)
        # On a busy machine the first letters are due already.
        handled = own_stage.ledger.account().deliveries - count
        fault.is_over()
        own_broker.restart()

    fault.survived(
        f"broker restarted while {count} letters wait {delay:g} s",
        own_stage.account(),
        bound=count // 10 + handled,
    )


@pytest.mark.parametrize("way", [retry_many, manage])
def test_topics_that_are_unloaded(stage, fault, way):
    """The topic and its retry topic are unloaded several times while messages are retried."""
    with stage.working(way):
        for _ in range(UNLOADS):
            begin_round(stage)
            stage.admin.unload(stage.topic)
            stage.admin.unload(retry_topic(stage.topic))
        fault.is_over()

    fault.survived(
        f"topic and retry topic unloaded, {UNLOADS} times",
        stage.account(),
        bound=3**UNLOADS * COUNT,
    )
