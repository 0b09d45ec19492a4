"""Tells the consumers of this process when a seek moves their subscription.

The broker disconnects the consumers of a moved subscription, and pulsar-client drops what it has
fetched. It does not know about the messages that were taken from it before, so consumers drop them.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.consumer.inbox import Inbox
from pulsar_retry.consumer.settling import MessageSettler
from pulsar_retry.letters.plan import Plan
from pulsar_retry.observe.watch import topic_label
from pulsar_retry.runtime import fork
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.wire.names import logical

#: Seconds to wait for the broker to disconnect a consumer whose subscription was moved.
_DISCONNECT_WAIT = 0.25


class Movable(Protocol):
    """A consumer that can be notified of a seek."""

    def subscription_moved(self) -> None:
        """Drop everything that is held from before the seek."""


class Moves:
    """Notifies consumers of seeks. Thread-safe."""

    _consumers: weakref.WeakKeyDictionary[Movable, tuple[Any, str]]

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all consumers."""
        self._consumers = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def watch(self, consumer: Movable, topic: Any, subscription: str) -> None:
        """Notify *consumer* of seeks of its subscription; *topic* can be a list or a pattern."""
        with self._lock:
            self._consumers[consumer] = (topic, subscription)

    def tell(self, topic: Any, subscription: str, but: Movable | None = None) -> None:
        """Notify the consumers of a subscription that it was moved; skip *but*, which knows.

        A consumer of another cluster with the same names may be notified too; it loses nothing.
        """
        with self._lock:
            known = list(self._consumers.items())
        for consumer, (of, name) in known:
            if consumer is not but and name == subscription and _have_common_topic(of, topic):
                consumer.subscription_moved()


def _have_common_topic(one: Any, other: Any) -> bool:
    """Tell whether two consumers can have a topic in common."""
    if isinstance(one, re.Pattern) or isinstance(other, re.Pattern):
        return True
    return not _names(one).isdisjoint(_names(other))


def _names(topic: Any) -> set[str]:
    topics = [topic] if isinstance(topic, str) else topic
    return {topic_label(logical(each)) for each in topics}


#: The instance of this process. A forked child cannot use the consumers of its parent.
MOVES = Moves()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=MOVES.clear)


class HeldMessages:
    """What one consumer holds, and drops when its subscription is moved. Thread-safe.

    Attributes:
        inboxes: They hold messages that pulsar-client has already handed to this consumer.
        when_moved: Functions to call when this process has moved the subscription.
    """

    def __init__(
        self,
        in_hand: InHand,
        settling: MessageSettler,
        *,
        plan: Plan,
        clock: Clock,
        submit: Callable[[Callable[[], object]], object],
    ) -> None:
        """Watch the seeks of a subscription; *submit* runs calls that can block."""
        self.inboxes: list[Inbox] = []
        self.when_moved: list[Callable[[], None]] = []
        self._in_hand = in_hand
        self._settling = settling
        self._topic, self._subscription = plan.topic, plan.subscription
        self._clock = clock
        self._submit = submit
        MOVES.watch(self, plan.topic, plan.subscription)
        fork.guard(self, "inboxes")

    def seek(self, move: Callable[[], None]) -> None:
        """Move the subscription with *move*, and drop what is from before."""
        messages = self._drop()
        try:
            move()
        except BaseException:
            if messages:
                self._submit(lambda: self._redeliver(messages))
            raise
        self._settling.moved()
        self._in_hand.all_redelivered()
        self._notify()
        MOVES.tell(self._topic, self._subscription, but=self)

    def subscription_moved(self) -> None:
        """Drop messages and nacks: another consumer here has moved the subscription."""
        self._settling.moved()
        self._notify()
        if messages := self._drop():
            self._submit(lambda: self._redeliver(messages))

    def _drop(self) -> list[Any]:
        return [item.message for inbox in self.inboxes for item in inbox.drop(letters=False)]

    def _notify(self) -> None:
        for each in list(self.when_moved):
            each()

    def _redeliver(self, messages: list[Any]) -> None:
        """Have dropped messages redelivered, unless they are certainly from before the seek."""
        # A lost connection shows that the messages are from before the seek. Otherwise they are
        # requested: the broker ignores the ids of messages that it will not deliver.
        if not self._is_disconnected_soon():
            for raw in messages:
                self._in_hand.returns.given_back(raw)
                self._in_hand.nack(raw, letter=False)(0.0)

    def _is_disconnected_soon(self) -> bool:
        """Wait briefly for the connection to end; tell whether it did, for all of the topics."""
        deadline = self._clock.monotonic() + _DISCONNECT_WAIT
        while self._in_hand.main.raw.is_connected():
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(_DISCONNECT_WAIT / 50)
        return isinstance(self._topic, str)
