"""A proxy before an endpoint breaks the connections between the dispatcher and the endpoint."""

from __future__ import annotations

import threading

import pytest

import pulsar_retry as pr
from support.brokers.proxy import BREAKS, Proxy
from support.faults.handing import publish
from support.faults.pushing import OUTSTANDING, endpoint, push_to
from support.waiting import eventually

COUNT = 600

#: The fault happens after this many requests, when some have no answer yet.
SOME = 100

#: The ack deadline in seconds where a connection stalls: the shortest that Pub/Sub allows. Where it
#: breaks, the longest: on a busy machine, an answer may take longer than the shortest.
DEADLINE, LONGEST = 10, 600

#: Seconds for which the proxy passes no data: more than the deadline.
PAUSE = DEADLINE + 2

#: For each fault of the proxy: what goes wrong.
BROKEN = {
    "cut": "connections cut",
    "refuse": f"connections cut, and new connections refused for {PAUSE} s",
    "reset": "connections reset",
    "half-open": f"connections half-open for {PAUSE} s: they stay open, but no data passes",
    "no data to client": f"connections without data from the endpoint for {PAUSE} s, then reset",
    "no data to server": f"connections without data to the endpoint for {PAUSE} s, then reset",
}

#: How a message comes again after a failed request: redelivered by the broker, or as a letter.
AGAIN = {
    "nacks": {},
    "letters": {"retry_policy": pr.RetryPolicy(max_attempts=100, backoff=pr.Fixed(2))},
}


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("broken", BROKEN)
def test_connections_to_the_endpoint_break(stage, fault, broken, again):
    """Requests and answers in transit are lost, but no message is."""
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    deadline = LONGEST if broken in {"cut", "refuse", "reset"} else DEADLINE
    breaks = threading.Event()
    with (
        endpoint(stage.ledger, until=breaks, some=SOME) as receiver,
        Proxy("127.0.0.1", receiver.port) as proxy,
    ):
        url = f"http://localhost:{proxy.port}/push"
        with stage.working(push_to, url=url, ack_deadline=deadline, **AGAIN[again]):
            eventually(lambda: stage.ledger.account().deliveries >= SOME)
            assert stage.ledger.open()
            breaks.set()
            BREAKS[broken](proxy, PAUSE)
            proxy.mend()
            fault.is_over()
    # Doubled are lost answers to requests in progress, and to some that are sent meanwhile.
    fault.survived(f"push: {BROKEN[broken]}", stage.account(), bound=2 * OUTSTANDING)
