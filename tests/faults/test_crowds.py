"""Consumers that share a name, of which one dies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

from support.faults.crashing import crash
from support.faults.handing import (
    NAME,
    publish,
    retry,
)


def test_one_of_two_consumers_of_one_name_dies(stage, fault):
    """The other consumer receives the messages of the killed one."""
    arguments = (stage.url, stage.topic, stage.ledger, "same name", "receipt", 5)
    with stage.working(retry, consumer_name=NAME), ThreadPoolExecutor(1) as pool:
        dying = pool.submit(crash, *arguments)
        while not wait([dying], timeout=0.2).done:  # no more than the other one can handle
            publish(stage.client, stage.topic, stage.ledger, 10)
        fault.is_over()
        assert -9 == dying.result()

    fault.survived(
        "one of two consumers with the same name killed",
        stage.account(),
        bound=50,
    )
