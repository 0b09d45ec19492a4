"""What a consumer tells of messages: to hooks, and to the counters."""

from __future__ import annotations

from typing import Any, NamedTuple

import _pulsar
import attrs
import pytest

import pulsar_retry as pr
from pulsar_retry.letters.letter import Letter
from pulsar_retry.observe.counting import Counters
from pulsar_retry.observe.watch import Watch
from pulsar_retry.wire.owner import Recipient

ORDERS = "persistent://public/default/orders"
RECIPIENT = Recipient.of((ORDERS,), "billing", None)
RETRY = Letter(f"{ORDERS}-billing-RETRY", {}, delay=5.0, attempt=2)
DEAD = Letter(f"{ORDERS}-billing-DLQ", {}, dead=True, reason="invalid", error=ValueError("no"))


class HandOver(NamedTuple):
    """A message and its letter."""

    raw: Any
    letter: Letter


def raw(**properties: str) -> Any:
    """Return a raw message with these properties."""
    builder = _pulsar.MessageBuilder()
    builder.content(b"the payload")
    builder.properties(properties)
    return builder.build()


class Told:
    """Collects events, by the hook."""

    def __init__(self) -> None:
        self.events: list[tuple[str, pr.SettleEvent]] = []
        self.hooks = pr.Hooks(
            on_retry=lambda event: self.events.append(("retry", event)),
            on_dead_letter=lambda event: self.events.append(("dead letter", event)),
            on_settle_failed=lambda event: self.events.append(("failed", event)),
        )
        self.counters = Counters(ORDERS, "billing")
        self.watch = Watch(self.counters, RECIPIENT, self.hooks)


@pytest.fixture
def told() -> Told:
    """Give a watch with every hook."""
    return Told()


def test_a_nack(told: Told) -> None:
    """Of a message or of an id."""
    told.watch.retried(raw(), "nack", 60.0)
    told.watch.retried(_pulsar.MessageId.earliest, "nack", 1.0)
    assert [("nack", 60.0), ("nack", 1.0)] == [(e.kind, e.delay) for _, e in told.events]
    assert {"nacked": 2} == told.counters.counts("deliveries")
    assert {"nack": 2} == told.counters.counts("retries")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pr.LetterPublishError("retry", ValueError()), "LetterPublishError"),
        (pr.AcknowledgeError("no"), "AcknowledgeError"),
        (OSError("a text that is no label"), "other"),
    ],
)
def test_a_failed_settlement(told: Told, error: Exception, kind: str) -> None:
    """By the error's type, and by that of few only."""
    told.watch.failed(HandOver(raw(), RETRY), error)
    assert [("failed", error)] == [(hook, event.error) for hook, event in told.events]
    assert {kind: 1} == told.counters.counts("settle_failures")


def test_a_hook_that_raises_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """For each kind of its errors; whoever settles a message never notices."""
    errors = [ValueError("a"), ValueError("b"), SystemExit(), TypeError("c")]

    def hook(_event: pr.SettleEvent) -> None:
        raise errors.pop(0)

    watch = Watch(Counters(ORDERS, "billing"), RECIPIENT, pr.Hooks(on_retry=hook))
    for _ in range(4):
        watch.handed_on([HandOver(raw(), RETRY)])
    assert [] == errors
    assert 3 == len(caplog.records)
    assert all("on_retry" in each.getMessage() for each in caplog.records)


def test_a_span_that_cannot_be_ended(told: Told, caplog: pytest.LogCaptureFixture) -> None:
    """A span processor may raise: this is logged once, and hooks are called nevertheless."""

    def end_span(*_: Any) -> None:
        raise RuntimeError

    traced = HandOver(raw(), attrs.evolve(RETRY, trace=end_span))
    told.watch.handed_on([traced, HandOver(raw(), RETRY)])
    told.watch.failed(traced, pr.AcknowledgeError("no"))
    assert ["retry", "retry", "failed"] == [hook for hook, _ in told.events]
    assert {"letter": 2} == told.counters.counts("retries")
    assert ["the end of a span"] == [each.args[0] for each in caplog.records]


def test_properties_that_are_no_text_do_no_harm(told: Told) -> None:
    """Java may have put bytes there."""

    class Bytes:
        def __getattr__(self, name: str) -> Any:
            return getattr(message, name)

        def properties(self) -> dict[str, str]:
            return {"": b"\xff".decode()}

    message = raw()
    told.watch.handed_on([HandOver(Bytes(), DEAD)])
    assert ["dead letter"] == [hook for hook, _ in told.events]


@pytest.mark.parametrize("value", [1, "log", [print]])
def test_a_hook_is_a_function(value: Any) -> None:
    """Before anything is opened."""
    with pytest.raises(pr.ConfigError, match=r"on_retry=.*a function of one SettleEvent"):
        pr.Hooks(on_retry=value)


def test_hooks_are_hooks() -> None:
    """Wherever one subscribes."""
    client = pr.Client("pulsar://localhost:1")
    try:
        with pytest.raises(pr.ConfigError, match=r"hooks=.*pulsar_retry\.Hooks"):
            client.subscribe("orders", "billing", hooks=print)  # type: ignore[arg-type]
        with pytest.raises(pr.ConfigError, match=r"hooks=.*pulsar_retry\.Hooks"):
            client.subscriber("orders", "billing", print, hooks=print)  # type: ignore[arg-type]
    finally:
        client.close()
