"""Whose the letter topics of a namespace are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_retry.errors import AdminError, AdminForbiddenError
from pulsar_retry.ops.overview import letter_topics

ROOT = "persistent://public/default"


def admin_of(topics: dict[str, list[str]]) -> Any:
    """Return a client of the REST API of a namespace with *topics* and their subscriptions."""

    def stats(topic: str) -> dict[str, Any]:
        names = topics[topic.removeprefix(f"{ROOT}/")]
        each = {"isDurable": True, "msgBacklog": 1, "consumers": []}
        return {"msgRateIn": 0, "msgRateOut": 0, "subscriptions": dict.fromkeys(names, each)}

    return SimpleNamespace(
        namespaces=SimpleNamespace(topics=lambda _: [f"{ROOT}/{each}" for each in topics]),
        topics=SimpleNamespace(stats=stats),
    )


@pytest.mark.parametrize(
    ("there", "letters", "owner"),
    [
        ({"orders": ["eu-billing"]}, "orders-eu-billing-DLQ", ("orders", "eu-billing")),
        (
            {"orders": ["eu-billing"], "orders-eu": ["x"]},
            "orders-eu-billing-DLQ",
            ("orders", "eu-billing"),
        ),
        (
            {"orders": ["eu-billing"], "orders-eu": ["billing"]},
            "orders-eu-billing-DLQ",
            (None, None),
        ),
        ({"orders": ["x"]}, "orders-billing-RETRY", ("orders", "billing")),
        ({"orders": ["x"], "orders-eu": ["x"]}, "orders-eu-billing-DLQ", (None, None)),
        ({"orders": ["billing"]}, "orders-partition-3-billing-DLQ", ("orders", "billing")),
        ({"orders": ["eu-billing"]}, "eu-billing-dlq", (None, "eu-billing")),
        ({}, "billing-RETRY", (None, "billing")),
        ({"orders-billing-RETRY": ["billing"]}, "orders-billing-DLQ", (None, "billing")),
        ({"eu-billing-RETRY": ["eu-billing"]}, "eu-billing-DLQ", (None, "eu-billing")),
    ],
)
def test_whose_a_letter_topic_is(there, letters, owner) -> None:
    """As a redrive finds it; if no subscription fits, the name tells the likely one."""
    admin = admin_of({**there, letters: ["pulsar-retry"]})
    (found,) = [
        each for each in letter_topics(admin, "public/default") if f"{ROOT}/{letters}" == each.topic
    ]
    topic = found.main_topic and found.main_topic.removeprefix(f"{ROOT}/")
    assert owner == (topic, found.subscription)


def test_a_topic_that_may_not_be_read_hides_no_other() -> None:
    """It is named, if it is a letter topic; the owner of the others is what their names say."""
    topics = {"orders": ["billing"], "orders-billing-DLQ": ["x"], "returns-billing-DLQ": ["x"]}
    admin, told = admin_of(topics), list[str]()
    stats = admin.topics.stats

    def some(topic: str) -> Any:
        if topic.endswith(("/orders", "/returns-billing-DLQ")):
            raise AdminForbiddenError(403, f"{topic}/stats", "no right")
        return stats(topic)

    admin.topics.stats = some
    (found,) = letter_topics(admin, "public/default", left_out=told.append)
    assert (f"{ROOT}/orders-billing-DLQ", None) == (found.topic, found.main_topic)
    (line,) = told
    assert f"{ROOT}/returns-billing-DLQ is left out" in line


def test_a_broken_topic_of_another_name_hides_no_letters() -> None:
    """Its ledger may be lost, for example; it is named."""
    admin, told = admin_of({"orders-billing-DLQ": ["x"], "returns": ["x"]}), list[str]()
    stats = admin.topics.stats

    def some(topic: str) -> Any:
        if topic.endswith("/returns"):
            raise AdminError(500, f"{topic}/stats", "no such ledger")
        return stats(topic)

    admin.topics.stats = some
    (found,) = letter_topics(admin, "public/default", by_letters=True, left_out=told.append)
    assert f"{ROOT}/orders-billing-DLQ" == found.topic
    assert "returns is left out: " in told[0]
