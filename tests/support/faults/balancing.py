"""Workers that run until the broker has every acknowledgement, and the account at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from support.faults.ledger import SOON, Account, Ledger
from support.reading import SUBSCRIPTION, dead_letter_topic, retry_topic
from support.stored import stored
from support.waiting import eventually

Way = Callable[..., None]


@attrs.frozen
class Stage:
    """A topic, its broker, and the ledger of its messages."""

    url: str
    admin: Any
    client: Any
    topic: str
    ledger: Ledger

    @property
    def namespace(self) -> str:
        """The topic's namespace."""
        return self.topic.partition("://")[2].rpartition("/")[0]

    def is_drained(self) -> bool:
        """Return whether nothing is left to deliver, as far as the broker knows.

        A letter is published before its original is acknowledged, so the retry topic is checked
        last.
        """
        try:
            if self.admin.backlog(self.topic, SUBSCRIPTION):
                return False
            retry = retry_topic(self.topic)
            known = self.admin.topics(self.namespace)
            return retry not in known or self.admin.backlog(retry, SUBSCRIPTION) == 0
        except (OSError, KeyError):  # the topic's broker is not back, or nobody has subscribed yet
            return False

    @contextmanager
    def working(self, *ways: Way, **options: Any) -> Iterator[None]:
        """Run each of *ways* on a thread; at its end, wait until every message has ended."""
        enough = threading.Event()
        failures: list[BaseException] = []

        def work(way: Way) -> None:
            try:
                way(self.client, self.topic, self.ledger, lambda: not enough.is_set(), **options)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(way,)) for way in ways]
        for thread in threads:
            thread.start()
        try:
            yield
            eventually(lambda: bool(failures) or self.is_drained())
        finally:
            enough.set()
            for thread in threads:
                thread.join(SOON)
        if failures:
            raise failures[0]
        assert not any(thread.is_alive() for thread in threads), "a worker hangs"

    def finish(self, *ways: Way, **options: Any) -> Account:
        """Work until every message has ended; return the account."""
        with self.working(*ways, **options):
            pass
        return self.account()

    def account(self) -> Account:
        """Enter the dead letters in the ledger, and return the account. Call it only once."""
        dlq = dead_letter_topic(self.topic)
        if dlq in self.admin.topics(self.namespace):
            self.ledger.enter_all("dead", stored(self.url, dlq))
        return self.ledger.account()
