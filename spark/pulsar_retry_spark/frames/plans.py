"""What Spark's plan of a frame tells, and rows that are kept so that no plan is run again.

On Spark Connect there is no plan to ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark import StorageLevel
from pyspark.sql import DataFrame

#: The frames that were kept within `freeing_kept_rows`; None: not within.
_kept: ContextVar[list[DataFrame] | None] = ContextVar("_kept", default=None)


def is_deterministic(df: DataFrame) -> bool:
    """Tell whether *df* gives the same rows each time, as far as Spark knows.

    It knows `rand()`, `uuid()` and the like, and not what a function of the user's does.
    """
    plan = getattr(df, "_jdf", None)
    return plan is None or bool(plan.queryExecution().analyzed().deterministic())


def hides_metadata(df: DataFrame) -> bool:
    """Tell whether `_metadata` is there without being among the columns.

    The plan is asked, since PySpark logs a query that names what is not there as an error. A cache
    does not hold hidden columns: asking for one would read the files again.
    """
    plan = getattr(df.select("*"), "_jdf", None)  # a new plan knows today's caches
    if plan is None:
        return False
    execution = plan.queryExecution()
    if "_metadata#" not in execution.analyzed().metadataOutput().toString():
        return False
    # A stream has no cache, and refuses the question.
    return df.isStreaming or "InMemoryRelation" not in execution.withCachedData().toString()


def keep_rows(df: DataFrame) -> DataFrame:
    """Run *df* once and return its rows, kept on the executors' disks.

    They are freed when Spark's garbage collection finds that nobody refers to the frame, or at the
    end of `freeing_kept_rows`.
    """
    # On disks alone: in memory it would compete with what the job itself needs and has cached.
    kept = df.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    frames = _kept.get()
    if frames is not None:
        frames.append(kept)
    return kept


@contextmanager
def freeing_kept_rows() -> Iterator[None]:
    """Free what `keep_rows` keeps meanwhile in this thread: a stream would keep more and more."""
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
