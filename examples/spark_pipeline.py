"""Failed rows of a Spark job, all the way: retried, dead, read back, mended in SQL, redriven.

The data sets are real, with the errors that they have: airports (CSV) and cars (JSON), from the
package vega-datasets.

    Spark --> good rows ----------------------------------> Parquet
      '-----> failed rows --> retry topic --> consumer --> mended rows
                  |               ^------'       |
                  |            not yet           | never
                  '-----> dead-letter topic <----'
                               |
    Spark <--------------------'   a summary, a chart, what SQL can mend back to the retry topic

At the end, each row is accounted for. Without --service-url, a Pulsar is started for it.
"""

import argparse
import contextlib
import json
import math
import os
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
from local_spark import local_session
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from vega_datasets import local_data

import pulsar_retry as pr
from pulsar_retry.standalone import Standalone
from pulsar_retry_spark import failures, register, split, write_failures

SUBSCRIPTION = "mending"
MAX_ATTEMPTS = 3  # the first one is Spark's
DELAY_LEVELS = "200ms 400ms"  # short, for an example; the default goes from 1s to 2h

#: The reasons that the consumer may be able to mend. A retry can't help with the other failures.
RETRYABLE = ("impossible-position", "missing-city")
#: American Samoa is in the south, Guam and the Northern Marianas are in the east.
TERRITORIES = {"AS": "latitude", "CQ": "longitude", "GU": "longitude"}
#: How far away, in km, an airport that knows the city may be: farther with each attempt.
RADIUS = {2: 1, 3: 10}

#: The known makes of cars.
MAKES = (
    "amc audi bmw buick cadillac chevrolet chrysler citroen datsun dodge fiat ford honda mazda "
    "mercedes-benz mercury nissan oldsmobile opel peugeot plymouth pontiac renault saab subaru "
    "toyota triumph volkswagen volvo"
)
#: Corrections by somebody who has looked at the dead letters.
SPELLINGS = {
    "chevroelt": "chevrolet",
    "chevy": "chevrolet",
    "maxda": "mazda",
    "mercedes": "mercedes-benz",
    "toyouta": "toyota",
    "vokswagen": "volkswagen",
    "vw": "volkswagen",
}

#: The possible outcomes of a row.
OUTCOMES = ["good", "mended", "redriven and mended", "dead"]

Row = dict[str, Any]


# --- 1. Parse and validate. A try_ function gives null for a bad value, and a rule finds it. --


class Parsed(NamedTuple):
    """A data set: the ids of all its rows, its good rows and its failed rows."""

    rows: DataFrame
    good: DataFrame
    failed: DataFrame


def airports(spark: SparkSession) -> Parsed:
    """Parse the airports. Every column of the file is text."""
    raw = spark.read.csv(str(local_data.airports.filepath), header=True)
    parsed = raw.withColumns(
        {
            "id": identity(raw),
            "north": F.col("latitude").try_cast("double"),
            "east": F.col("longitude").try_cast("double"),
        }
    )
    good, failed = split(
        parsed,
        {
            "not-an-iata-code": "length(iata) = 3",
            "foreign-country": "country = 'USA'",
            "missing-city": "city <> 'NA' AND state <> 'NA'",
            "not-a-number": "north IS NOT NULL AND east IS NOT NULL",
            "impossible-position": "(north < 0) = (state = 'AS')"
            " AND (east > 0) = (state IN ('CQ', 'GU'))",
        },
    )
    good = good.select("id", "iata", "name", "city", "state", "north", "east")
    return Parsed(ids(parsed, "airports"), good, as_letters(failed, raw))


def cars(spark: SparkSession) -> Parsed:
    """Parse the cars."""
    raw = spark.read.json(str(local_data.cars.filepath), multiLine=True)
    parsed = raw.withColumns(
        {
            "id": identity(raw),
            "make": F.substring_index("Name", " ", 1),
            "model_year": F.year(F.expr("try_to_date(Year)")),
            "litres_per_100_km": F.expr("try_divide(235.215, Miles_per_Gallon)"),
        }
    )
    good, failed = split(
        parsed,
        {
            "unknown-make": F.col("make").isin(MAKES.split()),
            "not-a-year": "model_year IS NOT NULL",
            "missing-mileage": "litres_per_100_km IS NOT NULL",
            "missing-horsepower": "Horsepower IS NOT NULL",
        },
    )
    good = good.select("id", "make", "Name", "model_year", "litres_per_100_km", "Horsepower")
    return Parsed(ids(parsed, "cars"), good, as_letters(failed, raw))


def identity(raw: DataFrame) -> Column:
    """Return a text that identifies a row: a hash of its content."""
    return F.hex(F.xxhash64(*raw.columns))


def ids(parsed: DataFrame, dataset: str) -> DataFrame:
    """Return the ids of all rows, from which the final account starts."""
    return parsed.select("id", F.lit(dataset).alias("dataset"))


