"""Quarantine: for messages that end the process which handles them. Pure, except for the store."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from pulsar_retry.errors import ConfigError, WorkerCrashedError
from pulsar_retry.letters.facts import facts_of
from pulsar_retry.policy.checks import keywords_only, whole
from pulsar_retry.policy.outcomes import Reject
from pulsar_retry.pull.rules.claims import Record, TopicClaims
from pulsar_retry.wire.properties import FAILURE_CLAIMS, FAILURE_CRASHES, count_of

#: The reason of a dead letter whose message is in quarantine.
CRASH_LOOP = "crash-loop"


class ClaimStore(Protocol):
    """Remembers which messages are being handled, also after the process has ended.

    A subscriber calls its methods around every handling, from several threads.
    """

    def claim(self, message: str) -> int:
        """Note that *message* is about to be handled; return how many claims were not settled.

        Args:
            message: The identity of the message, which all of its letters share: ``topic
                ledger:entry:partition[:batch]``, as it was first published.
        """
        ...

    def settle(self, message: str) -> None:
        """Forget the claims of *message*: its handler has ended, with or without an error."""
        ...


class FileClaims:
    """Claims as small files in a folder that the processes of one machine share. Thread-safe.

    Each claim appends one byte to the file of the message. The bytes stay when the process is
    killed.

    Args:
        folder: The folder. It is created if it does not exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def claim(self, message: str) -> int:
        """Append a claim, and return how many there were before."""
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


class CrashLoop(Reject):
    """The message is in quarantine.

    Attributes:
        evidence: What its dead letter says about the crashes.
        forget: Forgets the crashes, when its dead letter is stored.
    """

    def __init__(
        self, message: str = "", claims: Sequence[Record] = (), *, crashes: int = 0
    ) -> None:
        """Make the outcome; *claims* are those of dead processes for *message*.

        Without them, *crashes* is how many processes have died; 0: that is not known.
        """
        super().__init__(CRASH_LOOP)
        self.forget: Callable[[], object] = lambda: None
        self.evidence = {FAILURE_CRASHES: str(crashes)} if crashes else {}
        if claims:
            found = [each.evidence(message) for each in claims]
            self.evidence = {FAILURE_CRASHES: str(len(claims)), FAILURE_CLAIMS: json.dumps(found)}


def crashes_of(properties: Mapping[str, str]) -> int:
    """Return how many worker processes a message has killed, as its letter says."""
    return count_of(properties.get(FAILURE_CRASHES)) or 0


def worker_crashes_of(message: Any) -> int:
    """Return how many worker processes a message has killed, with those since its delivery."""
    facts = facts_of(message)
    return crashes_of(facts.properties) + facts.crashes


def note_crash(message: Any, cause: BaseException | None) -> None:
    """Note that a message that stays in its lane has killed a worker process, if it has."""
    facts_of(message).crashes += isinstance(cause, WorkerCrashedError)


def one_more_crash(properties: Mapping[str, str], cause: BaseException | None) -> dict[str, str]:
    """Return what a letter records about a worker process that its message has killed, if any."""
    if not isinstance(cause, WorkerCrashedError):
        return {}
    return {FAILURE_CRASHES: str(crashes_of(properties) + 1)}


def _max_crashes(value: int) -> int:
    return whole("max_crashes", value)


def _max_redeliveries(value: int | None) -> int | None:
    return None if value is None else whole("max_redeliveries", value)


def _store(value: ClaimStore | TopicClaims | None) -> ClaimStore | TopicClaims | None:
    wanted = ("claim", "settle")
    if isinstance(value, TopicClaims):
        return value
    if value is not None and not all(callable(getattr(value, name, None)) for name in wanted):
        raise ConfigError.bad(
            "store", value, "a ClaimStore, such as TopicClaims() or FileClaims(folder), or None"
        )
    return value


@keywords_only
@attrs.frozen(kw_only=True)
class Quarantine:
    """When a message is dead-lettered because it ends the process that handles it.

    Such a message is not handled again. It goes to the dead-letter topic, with the reason
    ``crash-loop``.

    Attributes:
        max_crashes: How many crashes with the message in hand put it into quarantine. Two kinds are
            known. The letters of a message count the worker processes that it has killed. A *store*
            counts the deaths of whole subscriber processes; at least two of these are needed,
            because before the last one the message was handled alone. So messages that a process
            only happened to have in hand at its death are not affected.
        max_redeliveries: How many redeliveries of one message or letter by the broker put it into
            quarantine, if retries use letters. Failed hand-offs are counted too. None ignores
            redeliveries. Pulsar 4.2 does not count the deaths of consumers as redeliveries, so this
            does not replace a store.
        store: Remembers which messages are being handled: `FileClaims` for the processes of one
            machine, `TopicClaims` for those of a cluster.
    """

    max_crashes: int = attrs.field(default=3, converter=_max_crashes)
    max_redeliveries: int | None = attrs.field(default=None, converter=_max_redeliveries)
    store: ClaimStore | TopicClaims | None = attrs.field(default=None, converter=_store)

    def holds(self, *, claims: int, worker_crashes: int, redeliveries: int) -> bool:
        """Tell whether a message is to be put into quarantine.

        Args:
            claims: How many of its claims were not settled.
            worker_crashes: How many worker processes it has killed.
            redeliveries: The broker's count of its redeliveries.
        """
        if self.max_redeliveries is not None and redeliveries >= self.max_redeliveries:
            return True
        # With its last claim the message was a suspect, and so it was handled alone.
        return worker_crashes >= self.max_crashes or claims >= max(2, self.max_crashes)

    def is_suspect(self, claims: int) -> bool:
        """Tell whether one more unsettled claim would put the message into quarantine.

        A suspect is handled alone, because each message in hand may be the cause of the death of a
        process.
        """
        return claims >= max(1, self.max_crashes - 1)
