"""Connections between a dispatcher and its endpoint that break, by a proxy before the endpoint."""

from __future__ import annotations

import pytest

import pulsar_retry as pr
from support.brokers.proxy import BREAKS, Proxy
from support.faults.handing import publish
from support.faults.ledger import wait_until
from support.faults.pushing import OUTSTANDING, endpoint, push_to

COUNT = 600

#: Posts after which the fault strikes: answers are under way then.
SOME = 100

#: Seconds for which an answer is awaited: Pub/Sub's shortest.
DEADLINE = 10

#: Seconds for which nothing passes: more than the deadline.
PAUSE = DEADLINE + 2

#: What goes wrong, and what follows.
BROKEN = {
    "cut": ("connections cut", "what was under way is posted again"),
    "refuse": (
        f"connections cut, and refused for {PAUSE} s",
        "nacks, at last one by one, until the endpoint is back",
    ),
    "reset": ("connections reset", "what was under way is posted again"),
    "half-open": (
        f"connections half-open for {PAUSE} s",
        "no answer in time: what was under way is posted again",
    ),
    "deaf": (
        f"no answer comes for {PAUSE} s, then the connections are reset",
        "no answer in time: what the endpoint has processed is posted again",
    ),
    "mute": (
        f"nothing reaches the endpoint for {PAUSE} s, then the connections are reset",
        "no answer in time: what was sent is posted again",
    ),
}

#: How what was not acknowledged comes again: by the broker, or by letters.
AGAIN = {
    "nacks": {},
    "letters": {"retry_policy": pr.RetryPolicy(max_attempts=100, backoff=pr.Fixed(2))},
}


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("broken", BROKEN)
def test_connections_to_the_endpoint_break(stage, fault, broken, again):
    """Requests on their way and answers are lost with them; messages are not."""
    name, effect = BROKEN[broken]
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    with endpoint(stage.ledger) as receiver, Proxy("127.0.0.1", receiver.port) as proxy:
        url = f"http://localhost:{proxy.port}/push"
        with stage.working(push_to, url=url, ack_deadline=DEADLINE, **AGAIN[again]):
            wait_until(lambda: stage.ledger.account().deliveries >= SOME)
            assert stage.ledger.open()
            BREAKS[broken](proxy, PAUSE)
            proxy.mend()
            fault.is_over()
    fault.survived(
        f"push: {name}",
        effect,
        stage.account(),
        bound=2 * OUTSTANDING,
        why=f"answers under way: of {OUTSTANDING} requests, and of some that were tried meanwhile",
    )