def as_letters(failed: DataFrame, raw: DataFrame) -> DataFrame:
    """Return the rows for Pulsar: the row as it was read, its reason, and its file."""
    return failures(
        failed,
        payload=F.struct(*raw.columns),
        key="id",
        stage="parse",
        retryable=F.col("reason").isin(*RETRYABLE),
    )


# --- 2. The consumer of retried rows. It does not use Spark. ----------------------------------


def subscribe(client: pr.Client, topic: str) -> pr.Consumer:
    """Subscribe to a topic and to its retry topic, to which Spark writes the rows."""
    return client.subscribe(
        topic,
        SUBSCRIPTION,
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        delay_levels=DELAY_LEVELS,
        dead_letter_policy=pr.DeadLetterPolicy(max_redeliver_count=MAX_ATTEMPTS - 1),
    )


def consume(consumer: pr.Consumer, count: int, places: Sequence[Row], file: Path) -> None:
    """Settle *count* rows: each is mended and written to *file*, or becomes a dead letter."""
    settled: set[str] = set()  # by key: with at-least-once, a row may come twice
    with file.open("a") as mended:
        while len(settled) < count:
            message = consumer.receive(timeout_millis=60_000)
            properties, key = message.properties(), message.partition_key()
            attempt = 1 + pr.RetryProperties.of(message).reconsume_times
            reason = properties["FAILURE_REASON"]
            row = mend(json.loads(message.data()), reason, attempt, places)
            if row is None:
                consumer.reconsume_later(message)  # after the last retry: to the dead-letter topic
            else:
                outcome = "redriven and mended" if "REDRIVE_COUNT" in properties else "mended"
                record = {"id": key, "reason": reason, "outcome": outcome, "row": row}
                print(json.dumps(record), file=mended, flush=True)
                consumer.acknowledge(message)  # only after it is written, so nothing is lost
            if row is not None or attempt >= MAX_ATTEMPTS:
                settled.add(key)


def mend(row: Row, reason: str, attempt: int, places: Sequence[Row]) -> Row | None:
    """Return the mended row, or None if this attempt can't mend it."""
    if reason == "impossible-position" and row["state"] in TERRITORIES:
        column = TERRITORIES[row["state"]]
        return row | {column: str(-float(row[column]))}
    if reason == "missing-city":
        nearest = min(places, key=lambda place: kilometres(row, place))
        if kilometres(row, nearest) <= RADIUS.get(attempt, 0):
            return row | {"city": nearest["city"], "state": nearest["state"]}
    if reason == "unknown-make" and row["Name"].partition(" ")[0] in MAKES.split():
        return row  # it was mended before it was redriven
    return None


def kilometres(row: Row, place: Row) -> float:
    """Return the distance of an airport from a place, in a straight line on a flat world."""
    north = float(row["latitude"]) - place["north"]
    east = float(row["longitude"]) - place["east"]
    return 111.2 * math.hypot(north, east * math.cos(math.radians(place["north"])))


# --- 3. The dead letters in Spark: a summary, and the way back. -------------------------------


def read_dead(spark: SparkSession, where: Mapping[str, str]) -> DataFrame:
    """Return the dead rows. Reading does not remove them."""
    letters = spark.read.format("pulsar-failures").options(**where, kind="dead_letter").load()
    # Reading is at-least-once, too. A row that is redriven gets a new id.
    return letters.dropDuplicates(["dedupe_id"])


def summarise(dead: DataFrame) -> DataFrame:
    """Return the dead rows by reason: how many there are, their attempts, and one example."""
    return (
        dead.groupBy("reason")
        .agg(
            F.count("*").alias("rows"),
            F.max("attempt").alias("attempts"),
            F.min(F.col("payload").cast("string")).alias("one of them"),
        )
        .orderBy(F.desc("rows"))
    )


def redrive(spark: SparkSession, dead: DataFrame, where: Mapping[str, str]) -> int:
    """Mend the rows that SQL can mend, send them to the retry topic, and return their number."""
    mended = spark.sql(
        """
        SELECT dead.* EXCEPT (payload), replace(
                 string(payload), '"Name":"' || wrong || ' ', '"Name":"' || correct || ' '
               ) AS payload
        FROM {dead} AS dead JOIN {spellings}
          ON startswith(get_json_object(string(payload), '$.Name'), wrong || ' ')
        WHERE reason = 'unknown-make'
        """,
        dead=dead,
        spellings=spark.createDataFrame(list(SPELLINGS.items()), "wrong string, correct string"),
    )
    return write_failures(mended, where, action="retry").rows


# --- 4. The account: each row that was read is in exactly one place. --------------------------


