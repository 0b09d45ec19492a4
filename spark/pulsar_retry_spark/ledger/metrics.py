"""The metrics of a ledger, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pulsar_retry.observe.metrics import Spec, family_of
from pulsar_retry_spark.ledger.tallies import BALANCED, BROKEN, UNBALANCED, UNKNOWN, sums_of

_BASE = ("ledger",)

_BATCHES = Spec(
    "spark_batches",
    "counter",
    "Runs of micro-batches and jobs that have ended.",
    "state",
    (BALANCED, UNBALANCED, UNKNOWN, BROKEN),
    base=_BASE,
)
_ROWS_IN = Spec("spark_rows_in", "counter", "Rows of runs that are done.", base=_BASE)
_ROWS = Spec(
    "spark_rows",
    "counter",
    "Where these rows went.",
    "outcome",
    ("good", "retried", "dead_lettered", "dropped"),
    base=_BASE,
)
_DUPLICATES = Spec(
    "spark_duplicates",
    "counter",
    "Retried and dead-lettered rows that the broker had stored before.",
    base=_BASE,
)
_QUARANTINED = Spec(
    "spark_quarantined",
    "counter",
    "Failed rows that were written to a table, whether they were sent as well or not.",
    base=_BASE,
)
_DEAD_LETTERS = Spec(
    "spark_dead_letters", "counter", "Dead-lettered rows, by reason.", "reason", base=_BASE
)
_DROPPED = Spec("spark_dropped", "counter", "Dropped rows, by reason.", "reason", base=_BASE)
_UNACCOUNTED = Spec(
    "spark_unaccounted_rows",
    "gauge",
    "Rows that are not accounted for, in the last run that is done.",
    base=_BASE,
)

#: The metrics of a ledger.
METRICS = (
    _BATCHES,
    _ROWS_IN,
    _ROWS,
    _DUPLICATES,
    _QUARANTINED,
    _DEAD_LETTERS,
    _DROPPED,
    _UNACCOUNTED,
)


def ledger_metrics(path: str) -> Collector:
    """Return a collector of the sums of a ledger; register it with a registry of prometheus_client.

    ::

        prometheus_client.REGISTRY.register(ledger_metrics("/data/ledger"))
        prometheus_client.start_http_server(9000)

    The sums are those of the runs that ended in this process, which is the driver's, since it
    started. On Spark Connect, micro-batches run on the server, so a client sees none of them. The
    collector can be registered before the query starts. It is thread-safe, and reads no file.

    Args:
        path: The `ledger` of `route_batches` or `write_failures`, written in the same way.
    """
    return _Collector(path)


class _Collector(Collector):
    """Lets Prometheus read the sums at each scrape. Thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._sums = sums_of(path)

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without values."""
        return [family_of(spec) for spec in METRICS]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present values."""
        batches, rows, dead_letters, dropped = self._sums.counts()
        rows_in, duplicates = rows.pop("rows_in", 0), rows.pop("duplicates", 0)
        quarantined = rows.pop("quarantined", 0)
        values: list[tuple[Spec, dict[str, int]]] = [
            (_BATCHES, batches),
            (_ROWS_IN, {"": rows_in}),
            (_ROWS, rows),
            (_DUPLICATES, {"": duplicates}),
            (_QUARANTINED, {"": quarantined}),
            (_DEAD_LETTERS, dead_letters),
            (_DROPPED, dropped),
        ]
        unaccounted = self._sums.unaccounted()
        if unaccounted is not None:
            values.append((_UNACCOUNTED, {"": unaccounted}))
        for spec, counts in values:
            family = family_of(spec)
            for value, count in sorted((dict.fromkeys(spec.values, 0) | counts).items()):
                labels = [self._path] if spec.label is None else [self._path, value]
                family.add_metric(labels, count)  # type: ignore[attr-defined]  # of both types
            yield family
