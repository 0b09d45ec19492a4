"""What ends a dispatcher, and how those who run it are told."""

from __future__ import annotations

import pytest

import pulsar_retry as pr
from support.push.receiving import SOON, answer
from support.reading import SUBSCRIPTION
from support.waiting import eventually


def test_with_raises_what_nobody_was_told(client, topic, publish, receiver):
    """At the end of a block that knows nothing of it; not twice, and not instead of its error."""
    receiver.act = lambda _request: answer(500)
    publish()
    policy = pr.RetryPolicy(stop_on=pr.push.PushNacked)

    def ended() -> pr.push.Dispatcher:
        return pr.push.Dispatcher(client, topic, SUBSCRIPTION, receiver.url, retry_policy=policy)

    with pytest.raises(pr.push.PushNacked), ended() as dispatcher:
        eventually(lambda: not dispatcher.running)
    with ended() as dispatcher, pytest.raises(pr.push.PushNacked):
        dispatcher.result(SOON)
    with pytest.raises(RuntimeError, match="the block's"), ended() as dispatcher:
        eventually(lambda: not dispatcher.running)
        raise RuntimeError("the block's")
