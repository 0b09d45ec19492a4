"""Questions about Spark's plan of a frame, and rows that are kept so that no plan runs again.

On Spark Connect, there is no plan to ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark import StorageLevel
from pyspark.sql import DataFrame

#: The frames that were kept inside `freeing_kept_rows`; None outside of it.
_kept: ContextVar[list[DataFrame] | None] = ContextVar("_kept", default=None)


def is_deterministic(df: DataFrame) -> bool:
    """Return whether *df* gives the same rows each time, as far as Spark knows.

    Spark knows `rand()`, `uuid()` and the like, but not what a user's function does.
    """
    plan = getattr(df, "_jdf", None)
    return plan is None or bool(plan.queryExecution().analyzed().deterministic())


def hides_metadata(df: DataFrame) -> bool:
    """Return whether `_metadata` exists, but is not among the columns.

    This reads the plan, because PySpark logs an error if a query names a column that does not
    exist. A cache does not hold hidden columns: a query for one would read the files again.
    """
    plan = getattr(df.select("*"), "_jdf", None)  # a new plan uses the present caches
    if plan is None:
        return False
    execution = plan.queryExecution()
    if "_metadata#" not in execution.analyzed().metadataOutput().toString():
        return False
    # A stream has no cache, and raises if it is asked for one.
    return df.isStreaming or "InMemoryRelation" not in execution.withCachedData().toString()


def keep_rows(df: DataFrame) -> DataFrame:
    """Run *df* once, and return its rows, which are kept on the executors' disks.

    They are freed when Spark's garbage collection finds no reference to the frame, or at the end of
    `freeing_kept_rows`.
    """
    # On disks only: in memory, the rows would compete with the job's own data and caches.
    kept = df.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    frames = _kept.get()
    if frames is not None:
        frames.append(kept)
    return kept


@contextmanager
def freeing_kept_rows() -> Iterator[None]:
    """At the end of this block, free the rows that `keep_rows` has kept in this thread.

    Otherwise a stream would keep more and more of them.
    """
    frames: list[DataFrame] = []
    token = _kept.set(frames)
    try:
        yield
    finally:
        _kept.reset(token)
        for frame in frames:
            plan = getattr(frame, "_jdf", None)
            if plan is not None:  # Spark Connect's server frees them when Python has no such frame
                plan.queryExecution().logical().rdd().unpersist(False)  # noqa: FBT003 - Java's: it does not wait
