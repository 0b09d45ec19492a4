"""Good rows and failed rows: two frames from one, by named rules."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import ArrayType, BooleanType, DataType, StringType, StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.frames.plans import hides_metadata, is_deterministic, keep_rows

#: What Spark raises where the `try_…` function gives null, and its SQLSTATE.
TRY_CONDITIONS = {
    "ARITHMETIC_OVERFLOW": "22003",
    "CANNOT_PARSE_TIMESTAMP": "22007",
    "CAST_INVALID_INPUT": "22018",
    "CAST_OVERFLOW": "22003",
    "CONVERSION_INVALID_INPUT": "22018",
    "DIVIDE_BY_ZERO": "22012",
    "INVALID_VARIANT_CAST": "22023",
    "MALFORMED_RECORD_IN_PARSING": "22023",
}

#: Fields of a struct that name its reason: of `cast_failed`, and of rule engines.
_NAME_FIELDS = ("condition", "name")

#: The column that holds what was found out about a row; null: it is good.
_VERDICT = "__pulsar_retry_verdict"
_WHOLE = "__pulsar_retry_whole"


def split(
    df: DataFrame, rules: Mapping[str, Column | str], *, once: bool = True
) -> tuple[DataFrame, DataFrame]:
    """Split *df* into its good rows and its failed rows. Each row is in exactly one of the two.

    Spark evaluates a frame anew for each use, and a second evaluation may judge a row differently:
    where a rule or column is random, calls a service or asks for the time, where the source has
    changed, or where a reader parses only the columns that a query needs, and so misses what is
    malformed in the others. So this runs one Spark job, which evaluates *df* and the rules once and
    keeps the rows with their verdicts on the executors' disks (a local checkpoint). Both frames
    read those. They are freed when nobody refers to the frames any more. An executor that is lost
    takes its rows with it: the job that needs them fails, and nothing is judged again.

    A stream can't be kept: its frames are lazy, and what is random is refused. Two queries of one
    stream read and judge by themselves; `route_batches` judges each micro-batch once.

    SQL only: no row passes through Python, unless a function of yours asks for it.

    Args:
        df: Any frame, also of a stream.
        rules: By name, what makes a row good: a Column or an SQL expression. Its type decides:

            - boolean: good when true. Null is not true.
            - string: good when null, such as the reader's `_corrupt_record` or `_rescued_data`.
            - struct: good when null, such as of `cast_failed`. Its field `condition` or `name` is
              the reason.
            - array of structs: good when null or empty, such as the `_errors` of a rule engine.
              Each element is a failed rule, by its field `name` or `condition`.
        once: False keeps nothing and runs nothing: for frames that are too large to be kept. Each
            use of a frame evaluates *df* then, with all of its columns, whichever are asked for.
            That rows and rules are the same each time is up to you; a plan with `rand()`, `uuid()`
            and the like is refused.

    Returns:
        The good rows, with the columns of *df*, and the failed rows, with three more:
        `reason` (the first failed rule in the order of *rules*), `rule` (all of them, an array)
        and, only where a rule says more than yes or no, `details` (what the failed rules' structs
        hold, a JSON array). Failed rows that were read from files and are kept have a fourth, the
        reader's `_metadata`, which is hidden otherwise. `failures` takes these as they are.

    Raises:
        ConfigError: a rule has no name or another type, *df* has a column of a name above, or the
            plan is random and nothing is kept.
    """
    verdicts = _verdicts(df, rules)
    none = F.array().cast("array<string>")
    added = {
        "reason": F.coalesce(*[F.when(each.failed, each.reason) for each in verdicts]),
        "rule": F.concat(*[F.when(each.failed, each.rules).otherwise(none) for each in verdicts]),
    }
    if any(each.details is not None for each in verdicts):
        added["details"] = json_array(verdicts)
    _refuse_taken(df, added)
    failed = functools.reduce(operator.or_, [each.failed for each in verdicts])
    kept = once and not df.isStreaming
    hidden = ["_metadata"] if kept and hides_metadata(df) else []
    said = F.when(failed, F.struct(*[column.alias(name) for name, column in added.items()]))
    judged = df.select("*", *hidden, said.alias(_VERDICT), _all_columns().alias(_WHOLE))
    if kept:
        judged = keep_rows(judged)
    elif not is_deterministic(judged):
        accepted = "no stream" if df.isStreaming else "once=True"
        raise ConfigError.bad(
            "df",
            df,
            f"{accepted}, or the same rows and verdicts each time: its plan, or a rule, has "
            "something like rand() or uuid()",
        )
    good = judged.where(F.col(_VERDICT).isNull() & F.col(_WHOLE))
    bad = judged.where(F.col(_VERDICT).isNotNull() & F.col(_WHOLE))
    facts = {name: F.col(f"{_VERDICT}.{name}") for name in added}
    return good.drop(*hidden, _VERDICT, _WHOLE), bad.withColumns(facts).drop(_VERDICT, _WHOLE)


def _all_columns() -> Column:
    """Return a condition that is always true, and that Spark needs every column for.

    A reader of CSV or JSON finds malformed only what it has to parse, and parses the columns that a
    query needs. The optimizer sees through the size of an array, but not of a transformed one.
    """
    return F.size(F.transform(F.array(F.struct("*")), lambda row: row)) == 1


def cast_failed(
    value: Column | str, raw: Column | str, condition: str = "CAST_INVALID_INPUT"
) -> Column:
    """Return a rule for `split`: good unless *value* is null although *raw* is not.

    That is what `try_cast`, `try_to_timestamp` and the other `try_…` functions leave of what would
    have failed the job. The reason is *condition*; the details are, as in Spark's own error, the
    condition, its `sqlstate` where it is in `TRY_CONDITIONS`, and the `expression`: the raw value
    as text, 256 characters of it at most.

    Args:
        value: What the function gave, a Column or a column's name.
        raw: What it was given.
        condition: Spark's name for the error, such as `CANNOT_PARSE_TIMESTAMP`.
    """
    value, raw = _column(value), _column(raw)
    failure = F.struct(
        F.lit(condition).alias("condition"),
        F.lit(TRY_CONDITIONS.get(condition)).cast("string").alias("sqlstate"),
        F.substring(raw.cast("string"), 1, 256).alias("expression"),
    )
    return F.when(raw.isNotNull() & value.isNull(), failure)


@attrs.frozen(eq=False)  # comparing columns makes a column
class Verdict:
    """What a rule says of a row, as columns.

    Attributes:
        failed: Whether the row failed; never null.
        reason: Of a failed row, a slug.
        rules: Of a failed row, the rules that failed: an array.
        details: Of a failed row, JSON objects with commas between. None: nothing more is said.
    """

    failed: Column
    reason: Column
    rules: Column
    details: Column | None = None

    @classmethod
    def of(cls, rule: Column, kind: DataType, name: str) -> Verdict | None:
        """Return what *rule*, of type *kind*, says; None if such a type says nothing."""
        named, alone = F.lit(name), F.array(F.lit(name))
        match kind:
            case BooleanType():
                return cls(~rule.eqNullSafe(other=True), named, alone)
            case StringType():
                return cls(rule.isNotNull(), named, alone)
            case StructType():
                fields = [rule[field].alias(field) for field in kind.names]
                details = F.to_json(F.struct(named.alias("rule"), *fields))
                return cls(rule.isNotNull(), _name(rule, kind, named), alone, details)
            case ArrayType(elementType=StructType() as element):
                rules = F.transform(rule, lambda each: _name(each, element, named))
                each_json = F.transform(rule, lambda each: F.to_json(each))  # noqa: PLW0108 - it takes two
                details = F.concat_ws(",", each_json)
                some = F.coalesce(F.size(rule), F.lit(0)) > 0
                return cls(some, F.get(rules, F.lit(0)), rules, details)
        return None


def _verdicts(df: DataFrame, rules: Mapping[str, Column | str]) -> list[Verdict]:
    if not rules or not all(isinstance(name, str) and name.strip() for name in rules):
        raise ConfigError.bad("rules", rules, "one rule or more, each with a name")
    columns = [F.expr(rule) if isinstance(rule, str) else rule for rule in rules.values()]
    kinds = [field.dataType for field in df.select(*columns).schema]
    verdicts = []
    for name, column, kind in zip(rules, columns, kinds, strict=True):
        verdict = Verdict.of(column, kind, name)
        if verdict is None:
            accepted = "a boolean, a string, a struct or an array of structs"
            raise ConfigError.bad(f"rules[{name!r}]", kind.simpleString(), accepted)
        verdicts.append(verdict)
    return verdicts


def _name(failure: Column, kind: StructType, default: Column) -> Column:
    names = [failure[field].cast("string") for field in _NAME_FIELDS if field in kind.names]
    return F.coalesce(*names, default)


def json_array(verdicts: list[Verdict]) -> Column:
    """Return all details as one JSON array, or null where no failed rule has any."""
    details = [F.when(each.failed, each.details) for each in verdicts if each.details is not None]
    return F.concat(F.lit("["), F.nullif(F.concat_ws(",", *details), F.lit("")), F.lit("]"))


def _refuse_taken(df: DataFrame, added: Mapping[str, Column]) -> None:
    taken = [name for name in df.columns if name.lower() in added]
    if taken:
        raise ConfigError.bad("df", df.columns, f"no column {' or '.join(taken)}: rename it first")


def _column(column: Column | str) -> Column:
    return F.col(column) if isinstance(column, str) else column
