"""Quarantine: messages that kill whoever handles them. Pure, but for the store of claims."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.checks import whole
from pulsar_retry.policy.keywords import keywords_only
from pulsar_retry.wire.properties import FAILURE_CRASHES, count_of

#: The reason of a dead letter that was never given to a handler again.
CRASH_LOOP = "crash-loop"


class ClaimStore(Protocol):
    """Remembers which messages are being handled, beyond the life of the process.

    Its methods are called around every handling, by several threads.
    """

    def claim(self, message: str) -> int:
        """Note that *message* is about to be handled; return the claims that were never settled.

        Args:
            message: What tells it from others, the same for its letters:
                ``topic ledger:entry:partition[:batch]``, as it was first published.
        """
        ...

    def settle(self, message: str) -> None:
        """Forget the claims of *message*: its handler has come to an end, whatever it was."""
        ...


class FileClaims:
    """Claims as small files in a folder, which the processes of one machine share. Thread-safe.

    A claim is a byte that is appended to the message's file: what a killed process leaves behind.

    Args:
        folder: The folder; it is made where there is none.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def claim(self, message: str) -> int:
        """Append a claim and return how many there were."""
        with self._path(message).open("ab") as file:
            file.write(b".")
            file.flush()
            return file.tell() - 1

    def settle(self, message: str) -> None:
        """Remove the message's file."""
        with contextlib.suppress(FileNotFoundError):
            self._path(message).unlink()

    def _path(self, message: str) -> Path:
        digest = hashlib.blake2b(message.encode("utf-8", "surrogatepass"), digest_size=16)
        return self._folder / digest.hexdigest()


def crashes_of(properties: Mapping[str, str]) -> int:
    """Return how many worker processes a message has killed, as its letter says."""
    return count_of(properties.get(FAILURE_CRASHES)) or 0


def _max_crashes(value: Any) -> int:
    return whole("max_crashes", value)


def _max_redeliveries(value: Any) -> int | None:
    return None if value is None else whole("max_redeliveries", value)


def _store(value: Any) -> Any:
    wanted = ("claim", "settle")
    if value is not None and not all(callable(getattr(value, name, None)) for name in wanted):
        raise ConfigError.bad("store", value, "a ClaimStore, such as FileClaims(folder), or None")
    return value


@keywords_only
@attrs.frozen(kw_only=True)
class Quarantine:
    """When a message is dead-lettered because it kills what handles it, not because it fails.

    It is not handled again but goes to the dead-letter topic, with the reason ``crash-loop``.

    Attributes:
        max_crashes: So many crashes with the message in hand. Known are the worker processes that
            it killed, which its letters count, and with a *store* the deaths of whole subscriber
            processes: at least two, for at the last of them the message was handled alone. So the
            messages that a process happened to have in hand beside it are not condemned.
        max_redeliveries: So many redeliveries by the broker of one and the same letter or message,
            where retries go by letters; None: they do not matter. Hand-offs that failed are among
            them. Pulsar 4.2 does not count the deaths of consumers here, so with it this does not
            take the place of a store.
        store: Remembers what is being handled.
    """

    max_crashes: int = attrs.field(default=3, converter=_max_crashes)
    max_redeliveries: int | None = attrs.field(default=None, converter=_max_redeliveries)
    store: ClaimStore | None = attrs.field(default=None, converter=_store)

    def holds(self, *, claims: int, worker_crashes: int, redeliveries: int) -> bool:
        """Tell whether a message is to be quarantined.

        Args:
            claims: Its claims that were never settled.
            worker_crashes: How many worker processes it killed.
            redeliveries: The broker's count of its redeliveries.
        """
        if self.max_redeliveries is not None and redeliveries >= self.max_redeliveries:
            return True
        # The last of its claims was made when it was a suspect, and so alone.
        return worker_crashes >= self.max_crashes or claims >= max(2, self.max_crashes)

    def is_suspect(self, claims: int) -> bool:
        """Tell whether one more claim that is never settled would condemn a message.

        Then it is handled alone: when a process dies, each message that it had in hand may be why.
        """
        return claims >= max(1, self.max_crashes - 1)
