"""Split one frame into good rows and failed rows, by named rules."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BooleanType, DataType, StringType, StructType

from pulsar_retry.errors import ConfigError
from pulsar_retry_spark.frames.plans import (
    check_frame,
    hides_metadata,
    is_deterministic,
    keep_rows,
    needs_all_columns,
)

#: The fields of a struct that hold its reason: that of `cast_failed`, and that of rule engines.
_NAME_FIELDS = ("condition", "name")

#: The metadata of the columns that `split` adds: a user's column may have the same name.
OF_SPLIT = {"pulsar_retry": "split"}

_STRUCT = (
    "cast_failed: value is a struct, and from_json returns one for malformed text as well: let its "
    "schema have a column _corrupt_record string, and use that column as the rule"
)

#: The column with the verdict about a row; null for a good row.
_VERDICT = "__pulsar_retry_verdict"
#: The column with the condition that `needs_all_columns` returns.
_TRUE = "__pulsar_retry_whole"


def split(
    df: DataFrame, rules: Mapping[str, Column | str], *, once: bool = True
) -> tuple[DataFrame, DataFrame]:
    """Split *df* into its good rows and its failed rows. Each row is in exactly one of the two.

    Spark evaluates a frame again for each use, and a second evaluation may judge a row differently:
    a rule or column may be random, call a service or ask for the time; the source may have changed;
    or the reader parses only the columns that a query needs, and so does not notice that another
    column is malformed. Therefore `split` runs one Spark job, which evaluates *df* and the rules
    once and keeps the rows with their verdicts on the executors' disks (a local checkpoint). Both
    frames read these rows, which are freed when nothing refers to the frames any more. If an
    executor is lost, its rows are lost too: the job that needs them fails, and no row is judged
    again.

    The rows of a stream can't be kept. The frames of a stream are lazy, and a random plan is
    refused. Two queries of one stream read and judge separately; `route_batches` judges each
    micro-batch once.

    Only SQL expressions are used: no row passes through Python, unless a rule calls a Python
    function.

    Args:
        df: Any frame. It may be a stream.
        rules: By name, what makes a row good: a Column or an SQL expression. Its type decides:

            - boolean: the row is good if it is true. Null is not true.
            - string: good if null, such as the reader's `_corrupt_record` or `_rescued_data`.
            - struct: good if null, such as the result of `cast_failed`. The reason is its field
              `condition` or `name`.
            - array of structs: good if null or empty, such as the `_errors` of a rule engine.
              Each element is a failed rule, named by its field `condition` or `name`.
        once: With False, no job runs and no row is kept. Use it for frames that are too large to
            keep. Each use of a frame then evaluates *df* with all of its columns. You have to make
            sure that rows and rules give the same result each time. A plan with `rand()`, `uuid()`
            and the like is refused.

    Returns:
        The good rows, with the columns of *df*, and the failed rows with more columns:
        `reason` (the first failed rule, in the order of *rules*), `rule` (an array of all failed
        rules) and, if a rule is a struct or an array, `details` (a JSON array of what the
        structs of the failed rules hold). If failed rows were read from files and are kept, they
        also have the reader's `_metadata`, which is hidden otherwise. `failures` accepts these
        columns as they are.

    Raises:
        ConfigError: a rule has no name or an unsupported type, *df* already has a column that
            would be added, or the plan is random and its rows are not kept.
    """
    check_frame("df", df)
    verdicts = _verdicts(df, rules)
    empty = F.array().cast("array<string>")
    added = {
        "reason": F.coalesce(*[F.when(each.failed, each.reason) for each in verdicts]),
        "rule": F.concat(*[F.when(each.failed, each.rules).otherwise(empty) for each in verdicts]),
    }
    if any(each.details is not None for each in verdicts):
        added["details"] = json_array(verdicts)
    _refuse_taken(df, added)
    failed = functools.reduce(operator.or_, [each.failed for each in verdicts])
    kept = once and not df.isStreaming
    hidden = ["_metadata"] if kept and hides_metadata(df) else []
    verdict = F.when(failed, F.struct(*[column.alias(name) for name, column in added.items()]))
    judged = df.select("*", *hidden, verdict.alias(_VERDICT), needs_all_columns().alias(_TRUE))
    is_good = F.col(_VERDICT).isNull() & F.col(_TRUE)
    is_bad = F.col(_VERDICT).isNotNull() & F.col(_TRUE)
    if kept:
        judged = keep_rows(judged)
    elif not is_deterministic(judged):
        accepted = "a frame that is not a stream" if df.isStreaming else "once=True"
        raise ConfigError.bad(
            "df",
            df,
            f"{accepted}, or the same rows and verdicts each time: its plan or a rule contains "
            "something like rand() or uuid()",
        )
    facts = {name: F.col(f"{_VERDICT}.{name}").alias(name, metadata=OF_SPLIT) for name in added}
    good = judged.where(is_good).drop(*hidden, _VERDICT, _TRUE)
    bad = judged.where(is_bad).withColumns(facts).drop(_VERDICT, _TRUE)
    return good, bad


def cast_failed(
    value: Column | str, raw: Column | str, condition: str = "CAST_INVALID_INPUT"
) -> Column:
    """Return a rule for `split` that fails a row if *value* is null although *raw* is not.

    That is how `try_cast`, `try_to_timestamp` and the other `try_…` functions mark a value that
    would otherwise fail the job. The reason is *condition*. The details are the condition and the
    `expression`, which is the raw value as text, cut at 256 characters.

    A struct is refused when the job runs: `from_json` returns one for malformed text as well. Let
    its schema have a column `_corrupt_record string`, and use that column as the rule.

    Args:
        value: The function's result: a Column or a column's name, not of a struct.
        raw: The function's input: a Column or a column's name.
        condition: Spark's name for the error, such as `CANNOT_PARSE_TIMESTAMP`.
    """
    value, raw = _column(value), _column(raw)
    failure = F.struct(
        F.lit(condition).alias("condition"),
        F.substring(raw.cast("string"), 1, 256).alias("expression"),
    )
    refused = F.typeof(value).startswith("struct<") & raw.isNotNull()
    return F.when(refused, F.raise_error(_STRUCT)).when(raw.isNotNull() & value.isNull(), failure)


@attrs.frozen(eq=False)  # comparing columns makes a column
class Verdict:
    """What a rule says about a row, as columns.

    Attributes:
        failed: True if the row failed; never null.
        reason: The reason of a failed row.
        rules: The failed rules of a failed row: an array.
        details: JSON objects about a failed row, separated by commas. None if there are no details.
    """

    failed: Column
    reason: Column
    rules: Column
    details: Column | None = None

    @classmethod
    def of(cls, rule: Column, kind: DataType, name: str) -> Verdict | None:
        """Return the verdict of *rule*, of type *kind*; None if the type is not supported."""
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
    named = isinstance(rules, Mapping) and all(isinstance(n, str) and n.strip() for n in rules)
    if not named or not rules:
        raise ConfigError.bad("rules", rules, "one or more rules, each with a name")
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
    """Return the name of the failed rule in a struct, or *default* if the struct has none."""
    names = [failure[field].cast("string") for field in _NAME_FIELDS if field in kind.names]
    return F.coalesce(*names, default)


def json_array(verdicts: list[Verdict]) -> Column:
    """Return all details as one JSON array, or null if no failed rule has details."""
    details = [F.when(each.failed, each.details) for each in verdicts if each.details is not None]
    return F.concat(F.lit("["), F.nullif(F.concat_ws(",", *details), F.lit("")), F.lit("]"))


def _refuse_taken(df: DataFrame, added: Mapping[str, Column]) -> None:
    taken = [name for name in df.columns if name.lower() in added]
    if taken:
        raise ConfigError.bad("df", df.columns, f"no column {' or '.join(taken)}: rename it first")


def _column(column: Column | str) -> Column:
    return F.col(column) if isinstance(column, str) else column
