"""The guide, docs/spark.md, runs; the tables of docs/reference/spark.md are complete."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from pulsar_retry import ConfigError
from pulsar_retry_spark import options, parsing
from pulsar_retry_spark.frames import columns
from pulsar_retry_spark.source import options as source_options

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "spark.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "spark.md").read_text(encoding="utf-8")
SINK = {"service.url": "pulsar://localhost:6650", "topic": "orders", "subscription": "billing"}

parse_source = partial(source_options.SourceOptions.parse, streaming=True)


def test_the_page_runs(spark, broker, tmp_path, monkeypatch):
    """From top to bottom, as one program; addresses, the folder and the topic are the test's."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "1.json").write_text(
        """
        {"id": 1, "amount": "9.90", "currency": "EUR"}
        {"id": 2, "amount": "ten", "currency": "EUR"}
        {"id": 3, "amount": "-1", "currency": "EUR"}
        {"id": 4, "amount": "5", "currency": "XXX"}
        """.replace("        ", "").strip()
    )
    monkeypatch.setattr("builtins.print", lambda *_: None)
    code = "".join(re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
    for name, real in {
        "pulsar://localhost:6650": broker.service_url,
        "http://localhost:8080": broker.admin_url,
        '"orders"': repr(f"orders-{uuid.uuid4().hex}"),
        "/data": str(tmp_path),
    }.items():
        assert name in code
        code = code.replace(name, real)
    names = {"spark": spark, "__name__": "documentation"}

    exec(compile(code, "documentation", "exec"), names)  # noqa: S102

    letters = names["letters"].collect()
    assert {row.reason for row in letters} == {
        "CAST_INVALID_INPUT",
        "amount-positive",
        "currency-known",
    }
    assert len({row.dedupe_id for row in letters}) == len(letters), "a row was written twice"

    def written(settings):
        rows = spark.read.format("pulsar-failures").options(**settings).load().collect()
        return Counter((row.kind, row.reason) for row in rows)

    three = {
        ("dead_letter", "CAST_INVALID_INPUT"): 1,
        ("dead_letter", "amount-positive"): 1,
        ("retry", "currency-known"): 1,
    }
    brought_back = {("retry", "CAST_INVALID_INPUT"): 1, ("retry", "amount-positive"): 1}
    assert three == written(names["shipping"])
    assert {("retry", "currency-known"): 1} == written(names["returns"])
    assert three | brought_back == written(names["options"])


@pytest.mark.parametrize("parse", [options.SinkOptions.parse, parse_source])
def test_every_option_is_on_the_page(parse, monkeypatch):
    """And none that is not there."""
    known = []
    finish = parsing.OptionReader.finish

    def spy(reader):
        known.extend(reader._known)
        finish(reader)

    monkeypatch.setattr(parsing.OptionReader, "finish", spy)
    parse(SINK)

    assert len(known) > 10
    missing = [each for each in known if f"`{each}`" not in REFERENCE]
    assert [] == missing


def test_every_option_on_the_page_is_one():
    """A name in the tables of options is accepted by the sink or the source."""
    tables = REFERENCE[REFERENCE.index("## Options") : REFERENCE.index("## Errors")]
    cells = re.findall(r"^\| (`[^|]*`) \|", tables, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]

    assert len(named) > 40
    for name in named:
        said = []
        for parse in (options.SinkOptions.parse, parse_source):
            with pytest.raises(ConfigError) as error:
                parse({**SINK, "no.such": "option"})
            said.append(str(error.value))
        assert any(name in each for each in said), name


def test_every_column_is_on_the_page():
    """With the aliases that other systems' frames have."""
    missing = [name for name in columns.COLUMNS if f"`{name}`" not in REFERENCE]
    assert [] == missing
