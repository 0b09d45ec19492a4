"""Requests about namespaces."""

from __future__ import annotations

import re
from typing import Any

import attrs

from pulsar_retry.admin.transport import Transport, quoted
from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import logical

_NAMESPACE = re.compile(r"([^/]+)/([^/]+)")


@attrs.frozen
class Retention:
    """How long messages are kept after every subscription has acknowledged them.

    Attributes:
        minutes: The maximum age; 0: not kept, -1: no limit.
        megabytes: The maximum size; 0: not kept, -1: no limit.
    """

    minutes: int = 0
    megabytes: int = 0

    @classmethod
    def read(cls, facts: Any) -> Retention | None:
        """Read the JSON of the REST API; None if no retention is set."""
        if not facts:
            return None
        return cls(int(facts["retentionTimeInMinutes"]), int(facts["retentionSizeInMB"]))

    @property
    def keeps_nothing(self) -> bool:
        """Whether a message is deleted as soon as every subscription has acknowledged it."""
        return self.minutes == 0 or self.megabytes == 0


class Namespaces:
    """Namespaces, ``tenant/namespace``. Thread-safe. Failed requests raise `AdminError`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def names(self, tenant: str) -> list[str]:
        """Return the namespaces of a tenant, ``tenant/namespace``, sorted."""
        names: list[str] = self._transport.json("GET", f"namespaces/{quoted(tenant)}")
        return sorted(names)

    def topics(self, namespace: str) -> list[str]:
        """Return the full names of the topics, sorted; a partitioned topic is one name.

        It takes two requests for any number of topics. System topics are left out.
        """
        path = f"persistent/{_path_of(namespace)}"
        single: list[str] = self._transport.json("GET", path, includeSystemTopic=False)
        return sorted({logical(each) for each in single} | set(self.partitioned(namespace)))

    def partitioned(self, namespace: str) -> list[str]:
        """Return the full names of the partitioned topics, sorted."""
        path = f"persistent/{_path_of(namespace)}/partitioned"
        names: list[str] = self._transport.json("GET", path, includeSystemTopic=False)
        return sorted(names)

    def retention(self, namespace: str) -> Retention | None:
        """Return the retention that is set on the namespace; None: the broker's default applies."""
        return Retention.read(self.policy(namespace, "retention"))

    def policy(self, namespace: str, name: str) -> Any:
        """Return a policy by its path, such as ``messageTTL``; None if it is not set."""
        return self._transport.json("GET", f"namespaces/{_path_of(namespace)}/{name}")


def _path_of(namespace: str) -> str:
    """Return a namespace as a quoted path.

    Raises:
        ConfigError: *namespace* is not of the form ``tenant/namespace``.
    """
    match = _NAMESPACE.fullmatch(namespace)
    if match is None:
        raise ConfigError.bad("namespace", namespace, "tenant/namespace")
    return quoted(*match.groups())
