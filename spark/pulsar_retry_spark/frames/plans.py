"""Questions about Spark's plan of a frame, and rows that are kept so that no plan runs again.

On Spark Connect, there is no plan to ask.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeGuard

from pyspark import StorageLevel
from pyspark.errors import AnalysisException, PySparkNotImplementedError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pulsar_retry.errors import ConfigError

_CAN_CHOOSE = "storageLevel" in inspect.signature(DataFrame.localCheckpoint).parameters

#: The frames that were kept inside `freeing_kept_rows`; None outside of it.
_kept: ContextVar[list[DataFrame] | None] = ContextVar("_kept", default=None)


def is_frame(value: object) -> TypeGuard[DataFrame]:
    """Return whether *value* is a frame. Spark Connect 3.5 has a class of its own for them."""
    return hasattr(value, "mapInArrow")


def check_frame(argument: str, value: object) -> None:
    """Refuse a *value* of *argument* that is not a frame of Spark.

    Raises:
        ConfigError: it is something else, such as a frame of pandas.
    """
    if not is_frame(value):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        accepted = "a DataFrame of Spark, such as spark.createDataFrame returns"
        raise ConfigError(f"{argument} is a {kind}: expected {accepted}")


def needs_all_columns() -> Column:
    """Return a condition that is always true, and for which Spark needs every column of a frame.

    A reader of CSV or JSON parses only the columns that a query needs, and finds no malformed value
    in the others. The condition transforms an array because the optimizer would remove a condition
    on the size of a plain array.
    """
    return F.size(F.transform(F.array(F.struct("*")), lambda row: row)) == 1


@contextmanager
def cached(df: DataFrame) -> Iterator[DataFrame]:
    """Keep *df* in Spark's cache during this block, unless it is there already."""
    level = df.storageLevel
    if level.useMemory or level.useDisk:
        yield df
        return
    rows = df.persist()
    try:
        yield rows
    finally:
        rows.unpersist()


def is_deterministic(df: DataFrame) -> bool:
    """Return whether *df* gives the same rows each time, as far as Spark knows.

    Spark knows `rand()`, `uuid()` and the like, but not what a user's function does.
    """
    plan = getattr(df, "_jdf", None)
    return plan is None or bool(plan.queryExecution().analyzed().deterministic())


def hides_metadata(df: DataFrame) -> bool:
    """Return whether one `_metadata` exists, but is not among the columns.

    This reads the plan, because PySpark logs an error if a query names a column that does not
    exist. A cache does not hold hidden columns: a query for one would read the files again. A join
    may have two of them. Operators such as mapInPandas say that they have one, and fail for it.
    """
    plan = getattr(df.select("*"), "_jdf", None)  # a new plan uses the present caches
    if plan is None or "_metadata" in (each.lower() for each in df.columns):
        return False
    execution = plan.queryExecution()
    if execution.analyzed().metadataOutput().toString().count("_metadata#") != 1:
        return False
    try:
        df.select("_metadata")
    except AnalysisException:
        return False
    # A stream has no cache, and raises if it is asked for one.
    return df.isStreaming or "InMemoryRelation" not in execution.withCachedData().toString()


def keep_rows(df: DataFrame) -> DataFrame:
    """Run *df* once, and return its rows, which are kept on the executors' disks.

    They are freed when Spark's garbage collection finds no reference to the frame, or at the end of
    `freeing_kept_rows`.

    Raises:
        ConfigError: this Spark can't keep rows.
    """
    # On disks only: in memory, the rows would compete with the job's own data and caches. Spark 3.5
    # has no such choice, and keeps in memory what fits there.
    where = {"storageLevel": StorageLevel.DISK_ONLY} if _CAN_CHOOSE else {}
    try:
        kept = df.localCheckpoint(eager=True, **where)
    except PySparkNotImplementedError:
        accepted = "False, because Spark Connect keeps no rows before Spark 4.0"
        raise ConfigError.bad("once", True, accepted) from None
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
                plan.queryExecution().logical().rdd().unpersist(False)
