"""The options that select dead letters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from pulsar_retry.admin.position import Position
from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.formatting import MOMENT, moment
from pulsar_retry.replay.filter import Filter

__all__ = ["filter_options", "moment"]

_Command = TypeVar("_Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--id", "ids", multiple=True, metavar="ID", help="A message id. Repeatable."),
    click.option(
        "--reason", multiple=True, metavar="TEXT", help="The reason of the dead letter. Repeatable."
    ),
    click.option(
        "--error", multiple=True, metavar="CLASS", help="The class of the error. Repeatable."
    ),
    click.option(
        "--fingerprint",
        multiple=True,
        metavar="HASH",
        help="The fingerprint of the failure. Repeatable.",
    ),
    click.option("--key", multiple=True, metavar="KEY", help="The partition key. Repeatable."),
    click.option(
        "--property",
        "properties",
        multiple=True,
        metavar="NAME=VALUE",
        help="A property and its value. Repeatable: all must match.",
    ),
    click.option(
        "--attempt", "attempts", type=int, multiple=True, metavar="N", help="The failed attempt."
    ),
    click.option(
        "--search",
        multiple=True,
        metavar="TEXT",
        help="A text in the reason, the error, a property or the payload. Repeatable: all must "
        "occur.",
    ),
    click.option("--since", metavar="TIME", help=f"Dead at or after this time: {MOMENT}."),
    click.option("--until", metavar="TIME", help="Dead before this time."),
)


def filter_options(command: _Command) -> _Command:
    """Give a command the filter options; the command gets them as one argument, `where`."""

    def with_filter(**options: Any) -> Any:
        where = Filter(
            reason=options.pop("reason"),
            error=options.pop("error"),
            fingerprint=options.pop("fingerprint"),
            key=options.pop("key"),
            ids=_ids(options.pop("ids")),
            attempt=options.pop("attempts"),
            search=options.pop("search"),
            properties=dict(_pair(each) for each in options.pop("properties")),
            since=moment("--since", options.pop("since")),
            until=moment("--until", options.pop("until")),
        )
        return command(where=where, **options)

    wrapped: Any = functools.update_wrapper(with_filter, command)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    result: _Command = wrapped
    return result


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError.bad("--property", text, "NAME=VALUE")
    return name, value


def _ids(texts: Sequence[str]) -> list[str]:
    """Return message ids in the form in which they are printed."""
    return [str(Position.parse(each)) for each in texts]
