"""Letters that no broker takes, and topics that a pattern should not match."""

from __future__ import annotations

import re

import pytest

from support.faults.handing import DELAY, nack, process, publish, received, subscribe
from support.faults.ledger import Ledger
from support.reading import SOON, eventually

COUNT = 30

#: The longest delay that the namespace allows, in seconds.
LIMIT = 60

#: What no broker takes.
REFUSED = {
    "delays above the namespace's limit": {"delay": LIMIT + 1},
    "properties of 6 MiB": {"delay": DELAY, "properties": {"large": "x" * (6 << 20)}},
}


@pytest.fixture
def held(stage, tmp_path):
    """Give the account of another consumer of the same client, which holds what it has received."""
    topic, ledger = f"{stage.topic}-held", Ledger(tmp_path / "held")
    publish(stage.client, topic, ledger, COUNT)
    consumer = subscribe(stage.client, topic)
    messages = [consumer.receive(SOON) for _ in range(COUNT)]
    ledger.enter_all("delivered", messages)

    def account():
        # What would come again comes before what is published now.
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
    """One of three letters is refused; those under way just then, and the neighbour, go on."""
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
        "the caller is told within a second or so; their originals come again, other letters go on",
        account,
        bound=0,
    )
    others = held()
    assert others.deliveries == others.sent
    fault.survived(
        f"letters with {refused}, another consumer of the same client", "none", others, bound=0
    )


def test_a_pattern_that_matches_the_dead_letter_topic(stage, fault):
    """The subscription does not take its own letters for input, also after restarts."""
    for _ in range(2):
        publish(stage.client, stage.topic, stage.ledger, COUNT)
        fault.is_over()
        with stage.working(by_pattern):
            pass
    assert len(stage.admin.topics(stage.namespace)) == 2
    fault.survived(
        "a pattern that matches the dead-letter topic, subscribed again",
        "dead letters are left out",
        stage.account(),
        bound=0,
    )


def by_pattern(client, topic, ledger, go_on):
    """Nack what a pattern matches, which is looked at every second."""
    nack(client, re.compile(f"{topic}.*"), ledger, go_on, pattern_auto_discovery_period=1)
