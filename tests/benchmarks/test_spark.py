"""What failed rows cost a Spark job, on one broker in one run: `tox run -e bench`.

Nothing here asserts a speed. The figures are printed and go into tests/benchmarks/README.md.
PULSAR_RETRY_BENCH_ROWS is how many rows the largest write of the memory test has.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import pulsar
import pytest
from local_spark import local_session
from pyspark import StorageLevel, cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pulsar_retry.testing.broker import RunningBroker
from pulsar_retry_spark import register, split, write_failures
from support.benchmarks import sending
from support.benchmarks.comparing import Stopwatch, compare
from support.spark.watching import Family

ROWS = 300_000
FEW_ROWS = ROWS // 60  # for what is too slow for all of them
READ_ROWS = 100_000
ROUNDS = 3
PARTITIONS = 8
PAYLOAD = b"x" * 200
CORES = 2
DELAY = timedelta(hours=1)
MEMORY_ROWS = int(os.environ.get("PULSAR_RETRY_BENCH_ROWS", "1000000"))

# Workers have no tests on their path.
cloudpickle.register_pickle_by_value(sys.modules["support.benchmarks.sending"])


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Give a Spark with two threads."""
    with local_session("bench", master=f"local[{CORES}]", memory="2g") as session:
        register(session)
        yield session


@pytest.fixture(scope="module")
def family(spark: SparkSession) -> Iterator[Family]:
    """Give what looks at Spark's JVM and its Python workers."""
    with Family(spark.sparkContext._gateway.proc.pid) as watched:
        yield watched


def failed_rows(spark: SparkSession, count: int, action: str = "dead_letter") -> DataFrame:
    """Return rows as a job describes its failed ones."""
    return spark.range(0, count, 1, PARTITIONS).select(
        F.lit(PAYLOAD).alias("payload"),
        F.concat(F.lit("key-"), "id").alias("key"),
        F.lit("missing-city").alias("reason"),
        F.lit("parse").alias("stage"),
        F.sha2(F.col("id").cast("string"), 256).alias("dedupe_id"),
        F.lit(action).alias("action"),
    )


def cached(frame: DataFrame) -> DataFrame:
    """Return *frame* computed: making the rows is not what is measured."""
    frame = frame.cache()
    frame.count()
    return frame


def options_for(broker: RunningBroker, namespace: str) -> dict[str, str]:
    """Return the sink's options, with a topic that nobody has written to."""
    topic = f"persistent://{namespace}/{uuid.uuid4().hex}"
    return {
        "service.url": broker.service_url,
        "topic": topic,
        "subscription": "bench",
        "delay.levels": f"{DELAY.total_seconds():g}s",
    }


def write(failed: DataFrame, options: dict[str, str]) -> None:
    """Write with the sink."""
    failed.write.format("pulsar-failures").options(**options).mode("append").save()


