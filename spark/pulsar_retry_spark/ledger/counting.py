"""Count the rows of frames.

The counts are results of Spark's jobs, or what `split` has counted; see `frames.counted`. The
result of a partition is taken from one attempt, whatever happens to the others. Metrics that are
observed in other places would not do: Spark adds up an accumulator once more when a task of a
shuffle runs again, and not at all when a task finds its rows in a cache that an earlier attempt has
filled.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry_spark.frames.counted import REASON, known_rows
from pulsar_retry_spark.frames.plans import rows_of

#: How many reasons are counted one by one; rows with the rarer ones have the reason `OTHER`.
MOST_REASONS = 1000
OTHER = "(other)"


def count_rows(
    frames: Mapping[str, DataFrame], by_reason: str | None = None
) -> dict[str, dict[str, int]]:
    """Return the number of rows of each frame, by reason, the largest number first.

    At most `MOST_REASONS` reasons are told apart, in case each row has one of its own.

    Args:
        frames: The frames, by names of the caller's.
        by_reason: The name of the frame whose rows are counted by their column `reason`, if it has
            one. All rows of the others have the reason "", and so have rows whose reason is null.
    """
    counts: dict[str, dict[str, int]] = {name: {} for name in frames}
    none = F.lit("")
    parts = []
    for name, frame in frames.items():
        named = name == by_reason and REASON in frame.columns
        if (known := known_rows(frame, by_reason=named)) is not None:
            counts[name] = dict(sorted(known.items(), key=lambda each: (-each[1], each[0])))
            continue
        if not named and (number := rows_of(frame)) is not None:
            counts[name] = {"": number} if number else {}
            continue
        reason = F.coalesce(frame[REASON].cast("string"), none) if named else none
        parts.append(frame.select(F.lit(name).alias("name"), reason.alias(REASON)))
    if not parts:
        return counts
    rows = functools.reduce(lambda one, other: one.union(other), parts).groupBy("name", REASON)
    # Without `coalesce`, each partition of the shuffle, often 200, would be a task.
    found = rows.agg(F.count(F.lit(1)).alias("rows")).coalesce(1)
    # Ranking the reasons would take longer than counting them, so it is left to the rare case.
    lines = found.limit(MOST_REASONS + len(parts)).collect()
    if sum(row["name"] == by_reason for row in lines) > MOST_REASONS:
        by_rows = Window.partitionBy("name").orderBy(F.desc("rows"), REASON)
        ranked = found.withColumn("rank", F.row_number().over(by_rows))
        told = F.when(F.col("rank") <= MOST_REASONS, F.col(REASON)).otherwise(OTHER)
        lines = (
            ranked.groupBy("name", told.alias(REASON)).agg(F.sum("rows").alias("rows")).collect()
        )
    for row in sorted(lines, key=lambda each: (-each["rows"], each[REASON])):
        counts[row["name"]][row[REASON]] = row["rows"]
    return counts


def numbers_of(
    *,
    rows_in: DataFrame | int | None,
    good: DataFrame | int | None,
    dropped: DataFrame | int,
    failed: DataFrame | None = None,
) -> tuple[dict[str, Any], int | None]:
    """Return numbers for a record, and that of the *failed* rows; None for what is None.

    Frames are counted; numbers are taken as they are.
    """
    given = {"rows_in": rows_in, "good": good, "dropped": dropped, "failed": failed}
    frames = {name: each for name, each in given.items() if not isinstance(each, int | None)}
    counts = count_rows(frames, by_reason="dropped")
    numbers: dict[str, Any] = {
        name: sum(counts[name].values()) if name in counts else given[name] for name in given
    }
    if "dropped" in counts:
        numbers["dropped"] = counts["dropped"]
    else:
        numbers["dropped"] = {"": dropped} if dropped else {}
    return numbers, numbers.pop("failed")
