"""The questions of `doctor` to Spark's workers and to the broker."""

from __future__ import annotations

import json
from collections.abc import Callable

import attrs
import pulsar
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from pulsar_retry.consumer.old_names import exists
from pulsar_retry.wire.names import LetterTopics
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarFailuresError
from pulsar_retry_spark.options import SinkOptions, SinkTargets

#: Without these, pulsar-client waits for half a minute. The user's own options win over them.
_IMPATIENT = {"connection_timeout_ms": 5_000, "operation_timeout_seconds": 10}


@attrs.frozen
class Machine:
    """A Python interpreter that will run this package.

    Attributes:
        host: The name of its machine.
        python: Its version, such as 3.11.7.
        versions: The version of each distribution that is needed; None if it is missing.
        rows: Whether rows are sent and read in C++ there, or why not; "" if the package is missing.
    """

    host: str
    python: str
    versions: dict[str, str | None]
    rows: str = ""


@attrs.frozen
class BrokerView:
    """What a process sees of the broker.

    Attributes:
        topics: For each topic, whether it exists.
        error: Why the process sees nothing; None if there was no error.
    """

    topics: dict[str, bool] = attrs.field(factory=dict)
    error: str | None = None


def this_machine() -> Machine:
    """Return the Python interpreter that runs this function."""
    return Machine(**json.loads(_inspection()(None)))


def workers(spark: SparkSession) -> list[Machine]:
    """Return the Python interpreters of a few workers; raise Spark's error if the job fails."""
    return [Machine(**json.loads(each)) for each in _ask(spark, _inspection(), tasks=16)]


def look(options: SinkOptions) -> BrokerView:
    """Return what this process sees of the broker. Creates nothing."""
    targets = options.targets
    try:
        with lease(_impatient(options.connection)) as client:
            letters: SinkTargets | LetterTopics = targets
            if targets.plan is not None:
                letters = client.letter_topics(targets.plan)
            names = {letters.retry, letters.dead_letter, options.report_topic} - {None}
            return BrokerView(
                {name: exists(client.client, name) for name in sorted(filter(None, names))}
            )
    except (pulsar.PulsarException, PulsarFailuresError) as error:
        return BrokerView(error=_shown(error))


def unreached(
    spark: SparkSession, connection: ClusterConnection, topic: str, existing_topic: str | None
) -> list[str]:
    """Return the errors of workers that do not reach the broker; empty if all reach it.

    If the job fails, Spark's error is raised.

    Args:
        spark: The session.
        connection: The cluster.
        topic: The topic to look for, whether it exists or not.
        existing_topic: A topic that exists, if one is known. Looking for it logs no errors.
    """
    connection = _impatient(connection)

    def reach(_: object) -> str:
        try:
            with lease(connection) as client:
                if existing_topic is None:
                    exists(client.client, topic)
                else:
                    client.partitions(existing_topic)
        except (pulsar.PulsarException, PulsarFailuresError) as error:
            return _shown(error)
        return ""

    return [each for each in _ask(spark, reach, tasks=2) if each]


def _impatient(connection: ClusterConnection) -> ClusterConnection:
    arguments = tuple(sorted((_IMPATIENT | dict(connection.arguments)).items()))
    return attrs.evolve(connection, arguments=arguments, log_level="none")


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _ask(spark: SparkSession, question: Callable[[object], str], *, tasks: int) -> list[str]:
    """Return the distinct answers of Spark's workers, sorted."""
    answer = F.udf(question, "string", useArrow=False)  # pyarrow may be what is missing
    rows = spark.range(0, tasks, 1, tasks).select(answer("id").alias("answer")).collect()
    return sorted({row.answer for row in rows})


def _inspection() -> Callable[[object], str]:
    """Return a function that describes the Python interpreter that runs it, as JSON.

    A nested function is pickled by its code, other functions by their names. This one has to run
    where our package may be missing.
    """

    def inspect(_: object) -> str:
        import json  # noqa: PLC0415 - see above
        import platform  # noqa: PLC0415
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

        versions: dict[str, str | None] = {}
        for distribution in ("pulsar-client", "pulsar-retry", "pyarrow"):
            try:
                versions[distribution] = version(distribution)
            except PackageNotFoundError:
                versions[distribution] = None
        try:
            from pulsar_retry.native.loading import native_rows  # noqa: PLC0415

            why = native_rows().why
            rows = f"rows in Python ({why})" if why else "rows in C++"
        except Exception:  # noqa: BLE001 - missing or broken: `versions`, or the first row, says it
            rows = ""
        return json.dumps(
            {
                "host": platform.node(),
                "python": platform.python_version(),
                "versions": versions,
                "rows": rows,
            }
        )

    return inspect
