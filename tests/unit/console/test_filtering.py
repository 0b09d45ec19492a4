"""The filter of a page: in the search bar, in a URL, and as options of the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_retry.console.filtering import NAMES, Query
from pulsar_retry.console.forms import JobForm
from pulsar_retry.errors import ConfigError

DLQ = "persistent://public/default/orders-billing-DLQ"
NAMED = st.tuples(st.sampled_from(NAMES), st.text(st.characters(codec="utf-8"), max_size=20))


@given(st.lists(NAMED, max_size=6))
def test_what_the_bar_shows_is_what_it_reads(pairs) -> None:
    """Whatever is in the values."""
    query = Query(pairs)
    assert query == Query.typed(query.text())
    assert query == JobForm.of(JobForm(source=DLQ, query=query).pairs(), DLQ).query


def test_a_query_is_the_filter_of_the_command_line() -> None:
    """With its names; other words are searched for."""
    query = Query.typed("--reason=odd error=A error=B since=2026-01-31T12:00:00Z 'lost card' a=b")
    where = query.where()
    assert (("odd",), ("A", "B")) == (tuple(where.reason), tuple(where.error))
    assert ("lost card", "a=b") == tuple(where.search)
    assert datetime(2026, 1, 31, 12, tzinfo=UTC) == where.since
    assert "--reason odd --error A --error B --since 2026-01-31T12:00:00Z" in query.options()
    assert "since=1h" in Query.typed("since=2h since=1h").text()
    assert Query().where().takes_all


@pytest.mark.parametrize(
    "text", ["'", "since=yore", "attempt=x", f"attempt=1{30 * '0'}", "property=x", "id=x"]
)
def test_a_bad_filter_is_refused(text) -> None:
    """It says what is accepted."""
    with pytest.raises(ConfigError):
        Query.typed(text).where()


@pytest.mark.parametrize(
    ("fields", "command"),
    [
        ({}, "pulsar-retry redrive orders-billing-DLQ"),
        (
            {"verb": "discard", "everything": "yes"},
            "pulsar-retry discard orders-billing-DLQ --all",
        ),
        (
            {"to": "origin", "rate": "100", "filter": "reason='a b'"},
            "pulsar-retry redrive orders-billing-DLQ --reason 'a b' --rate 100 --to origin",
        ),
        (
            {"to": "topic", "target": "$(id)"},
            "pulsar-retry redrive orders-billing-DLQ --to '$(id)'",
        ),
        (
            {"topic": "orders", "subscription": "billing"},
            "pulsar-retry redrive orders-billing-DLQ --topic orders --subscription billing",
        ),
        (
            {"dlq_subscription": "$(id)"},
            "pulsar-retry redrive orders-billing-DLQ --dlq-subscription '$(id)'",
        ),
    ],
)
def test_a_form_names_the_command_that_does_the_same(fields, command) -> None:
    """To be repeated in a shell."""
    assert command == JobForm.of(list(fields.items()), DLQ).command()


def test_the_name_of_a_topic_is_one_word_of_a_shell() -> None:
    """Anybody who may create topics chooses it, and a user copies it."""
    name = "persistent://shop/orders/$(id)-DLQ"
    assert f"pulsar-retry redrive '{name}'" == JobForm(source=name).command()


def test_a_form_is_about_the_time_of_its_dry_run() -> None:
    """It may be confirmed a day later: more letters would then be older than an hour."""
    form = JobForm.of([("filter", "reason=odd until=1h since=2026-01-31T12:00Z")], DLQ).settled()
    (until,), (since,) = form.query.values("until"), form.query.values("since")
    age = datetime.now(UTC) - datetime.fromisoformat(until)
    assert timedelta(hours=1) <= age < timedelta(hours=1, minutes=1)
    assert "2026-01-31T12:00:00+00:00" == since
    assert ["odd"] == form.query.values("reason")
    assert form == form.settled() == JobForm.of(form.pairs(), DLQ)
