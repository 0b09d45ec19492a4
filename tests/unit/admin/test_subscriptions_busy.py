"""What the broker refuses for a moment."""

from __future__ import annotations

import pytest

from pulsar_retry.admin import subscriptions
from pulsar_retry.admin.subscriptions import Subscriptions
from pulsar_retry.errors import AdminError
from pulsar_retry.policy.backoff import Immediate

BUSY = AdminError(500, "p", "MetadataStoreException$BadVersionException: Version mismatch")


class Broker:
    """Refuses what it is told to, as a transport does."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.stored = None

    def json(self, _method, _path, body=None, **_query):
        """Store, or refuse."""
        if self.errors:
            raise self.errors.pop(0)
        self.stored = body


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Let no test wait."""
    monkeypatch.setattr(subscriptions, "_BACKOFF", Immediate())


def test_properties_are_stored_in_the_end():
    """The broker refuses them while it writes down an acknowledgement."""
    broker = Broker(BUSY, BUSY)
    Subscriptions(broker).set_properties("t", "s", {"a": "b"})
    assert {"a": "b"} == broker.stored


@pytest.mark.parametrize("errors", [[BUSY] * 8, [AdminError(500, "p", "disk full")]])
def test_what_stays_refused_is_an_error(errors):
    """After some tries; what is no such refusal, at once."""
    with pytest.raises(AdminError):
        Subscriptions(Broker(*errors)).set_properties("t", "s", {})
