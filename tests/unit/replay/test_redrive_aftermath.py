"""What becomes of redriven letters, if that cannot be asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_retry.errors import AdminError, AdminNotFoundError
from pulsar_retry.replay.redriving.aftermath import Aftermath
from pulsar_retry.replay.redriving.report import Became


def aftermath(error: AdminError) -> Aftermath:
    """Return one whose REST API answers with *error*."""

    def refuse(_topic: str) -> Any:
        raise error

    admin: Any = SimpleNamespace(topics=SimpleNamespace(partition_names=refuse))
    client: Any = None
    return Aftermath(admin, client, "job")


def test_a_topic_that_may_not_be_looked_at_stops_no_redrive() -> None:
    """Nothing is counted wrongly: the look fails."""
    it = aftermath(AdminError(403, "stats", "not allowed"))
    it.watch("persistent://public/default/orders-billing-RETRY", "billing")
    with pytest.raises(AdminError, match="not allowed"):
        it.look(3)


def test_a_topic_that_is_not_there_has_no_letters() -> None:
    """So all of them were handled."""
    it = aftermath(AdminNotFoundError(404, "stats", "not found"))
    it.watch("persistent://public/default/orders-billing-DLQ")
    assert Became(handled=3, waiting=0, dead=0) == it.look(3)
