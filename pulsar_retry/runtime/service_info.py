"""Shares one provider of service information among a client and its client of letters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pulsar

from pulsar_retry.runtime.fork import keep_for_ever


class SharedProvider:
    """Passes the updates of an application's provider to several clients. Thread-safe.

    A provider usually keeps one callback only: the last one that it was given. So it is used as if
    there were one client.
    """

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._latest: Any = None
        self._members: list[_Member] = []
        self._is_open = False
        self._lock = threading.RLock()  # the destructor of a client can interrupt its holder

    def member(self) -> Any:
        """Return a provider for one more client."""
        return _Member(self)

    def close(self) -> None:
        """Close the application's provider, if it is open. Updates then have no effect."""
        with self._lock:
            is_open, self._is_open = self._is_open, False
            self._members.clear()
        if is_open:
            self._provider.close()

    def initial(self) -> Any:
        """Return the present information."""
        with self._lock:
            if self._latest is None:
                self._latest = self._provider.initial_service_info()
            return self._latest

    def join(self, member: _Member) -> None:
        """Pass updates to *member*, beginning with those since it asked for the information."""
        with self._lock:
            self._members.append(member)
            is_first, self._is_open = not self._is_open, True
            if member.known is not self._latest:
                member.update(self._latest)
        if is_first:
            self._provider.initialize(self._update)

    def _update(self, info: Any) -> None:
        with self._lock:
            for each in self._members:
                each.update(info)  # raises at the first one, if this is no service information
            self._latest = info


class _Member(pulsar.ServiceInfoProvider):
    """The provider of one client.

    pulsar-client releases it without the interpreter's lock, and would abort if that was the last
    reference. So it is kept for ever, without what it refers to.
    """

    known: Any
    update: Callable[[Any], None]

    def __init__(self, shared: SharedProvider) -> None:
        self._shared = shared
        keep_for_ever(self)

    def initial_service_info(self) -> Any:
        self.known = self._shared.initial()
        return self.known

    def initialize(self, on_service_info_update: Callable[[Any], None]) -> None:
        self.update = on_service_info_update
        self._shared.join(self)

    def close(self) -> None:
        self._shared.close()  # both clients close together
        self.__dict__.clear()