def timed(action: Callable[[], object]) -> float:
    """Return the seconds that *action* takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def wire(broker: RunningBroker, namespace: str, failed: DataFrame) -> dict[str, str]:
    """Return the properties that the sink sends with each row, but for its own of each."""
    options = options_for(broker, namespace)
    client = pulsar.Client(broker.service_url, logger=sending.quiet())
    letters = [f"{options['topic']}-bench-{end}" for end in ("RETRY", "DLQ")]
    consumer = client.subscribe(letters, "look")  # exclusive: delays don't hold it up
    write(failed.limit(1), options)
    properties = consumer.receive(30_000).properties()
    client.close()
    return {name: value for name, value in properties.items() if name != "DEDUPE_ID"}


@pytest.mark.usefixtures("report")
@pytest.mark.parametrize("action", ["dead_letter", "retry"])
def test_rows_per_second(benchmark, broker, namespace, spark, family, action):
    """The sink against what people write by hand, and against pulsar-client alone.

    All send the same messages to one topic, but for the first, which sends FEW_ROWS of them.
    """
    failed = cached(failed_rows(spark, ROWS, action))
    few = cached(failed.limit(FEW_ROWS).repartition(PARTITIONS))
    properties = wire(broker, namespace, failed)
    delay = DELAY if action == "retry" else None

    def target() -> sending.Target:
        topic = options_for(broker, namespace)["topic"]
        return sending.Target(broker.service_url, topic, properties, delay)

    def sink(write: Callable[..., object]) -> Stopwatch:
        options = options_for(broker, namespace)
        with Stopwatch(ROWS, family.cpu) as watch:
            write(failed, options)
        return watch

    def foreach(send: Callable[..., None], frame: DataFrame, rows: int) -> Stopwatch:
        where = target()

        def partition(rows):
            source = ((r.key, bytes(r.payload), {"DEDUPE_ID": r.dedupe_id}) for r in rows)
            send(where, source)

        with Stopwatch(rows, family.cpu) as watch:
            frame.foreachPartition(partition)
        return watch

    compare(
        benchmark,
        {
            "foreachPartition, send": lambda: foreach(sending.send_sync, few, FEW_ROWS),
            "foreachPartition, send_async": lambda: foreach(sending.send_async, failed, ROWS),
            'format("pulsar-failures")': lambda: sink(write),
            "write_failures": lambda: sink(write_failures),
        },
        "foreachPartition, send_async",
        ROUNDS,
    )


@pytest.mark.usefixtures("report")
def test_read(benchmark, broker, namespace, spark, family):
    """The source, against a reader of pulsar-client's that looks at as much of each letter."""
    options = options_for(broker, namespace)
    write_failures(failed_rows(spark, READ_ROWS), options)

    def source() -> Stopwatch:
        where = {name: value for name, value in options.items() if name != "delay.levels"}
        rows = spark.read.format("pulsar-failures").options(**where).load()
        with Stopwatch(READ_ROWS, family.cpu) as watch:
            rows.write.format("noop").mode("overwrite").save()
        return watch

    def reader() -> Stopwatch:
        client = pulsar.Client(broker.service_url, logger=sending.quiet())
        letters = client.create_reader(f"{options['topic']}-bench-DLQ", pulsar.MessageId.earliest)
        with Stopwatch(READ_ROWS, time.process_time) as watch:
            rows = 0
            while letters.has_message_available():
                message = letters.read_next(30_000)
                message.data(), message.partition_key(), message.properties()
                message.message_id(), message.publish_timestamp()
                rows += 1
        client.close()
        assert READ_ROWS == rows
        return watch

    source()  # Spark starts its worker once
    contestants = {"pulsar.Client, a reader": reader, 'read.format("pulsar-failures")': source}
    compare(benchmark, contestants, "pulsar.Client, a reader", ROUNDS)


@pytest.mark.usefixtures("report")
def test_one_row(benchmark, broker, namespace, spark):
    """What a write costs however few rows there are, when the session is warm."""
    failed = cached(failed_rows(spark, 1))
    took: dict[str, list[float]] = {'format("pulsar-failures")': [], "write_failures": []}

    def one_round() -> None:
        for each, how in zip(took.values(), (write, write_failures), strict=True):
            each.append(timed(lambda how=how: how(failed, options_for(broker, namespace))))

    benchmark.pedantic(one_round, rounds=10, warmup_rounds=1)
    for name, each in took.items():
        benchmark.extra_info[name] = f"{statistics.median(each):.2f} s ({min(each):.2f})"


@pytest.mark.usefixtures("report")
@pytest.mark.parametrize("rows", [10, 1_000])
def test_micro_batch(benchmark, broker, namespace, spark, tmp_path, rows):
    """What the sink adds to a micro-batch, against a sink that does nothing."""
    batches = 30

    def stream(sink: str, options: dict[str, str]) -> list[int]:
        """Return the milliseconds of each batch but the first few, which open what stays open."""
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        failed = source.load().selectExpr("string(value) AS payload", "'invalid' AS reason")
        failed = failed.withColumn("action", F.lit("dead_letter"))
        checkpoint = str(tmp_path / uuid.uuid4().hex)
        writer = failed.writeStream.format(sink).options(**options)
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            while len(query.recentProgress) < batches:
                query.awaitTermination(0.2)
            progress = list(query.recentProgress)
        finally:
            query.stop()
        return [each.durationMs["addBatch"] for each in progress[5:batches]]

    took: dict[str, list[int]] = {"noop": [], "pulsar-failures": []}

    def one_round() -> None:
        took["noop"] += stream("noop", {})
        took["pulsar-failures"] += stream("pulsar-failures", options_for(broker, namespace))

    benchmark.pedantic(one_round, rounds=3, warmup_rounds=0)
    for name, each in took.items():
        median, worst = statistics.median(each), statistics.quantiles(each, n=20)[-1]
        benchmark.extra_info[name] = f"{median:.0f} ms, 95 % below {worst:.0f} ms"


