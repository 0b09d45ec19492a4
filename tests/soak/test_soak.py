"""Faults at random, for any time: no message is lost, and every message ends.

The schedule comes from a seed. The same seed repeats the same faults in the same order, after the
same messages. How far the consumers are at each fault differs from run to run.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import attrs
import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.standalone import Standalone
from support.brokers.proxy import Proxy
from support.faults.balancing import Stage
from support.faults.crashing import STEPS, crash
from support.faults.handing import WAYS, manage, publish, retry_many
from support.faults.ledger import Ledger
from support.faults.schedule import schedule
from support.reading import retry_topic

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: After how many steps the state of the consumers is printed.
OFTEN = 10


class Mischief:
    """Causes the faults of the schedule."""

    def __init__(self, broker: Standalone, proxy: Proxy, stage: Stage) -> None:
        self._broker = broker
        self._proxy = proxy
        self._stage = stage

    def __call__(self, step) -> None:
        """Cause the fault of *step*, and end it."""
        proxy, admin, topic = self._proxy, self._stage.admin, self._stage.topic
        {
            "kill a consumer": lambda: self._kill(step),
            "unload the topic": lambda: admin.unload(topic),
            "unload the retry topic": lambda: admin.unload(retry_topic(topic)),
            "cut": proxy.cut,
            "reset": proxy.reset,
            "stall": lambda: self._for_a_while(step, proxy.stall),
            "no data to client": lambda: self._send_nothing_to_clients(step),
            "slow": lambda: self._for_a_while(step, lambda: setattr(proxy, "delay", 0.1)),
            "refuse": lambda: self._for_a_while(step, lambda: proxy.cut(refuse=True)),
            "fence": lambda: self._fence(step),
            "kill the broker": lambda: (self._broker.kill(), self._broker.start()),
            "restart the broker": self._broker.restart,
        }[step.fault]()
        proxy.mend()

    @staticmethod
    def _for_a_while(step, begin) -> None:
        begin()
        time.sleep(step.lasts)

    def _send_nothing_to_clients(self, step) -> None:
        self._for_a_while(step, lambda: self._proxy.stall(to_server=False))
        self._proxy.reset()

    def _kill(self, step) -> None:
        """Run one more consumer, which is killed during a hand-off."""
        ways = [way for way in WAYS if way in {"reconsume_later", "subscriber"}]
        way, point = ways[step.choice % 2], STEPS[step.choice // 2 % len(STEPS)]
        done = threading.Event()

        def feed() -> None:
            while not done.wait(0.1):
                publish(self._stage.client, self._stage.topic, self._stage.ledger, 5)

        feeder = threading.Thread(target=feed)
        feeder.start()
        try:
            arguments = (self._stage.url, self._stage.topic, self._stage.ledger)
            assert -9 == crash(*arguments, way, point, 1 + step.choice % 7)
        finally:
            done.set()
            feeder.join()

    def _fence(self, step) -> None:
        fencing = pulsar.ProducerAccessMode.ExclusiveWithFencing
        with suppress(pulsar.PulsarException):
            usurper = self._stage.client.create_producer(
                retry_topic(self._stage.topic), access_mode=fencing
            )
            time.sleep(step.lasts)
            usurper.close()


def say(what) -> None:
    """Print a line at once."""
    print(what, flush=True)


@pytest.mark.timeout(0)
def test_a_soak(own_broker, admin, tmp_path, seed, minutes):
    """A consumer and a subscriber work through a proxy during all faults; no message is lost."""
    topic = f"persistent://public/default/{uuid.uuid4().hex}"
    ledger = Ledger(tmp_path / "ledger")
    url = urlsplit(own_broker.service_url)
    with ExitStack() as stack:
        direct = stack.enter_context(pr.Client(own_broker.service_url, logger=QUIET))
        proxy = stack.enter_context(Proxy(url.hostname, url.port))
        through = stack.enter_context(pr.Client(proxy.url, logger=QUIET))
        admin = attrs.evolve(admin, url=own_broker.admin_url)
        stage = Stage(own_broker.service_url, admin, direct, topic, ledger)
        mischief = Mischief(own_broker, proxy, stage)
        publish(direct, topic, ledger, 1)
        end = time.monotonic() + 60 * minutes
        policy = {"letter_send_timeout": 3}
        with attrs.evolve(stage, client=through).working(retry_many, manage, **policy):
            for step in schedule(seed):
                if time.monotonic() > end:
                    break
                say(step)
                publish(direct, topic, ledger, step.messages)
                time.sleep(step.wait)
                mischief(step)
                if step.number % OFTEN == 0:
                    say(f"     {ledger.account()}, open {len(ledger.open())}")
        account = stage.account()

    say(account)
    assert frozenset() == account.lost
    assert frozenset() == account.strange
