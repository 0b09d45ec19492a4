"""Letters that every broker refuses, and letter topics that match a consumer's pattern."""

from __future__ import annotations

import re

import pytest

from support.faults.handing import DELAY, nack, process, publish, received, subscribe
from support.faults.ledger import Ledger
from support.reading import SOON
from support.waiting import eventually

COUNT = 30

#: The longest delay that the namespace allows, in seconds.
LIMIT = 60

#: Letters that the broker refuses: options of `reconsume_later_async`.
REFUSED = {
    "delays above the namespace's limit": {"delay": LIMIT + 1},
    "properties of 6 MiB": {"delay": DELAY, "properties": {"large": "x" * (6 << 20)}},
}


@pytest.fixture
def held(stage, tmp_path):
    """Give the account of another consumer of the same client, which has messages in hand."""
    topic, ledger = f"{stage.topic}-held", Ledger(tmp_path / "held")
    publish(stage.client, topic, ledger, COUNT)
    consumer = subscribe(stage.client, topic)
    messages = [consumer.receive(SOON) for _ in range(COUNT)]
    ledger.enter_all("delivered", messages)

    def account():
        # If messages were redelivered, they would come before the one that is published now.
        publish(stage.client, topic, ledger, 1)
        messages.append(consumer.receive(SOON))
        ledger.enter("delivered", messages[-1])
        for message in messages:
            process(consumer, ledger, message)
        return ledger.account()

    yield account
    consumer.close()


@pytest.mark.parametrize("refused", REFUSED)
def test_letters_that_no_broker_takes(stage, held, fault, refused):
    """Every third letter is refused; other letters, and another consumer, are not disturbed."""
    limit = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": LIMIT * 1000}
    stage.admin.set_namespace_policy(stage.namespace, "delayedDelivery", limit)
    asked = set()

    def hand_on(client, topic, ledger, go_on):
        consumer = subscribe(client, topic)
        for message in received(consumer, ledger, go_on):
            number = int(message.data())
            if message.topic_name() != topic:
                process(consumer, ledger, message)
                continue
            ledger.enter("retried", message)
            good = number % 3 or number in asked
            asked.add(number)
            consumer.reconsume_later_async(
                message, **{"delay": DELAY} if good else REFUSED[refused]
            )
        consumer.close()

    publish(stage.client, stage.topic, stage.ledger, COUNT)
    with stage.working(hand_on):
        eventually(lambda: stage.ledger.account().retried >= COUNT)
        fault.is_over()
    account = stage.account()

    assert account.dead == 0
    assert account.retried == COUNT + COUNT // 3
    fault.survived(
        f"letters with {refused}",
        "The call fails within about a second, and the original is redelivered. Other letters are "
        "not disturbed",
        account,
        bound=0 if "properties" in refused else COUNT - COUNT // 3,
        why="letters that were in flight with a refused one may be stored again",
    )
    others = held()
    assert others.deliveries == others.sent
    fault.survived(
        f"letters with {refused}, another consumer of the same client",
        "The other consumer is not disturbed",
        others,
        bound=0,
    )


def test_a_pattern_that_matches_the_dead_letter_topic(stage, fault):
    """A subscription does not read its own letters, not even after it subscribes again."""
    for _ in range(2):
        publish(stage.client, stage.topic, stage.ledger, COUNT)
        fault.is_over()
        with stage.working(by_pattern):
            pass
    assert len(stage.admin.topics(stage.namespace)) == 2
    fault.survived(
        "a pattern that matches the dead-letter topic, subscribed twice",
        "The consumer leaves the dead letters out",
        stage.account(),
        bound=0,
    )


def by_pattern(client, topic, ledger, go_on):
    """Nack messages of all topics that match a pattern; search for new topics every second."""
    nack(client, re.compile(f"{topic}.*"), ledger, go_on, pattern_auto_discovery_period=1)