def account(rows: DataFrame, dead: DataFrame, folder: Path) -> DataFrame:
    """Return where each row is, from the stored data: id, dataset, reason, outcome."""
    read = rows.sparkSession.read
    good = read.schema("id string").parquet(str(folder / "good" / "*"))
    mended = read.schema("id string, reason string, outcome string").json(str(folder / "mended"))
    # A redriven letter also stays in the dead-letter topic, although its row has moved on.
    redriven = mended.where("outcome = 'redriven and mended'")
    dead = dead.select(F.col("key").cast("string").alias("id"), "reason")
    places = [
        good.selectExpr("id", "string(null) AS reason", "'good' AS outcome"),
        mended,
        dead.join(redriven, "id", "left_anti").withColumn("outcome", F.lit("dead")),
    ]
    return rows.join(places[0].unionAll(places[1]).unionAll(places[2]).distinct(), "id", "full")


def show(found: DataFrame, count: int) -> None:
    """Print how many rows are where; fail unless each of *count* rows is in exactly one place."""
    found.groupBy("dataset").pivot("outcome", [*OUTCOMES]).count().na.fill(0).show()
    sums = {row["outcome"]: row["count"] for row in found.groupBy("outcome").count().collect()}
    print(f"{count} rows =", " + ".join(f"{sums.get(place, 0)} {place}" for place in OUTCOMES))
    lost, unknown = sums.get(None, 0), found.where("dataset IS NULL").count()
    if lost or unknown or sum(sums.values()) != count:
        raise SystemExit(f"the account is not balanced: {lost} are lost, {unknown} are unknown")


def draw(found: DataFrame, file: Path) -> None:
    """Draw the outcomes of the failed rows, by reason, in one self-contained HTML file."""
    counts = found.where("reason IS NOT NULL").groupBy("reason").pivot("outcome").count().na.fill(0)
    figure = counts.orderBy("dead").plot.barh(x="reason", y=OUTCOMES[1:], title="Failed rows")
    figure.write_html(file)


# --- All of it --------------------------------------------------------------------------------


def run(spark: SparkSession, client: pr.Client, url: str, folder: Path) -> None:
    """Run the whole pipeline once, on new topics, and write the results to *folder*."""
    topic = f"persistent://public/default/rows-{uuid.uuid4().hex[:8]}"
    where = {"service.url": url, "topic": topic, "subscription": SUBSCRIPTION}
    retries = {"max_attempts": str(MAX_ATTEMPTS), "delay.levels": DELAY_LEVELS}
    consumer = subscribe(client, topic)

    register(spark)  # not needed on a cluster where the package is installed
    parsed = {"airports": airports(spark), "cars": cars(spark)}
    for name, part in parsed.items():
        part.good.write.parquet(str(folder / "good" / name))
    rows = parsed["airports"].rows.unionAll(parsed["cars"].rows)
    failed = parsed["airports"].failed.unionAll(parsed["cars"].failed)
    count = rows.count()

    # If most of the input is bad, the job itself has a problem: then nothing is written.
    report = write_failures(failed, where | retries | {"max_failed_rows": count // 10})
    retried, dead_at_once = report.by_action["retry"], report.by_action["dead_letter"]
    print(f"{count} rows read, {report.rows} failed:", end=" ")
    print(f"{retried} to retry, {dead_at_once} dead letters\n")

    good = spark.read.parquet(str(folder / "good" / "airports"))
    places = [place.asDict() for place in good.select("city", "state", "north", "east").collect()]
    (folder / "mended").mkdir()
    consume(consumer, retried, places, folder / "mended" / "rows.json")
    dead = read_dead(spark, where)
    summarise(dead).show(truncate=60)
    show(account(rows, dead, folder), count)

    redriven = redrive(spark, dead, where)
    print(f"{redriven} dead letters mended in SQL and sent to the retry topic")
    consume(consumer, redriven, places, folder / "mended" / "rows.json")
    found = account(rows, read_dead(spark, where), folder).cache()
    show(found, count)
    draw(found, folder / "failed.html")
    print(f"\n{folder / 'failed.html'} shows what became of the failed rows")


def main() -> None:
    """Find or start a broker, start Spark, and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--service-url", default=os.environ.get("PULSAR_SERVICE_URL"))
    parser.add_argument("--output", type=Path, help="a new folder; default: a temporary one")
    arguments = parser.parse_args()
    folder = arguments.output or Path(tempfile.mkdtemp(prefix="spark-pipeline-"))
    with contextlib.ExitStack() as stack:
        if arguments.service_url:
            url = arguments.service_url
        else:
            print("starting a Pulsar; the first time, this downloads it")
            url = stack.enter_context(Standalone()).service_url
        print(f"Pulsar at {url}; starting Spark")
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = stack.enter_context(pr.Client(url, logger=logger))
        spark = stack.enter_context(local_session("spark-pipeline"))
        run(spark, client, url, folder)


if __name__ == "__main__":
    main()
