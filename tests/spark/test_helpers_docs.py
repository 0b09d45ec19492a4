"""The tables of docs/reference/spark.md are complete."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from pulsar_retry_spark import options, parsing
from pulsar_retry_spark.frames import columns
from pulsar_retry_spark.source import options as source_options

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "spark.md").read_text(encoding="utf-8")
SINK = {"service.url": "pulsar://localhost:6650", "topic": "orders", "subscription": "billing"}

parse_source = partial(source_options.SourceOptions.parse, streaming=True)


@pytest.mark.parametrize("parse", [options.SinkOptions.parse, parse_source])
def test_every_option_is_on_the_page(parse, monkeypatch):
    """And none that is not there."""
    known = []
    finish = parsing.OptionReader.finish

    def spy(reader):
        arguments = ["client.<name>"]  # of pulsar-client, which documents them
        known.extend(arguments + [each for each in reader._known if "client." not in each])
        finish(reader)

    monkeypatch.setattr(parsing.OptionReader, "finish", spy)
    parse(SINK)

    assert len(known) > 10
    missing = [each for each in known if f"`{each}`" not in REFERENCE]
    assert [] == missing


def test_every_column_is_on_the_page():
    """With the aliases that other systems' frames have."""
    missing = [name for name in columns.COLUMNS if f"`{name}`" not in REFERENCE]
    assert [] == missing
