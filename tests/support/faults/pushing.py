"""Dispatchers that push to endpoints, which enter the messages they process in a ledger."""

from __future__ import annotations

import base64
import itertools
import threading
import time
from typing import Any

import pulsar_retry as pr
from support.faults.handing import GoOn, managed
from support.faults.ledger import Ledger
from support.push.receiving import Receiver, Request, Say, no_content
from support.reading import SUBSCRIPTION

#: Seconds that an endpoint takes for a message, and how many messages it gets at a time. So some
#: requests are in progress, and some messages are left, when a fault happens.
_WORK, OUTSTANDING = 0.05, 12

#: Seconds that an endpoint takes for a message while it is slow: less than any deadline.
_SLOW = 5.0


def endpoint(ledger: Ledger, *, until: threading.Event | None = None, some: int = 0) -> Receiver:
    """Return an endpoint that processes and acknowledges messages.

    From request number *some* on it takes seconds for each, until *until* is set.
    """
    requests = itertools.count(1)

    def act(request: Request) -> Say:
        number = int(base64.b64decode(request.data()))
        ledger.enter("delivered", number)
        time.sleep(_WORK)
        if until is not None and next(requests) >= some:
            until.wait(_SLOW)
        ledger.enter("processed", number)
        return no_content(request)

    return Receiver(act)


def push(client: pr.Client, topic: str, ledger: Ledger, go_on: GoOn, **options: Any) -> None:
    """Push every message to an endpoint in this process."""
    with endpoint(ledger) as receiver:
        push_to(client, topic, ledger, go_on, url=receiver.url, **options)


def push_to(
    client: pr.Client, topic: str, _ledger: Ledger, go_on: GoOn, *, url: str, **options: Any
) -> None:
    """Push every message to the endpoint at *url*, which keeps the ledger."""
    options["max_outstanding"] = OUTSTANDING
    with pr.push.Dispatcher(client, topic, SUBSCRIPTION, url, **managed(options)):
        while go_on():
            time.sleep(0.1)
