"""What `split` knows about numbers of rows, from the job that judges them.

With a ledger, the job that judges the rows also counts them, so that no job has to read them once
more for this. A frame that is made of one of `split` by projections, and by conditions on the
column `reason` alone, is then counted without a job: from Spark's plan of it.

The job's numbers are those of metrics that Spark observes. Spark adds them up once for each
partition of a job's last stage, also if tasks run again or twice. They are of the rows that are
kept, unless an executor was lost while they were kept: Spark then judges its rows again, in a
second job. If there was a second job, nothing is known.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry_spark.errors import first_line
from pulsar_retry_spark.session import spark_context

#: The column of failed and dropped rows that says why.
REASON = "reason"

#: How many reasons are counted while the rows are judged: each costs some time for each row.
MOST_KNOWN = 20

#: The nodes of a plan that return each row that they are given.
_KEEPING_ALL = frozenset({"Project", "Repartition", "RepartitionByExpression", "Sort"})

_log = logging.getLogger("pulsar_retry.spark")


@attrs.frozen(eq=False)
class Counted:
    """A frame whose rows are counted.

    Attributes:
        plan: Spark's plan of it.
        rows: The number of rows.
        reasons: The number of rows for each reason; None if they are not known, or if the frame has
            no reasons.
    """

    plan: Any
    rows: int
    reasons: dict[str, int] | None = None


#: The frames that were counted inside `counting_judged_rows`; None outside of it.
_counted: ContextVar[list[Counted] | None] = ContextVar("_counted", default=None)


@contextmanager
def counting_judged_rows() -> Iterator[None]:
    """Let `split` count the rows that it judges in this block, in this thread."""
    token = _counted.set([])
    try:
        yield
    finally:
        _counted.reset(token)


def is_counting() -> bool:
    """Return whether rows that are judged are to be counted."""
    return _counted.get() is not None


@attrs.frozen
class Judged:
    """The numbers of rows that were judged."""

    rows: int
    good: int
    failed: int
    reasons: dict[str, int]


def count_judged(
    kept: DataFrame, good: Column, failed: Column, reason: Column, reasons: Sequence[str]
) -> Judged | None:
    """Run the job that fills *kept*, a lazy checkpoint, and count its rows.

    Args:
        kept: The checkpoint.
        good: The condition for a good row.
        failed: The condition for a failed row.
        reason: The reason of a failed row.
        reasons: The reasons to count one by one.

    Returns:
        The numbers; None if Spark may have judged rows twice, or does not tell. The rows are kept
        either way.
    """
    name = uuid.uuid4().hex
    metrics = [F.count(F.lit(1)), F.count_if(good), F.count_if(failed)]
    metrics += [F.count_if(failed & (reason == each)) for each in reasons]
    named = [each.alias(str(number)) for number, each in enumerate(metrics)]
    plan: Any = kept.observe(name, *named).select()._jdf.queryExecution()  # noqa: SLF001 - no other way
    before = _jobs(kept)
    plan.toRdd().count()
    after = _jobs(kept)
    if before is None or after != before + 1:  # or another thread has run a job
        return None
    try:
        rows, are_good, are_failed, *each = _observed(plan, name, len(metrics))
    except Exception as error:  # noqa: BLE001 - a Spark that is changed inside: a job counts them
        _log.debug("%s", first_line(error))
        return None
    return Judged(rows, are_good, are_failed, dict(zip(reasons, each, strict=True)))


def _observed(plan: Any, name: str, count: int) -> list[int]:
    """Return the *count* metrics that a plan has observed under a name."""
    found = plan.observedMetrics().apply(name)
    return [found.getLong(number) for number in range(count)]


def _jobs(df: DataFrame) -> int | None:
    """Return how many jobs Spark has begun; None if this Spark does not tell."""
    context = spark_context(df.sparkSession)
    try:
        return int(context._jsc.sc().dagScheduler().numTotalJobs())  # noqa: SLF001 - no other way
    except Exception as error:  # noqa: BLE001 - a Spark that is changed inside
        _log.debug("%s", first_line(error))
        return None


def remember(judged: Judged, df: DataFrame, good: DataFrame, failed: DataFrame) -> None:
    """Note the numbers of the frame that is given to `split`, and of the two that it returns."""
    counted = _counted.get()
    assert counted is not None  # noqa: S101 - the caller has looked
    reasons = {reason: rows for reason, rows in judged.reasons.items() if rows}
    known = sum(reasons.values()) == judged.failed
    counted += [
        Counted(_plan(df), judged.rows),
        Counted(_plan(good), judged.good),
        Counted(_plan(failed), judged.failed, reasons if known else None),
    ]


def known_rows(df: DataFrame, *, by_reason: bool = False) -> dict[str, int] | None:
    """Return the number of rows of *df*, if it is known without a job; otherwise None.

    Args:
        df: The frame.
        by_reason: Whether to tell its rows apart by its column `reason`; otherwise all of them have
            the reason "".
    """
    counted = _counted.get()
    if not counted or not hasattr(df, "_jdf"):
        return None
    try:
        return _known_rows(df, counted, by_reason=by_reason)
    except Exception as error:  # noqa: BLE001 - a Spark whose plans are others: it counts the rows
        _log.debug("the rows of a frame are counted by a job: %s", first_line(error))
        return None


def _known_rows(df: DataFrame, counted: list[Counted], *, by_reason: bool) -> dict[str, int] | None:
    plan: Any = _plan(df)
    conditions: list[Any] = []
    while True:
        for each in counted:
            if plan.fastEquals(each.plan):
                return _select(df, each, conditions, by_reason=by_reason)
        kind = plan.nodeName()
        if kind == "Filter":
            conditions.append(plan.condition())
        elif kind not in _KEEPING_ALL:
            return None
        plan = plan.child()


def _select(
    df: DataFrame, counted: Counted, conditions: list[Any], *, by_reason: bool
) -> dict[str, int] | None:
    """Return the rows of *df*, which selects rows of *counted* by *conditions*."""
    if not (conditions or by_reason):
        return {"": counted.rows} if counted.rows else {}
    reason = _column(counted.plan, REASON)
    if counted.reasons is None or (by_reason and _column(_plan(df), REASON) != reason):
        return None
    for each in conditions:
        used = each.references()
        if not each.deterministic() or used.size() != 1 or _named(used.head()) != reason:
            return None
    jvm: Any = df.sparkSession._jvm  # noqa: SLF001 - no other way
    holds = [_predicate(each, counted.plan, jvm) for each in conditions]
    found = {
        each: rows for each, rows in counted.reasons.items() if all(hold(each) for hold in holds)
    }
    rows = sum(found.values())
    return found if by_reason else {"": rows} if rows else {}


def _plan(df: DataFrame) -> Any:
    return df._jdf.queryExecution().analyzed()  # noqa: SLF001 - no other way


def _named(column: Any) -> tuple[str, str]:
    """Return the name of a column, and what Spark tells columns of one name apart by."""
    return column.name(), column.exprId().toString()


def _columns(plan: Any) -> list[tuple[str, str]]:
    columns = plan.output()
    return [_named(columns.apply(number)) for number in range(columns.size())]


def _column(plan: Any, name: str) -> tuple[str, str] | None:
    """Return a column of a plan; None if there are none or several of this name."""
    found = [each for each in _columns(plan) if each[0] == name]
    return found[0] if len(found) == 1 else None


def _predicate(condition: Any, plan: Any, jvm: Any) -> Callable[[str], bool]:
    """Return a function that evaluates a condition on the column `reason` of a plan."""
    columns, at = plan.output(), [name for name, _ in _columns(plan)].index(REASON)
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    # Not as a predicate that Spark compiles: py4j mistakes the class of one for that of another.
    numbered = _object(expressions, "package$").AttributeSeq(columns)
    bound = _object(expressions, "BindReferences$").bindReference(condition, numbered, False)  # noqa: FBT003 - Java's: no column is missing
    row = expressions.GenericInternalRow(columns.size())

    def holds(reason: str) -> bool:
        row.update(at, jvm.org.apache.spark.unsafe.types.UTF8String.fromString(reason))
        return bool(bound.eval(row))

    return holds


def _object(package: Any, name: str) -> Any:
    """Return an object of Scala."""
    return getattr(getattr(package, name), "MODULE$")