@pytest.mark.usefixtures("report")
@pytest.mark.parametrize(
    ("rows", "shares", "rounds"),
    [(ROWS * 2, (0, 1), 7), (ROWS * 2, (5, 10, 25, 50, 100), 3), (ROWS * 10, (0, 1), 3)],
    ids=["600000, few", "600000", "3000000"],  # what many cost is still felt in the next run
)
def test_share_of_failed_rows(benchmark, broker, namespace, spark, tmp_path, rows, shares, rounds):
    """A job that writes its good rows to Parquet and its failed ones to Pulsar.

    Two contestants write none to Pulsar: one has no line for failed rows, and the other gives a
    hundredth to a Python function that drops them, which is what any sink in Python costs Spark.
    """
    hundredths = F.expr("pmod(hash(key), 100)")
    whole = cached(failed_rows(spark, rows).withColumn("hundredth", hundredths))

    options = options_for(broker, namespace)  # a job's topics exist, but for its first run

    def to_pulsar(failed: DataFrame) -> None:
        write_failures(failed, options)

    def to_python(failed: DataFrame) -> None:
        dropped = failed.mapInArrow(lambda batches: (b for b in batches if not b), failed.schema)
        dropped.collect()

    def job(percent: int, write: Callable[[DataFrame], None] | None = to_pulsar) -> float:
        parquet = tmp_path / uuid.uuid4().hex

        def both() -> None:  # `split` judges every row at once
            good, failed = split(whole.drop("reason"), {"missing-city": f"hundredth >= {percent}"})
            good.write.parquet(str(parquet))
            if write is not None:
                write(failed.drop("hundredth"))

        took = timed(both)
        shutil.rmtree(parquet)
        return rows / took

    for share in shares[:2]:  # Spark starts its workers once, and compiles
        job(share)
    alone = "good rows alone"
    contestants = {
        alone: partial(job, 0, None),
        "1 % failed, dropped in Python": partial(job, 1, to_python),
        **{f"{share} % failed": partial(job, share) for share in shares},
    }
    compare(benchmark, contestants, alone, rounds)
    whole.unpersist()


@pytest.mark.usefixtures("report")
def test_memory(benchmark, broker, namespace, spark, family):
    """What the largest Python worker and the JVM hold at most, while more and more rows are moved.

    They are written, and read back by the source: each is there once, and none is lost.
    """

    def watched(what: str, rows: int, action: Callable[[], object]) -> None:
        family.forget()
        took = timed(action)
        benchmark.extra_info[f"{rows:,} rows, {what}"] = (
            f"worker {family.largest >> 20} MiB, JVM {family.head >> 20} MiB, {rows / took:,.0f}/s"
        )

    for rows in [each for each in (20_000, 10**5, 10**6, 10**7) if each <= MEMORY_ROWS]:
        failed, options = failed_rows(spark, rows), options_for(broker, namespace)
        watched("written", rows, partial(write, failed, options))
        where = {name: value for name, value in options.items() if name != "delay.levels"}
        letters = spark.read.format("pulsar-failures").options(**where).load()
        ids = letters.select("dedupe_id").persist(StorageLevel.DISK_ONLY)
        watched("read", rows, ids.count)
        once = ids.join(failed.select("dedupe_id"), "dedupe_id").distinct()
        assert (rows, rows) == (ids.count(), once.count())
        ids.unpersist()
    benchmark.pedantic(lambda: None)  # what is measured is not time
