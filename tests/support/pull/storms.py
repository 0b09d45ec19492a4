"""A service that can be overloaded, in virtual time, and what a subscriber makes of an outage."""

from __future__ import annotations

import heapq
import threading
from collections import ChainMap, Counter
from collections.abc import Callable
from typing import Any

import attrs

import pulsar_retry as pr
from pulsar_retry.observe.watch import Watch
from pulsar_retry.testing import MemoryBroker

TOPIC, SUBSCRIPTION = "orders", "billing"

#: A message is dead-lettered soon, compared with the blip.
POLICY = pr.RetryPolicy(max_attempts=5, backoff=pr.Exponential(1, 60))

#: Seconds between two steps of the producer.
STEP = 0.1


class Service:
    """Handles requests in the order of their arrival, *width* at a time.

    It also works on requests whose client has given up, as real services do: that is how an
    overload can last.
    """

    def __init__(self, now: Callable[[], float], *, width: int, seconds: float) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._free_at = [0.0] * width
        self._seconds = seconds

    def request(self) -> float:
        """Take a request; return how many seconds its answer takes."""
        with self._lock:
            now = self._now()
            done = max(now, heapq.heappop(self._free_at)) + self._seconds
            heapq.heappush(self._free_at, done)
            return done - now

    def stall(self, seconds: float) -> None:
        """Answer nothing for *seconds*."""
        with self._lock:
            end = self._now() + seconds
            self._free_at = [max(end, each) for each in self._free_at]


@attrs.frozen
class Told:
    """What a subscriber says about itself."""

    health: pr.Health
    gauges: dict[str, float]


@attrs.define
class Load:
    """What happened in each second.

    Attributes:
        good: Messages that were handled.
        attempts: Calls of the handler.
        retries: Those for a message that was tried before.
        told: What the subscriber said about itself.
        dead: How many dead letters there are at the end.
        left: How many messages wait at the end.
    """

    good: Counter[int] = attrs.Factory(Counter)
    attempts: Counter[int] = attrs.Factory(Counter)
    retries: Counter[int] = attrs.Factory(Counter)
    told: dict[int, Told] = attrs.Factory(dict)
    dead: int = 0
    left: int = 0

    def rate(self, counts: Counter[int], since: float, until: float) -> float:
        """Return the mean of *counts* a second."""
        return sum(counts[second] for second in range(int(since), int(until))) / (until - since)


@attrs.frozen(kw_only=True)
class Rig:
    """A subscriber in front of a service.

    Attributes:
        rate: Messages published a second.
        width: How many requests the service handles at a time.
        seconds: How long it takes for one.
        timeout: Seconds for which a handler waits for an answer.
        concurrency: How many handlers run at a time.
        before: Seconds before the service stalls; *blip*: for how long; *after*: seconds after it.
    """

    rate: int = 140
    width: int = 4
    seconds: float = 0.02
    timeout: float = 1.0
    concurrency: int = 400
    before: float = 5.0
    blip: float = 10.0
    after: float = 40.0

    @property
    def end(self) -> float:
        """How many seconds a run takes."""
        return self.before + self.blip + self.after

    def run(self, **options: Any) -> Load:
        """Run it in virtual time with a subscriber of these *options*; return what happened."""
        broker = MemoryBroker()
        clock, client = broker.clock, broker.client()

        def publish() -> None:
            broker.send(TOPIC, b"order")

        load = self.drive(
            client, TOPIC, publish, clock.monotonic, clock.sleep, clock.advance, **options
        )
        load.dead = len(broker.dead_letters(TOPIC, SUBSCRIPTION))
        load.left = broker.backlog(TOPIC, SUBSCRIPTION)
        client.kill()
        broker.close()
        return load

    def drive(
        self,
        client: pr.Client,
        topic: str,
        publish: Callable[[], object],
        now: Callable[[], float],
        sleep: Callable[[float], None],
        wait: Callable[[float], None],
        **options: Any,
    ) -> Load:
        """Run it on any broker, by any clock.

        Args:
            client: The client.
            topic: The topic.
            publish: Publishes one message.
            now: Returns the time.
            sleep: Lets a handler wait.
            wait: Lets the producer wait.
            options: Those of the subscriber.
        """
        load, lock, start = Load(), threading.Lock(), now()
        service = Service(now, width=self.width, seconds=self.seconds)

        def second() -> int:
            return int(now() - start)

        def handle(message: Any) -> None:
            with lock:
                load.attempts[second()] += 1
                load.retries[second()] += pr.attempt_of(message) > 1
            took = service.request()
            sleep(min(took, self.timeout))
            if took > self.timeout:
                raise TimeoutError("no answer")
            with lock:
                load.good[second()] += 1

        chosen = {"concurrency": self.concurrency, **options}
        subscriber = client.subscriber(topic, SUBSCRIPTION, handle, retry_policy=POLICY, **chosen)
        subscriber.start()
        for step in range(round(self.end / STEP)):
            if step == round(self.before / STEP):
                service.stall(self.blip)
            for _ in range(round(self.rate * STEP)):
                publish()
            wait(max(0.0, start + (step + 1) * STEP - now()))
            gauges = Watch.of(topic, SUBSCRIPTION).counters.gauges()
            load.told[second()] = Told(subscriber.health, dict(ChainMap(*map(dict, gauges))))
        report = subscriber.stop("abandon", 0)
        assert report is not None
        load.dead = report.dead_lettered
        return load
