"""The sums of the records of this process, for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter

from pulsar_retry.observe.counting import Tally
from pulsar_retry_spark.ledger.records import DONE, BatchRecord

#: The states of batches: those that are done are balanced, unbalanced, or of unknown balance.
BALANCED, UNBALANCED, UNKNOWN, BROKEN = "balanced", "unbalanced", "unknown", "failed"


class Sums:
    """The sums of all records of one ledger that this process has ended. Thread-safe.

    The rows are those of runs that are done.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._dead_letters, self._dropped = Tally(), Tally()
        self._unaccounted: int | None = None

    def add(self, record: BatchRecord) -> None:
        """Add a record of a run that has ended."""
        with self._lock:
            if record.state != DONE:
                self._batches[BROKEN] += 1
                return
            missing = record.unaccounted
            state = UNKNOWN if missing is None else UNBALANCED if missing else BALANCED
            self._batches[state] += 1
            self._unaccounted = missing
            for name in ("rows_in", "good", "retried", "duplicates", "quarantined"):
                self._rows[name] += getattr(record, name) or 0
            for name, tally in (("dead_lettered", self._dead_letters), ("dropped", self._dropped)):
                for reason, rows in (getattr(record, name) or {}).items():
                    self._rows[name] += rows
                    tally.add(reason, rows)

    def counts(self) -> tuple[dict[str, int], dict[str, int], dict[str, int], dict[str, int]]:
        """Return copies: batches by state, rows by name, dead letters and dropped by reason."""
        with self._lock:
            tallies = (self._dead_letters.counts, self._dropped.counts)
            return dict(self._batches), dict(self._rows), dict(tallies[0]), dict(tallies[1])

    def unaccounted(self) -> int | None:
        """Return the unaccounted rows of the last run that is done; None if they are unknown."""
        with self._lock:
            return self._unaccounted


_sums: dict[str, Sums] = {}
_lock = threading.Lock()


def sums_of(ledger: str) -> Sums:
    """Return the sums for the ledger with this path, which are the same object each time."""
    with _lock:
        return _sums.setdefault(ledger.rstrip("/"), Sums())
