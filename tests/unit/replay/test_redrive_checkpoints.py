"""The checkpoint of a redrive, and brokers that cannot store one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pulsar_retry.errors import AdminNotFoundError
from pulsar_retry.replay.redriving.source import Checkpoint, CheckpointStore

CHECKPOINT = Checkpoint("command", "job", {})


class Admin:
    """The REST API of a broker; *missing* is how it answers requests about properties."""

    def __init__(self, missing: str | None = None) -> None:
        self.subscriptions = self
        self._missing = missing
        self._stored: dict[str, str] = {"owner": "billing"}

    def broker_version(self) -> str:
        """Return a version."""
        return "2.9.1"

    def properties(self, _topic: str, _name: str) -> dict[str, str]:
        """Return what is stored."""
        if self._missing is not None:
            raise AdminNotFoundError(404, "persistent/…/properties", self._missing)
        return dict(self._stored)

    def set_properties(self, _topic: str, _name: str, properties: dict[str, str]) -> None:
        """Store."""
        assert self._missing is None
        self._stored = properties


def store(admin: Any) -> CheckpointStore:
    """Return the store of a topic."""
    return CheckpointStore(admin, "persistent://public/default/orders-DLQ", "pulsar-retry")


def test_a_checkpoint_is_kept_beside_the_users_properties() -> None:
    """And deleted at the end."""
    admin = Admin()
    it = store(admin)
    assert it.load() is None
    it.save(CHECKPOINT)
    assert CHECKPOINT == it.load()
    it.save(None)
    assert {"owner": "billing"} == admin.properties("", "")


def test_an_old_broker_cannot_store_it(caplog: pytest.LogCaptureFixture) -> None:
    """The redrive goes on without, and says what that means."""
    it = store(Admin("http://127.0.0.1:8080 answers: Not Found"))
    with caplog.at_level(logging.WARNING, "pulsar_retry"):
        assert it.load() is None
    it.save(CHECKPOINT)
    assert "Pulsar 2.9.1 cannot store the progress of a redrive" in caplog.text


def test_a_subscription_that_is_missing_is_an_error() -> None:
    """It is not taken for an old broker."""
    with pytest.raises(AdminNotFoundError):
        store(Admin("Subscription not found")).load()
