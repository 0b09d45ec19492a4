"""The options that select dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pulsar_retry.admin.position import Position
from pulsar_retry.cli._common.options import as_argument
from pulsar_retry.ops.formatting import moment, name_and_value
from pulsar_retry.replay.filter import Filter

__all__ = ["filter_options"]


def _filter_of(given: dict[str, Any]) -> Filter:
    return Filter(
        reason=given.pop("reason"),
        error=given.pop("error"),
        fingerprint=given.pop("fingerprint"),
        key=given.pop("key"),
        ids=_ids(given.pop("ids")),
        attempt=given.pop("attempts"),
        search=given.pop("search"),
        properties=dict(name_and_value("--property", each) for each in given.pop("properties")),
        since=moment("--since", given.pop("since")),
        until=moment("--until", given.pop("until")),
    )


#: Gives a command the filter options; the command gets them as one argument, `where`.
filter_options = as_argument(
    "where",
    _filter_of,
    click.option("--id", "ids", multiple=True, metavar="ID", help="A message id."),
    click.option("--reason", multiple=True, metavar="TEXT", help="The reason of the dead letter."),
    click.option("--error", multiple=True, metavar="CLASS", help="The class of the error."),
    click.option(
        "--fingerprint", multiple=True, metavar="HASH", help="The fingerprint of the failure."
    ),
    click.option("--key", multiple=True, metavar="KEY", help="The partition key."),
    click.option(
        "--property",
        "properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="A property and its value. If repeated, all must match.",
    ),
    click.option(
        "--attempt", "attempts", type=int, multiple=True, metavar="N", help="The failed attempt."
    ),
    click.option(
        "--search",
        multiple=True,
        metavar="TEXT",
        help="A text in a property or the payload. If repeated, all must occur.",
    ),
    click.option(
        "--since",
        metavar="TIME",
        help="Dead since 30m, 2h or 7d, or 2026-01-31T12:00Z (UTC without a zone).",
    ),
    click.option("--until", metavar="TIME", help="Dead before this time."),
)


def _ids(texts: Sequence[str]) -> list[str]:
    """Return message ids in the form in which they are printed."""
    return [str(Position.parse(each)) for each in texts]
