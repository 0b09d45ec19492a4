"""The options that several verbs have, and how a verb gets its options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import Naming

__all__ = [
    "address",
    "as_argument",
    "dry_run_option",
    "every_option",
    "example",
    "limit_option",
    "naming_option",
    "rate_option",
    "with_options",
    "yes_option",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[_Command], _Command]

_LAST_PORT = 65_535


def example(command: str) -> str:
    """Return the end of a verb's help."""
    return f"\b\nExample:\n  {command}"


dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
every_option = click.option(
    "--every",
    type=click.FloatRange(1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to ask the broker.",
)
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="The maximum number of letters."
)
rate_option = click.option("--rate", type=float, metavar="N", help="Messages per second.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def naming_option(topics: str) -> _Decorator[Any]:
    """Return the option for the naming dialect of some *topics*."""
    return click.option(
        "--naming",
        type=click.Choice([each.value for each in Naming]),
        default="pulsar",
        metavar="DIALECT",
        help=f"Names of the {topics}: {', '.join(each.value for each in Naming)}.",
    )


def with_options(*options: _Decorator[Any]) -> _Decorator[Any]:
    """Return a decorator that gives a command *options*; its help shows them in this order."""

    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def as_argument(
    name: str, make: Callable[[dict[str, Any]], Any], *options: _Decorator[Any]
) -> _Decorator[Any]:
    """Return a decorator that gives a command *options*, which it gets as one argument.

    Args:
        name: The name of the argument.
        make: Makes its value from the values of all options, and removes those that it uses.
        options: The options.
    """

    def decorate(command: Any) -> Any:
        def with_argument(**given: Any) -> Any:
            value = make(given)
            return command(**{name: value}, **given)

        return with_options(*options)(functools.update_wrapper(with_argument, command))

    return decorate


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of ``--listen``.

    Raises:
        ConfigError: the text is not an address with a port.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ConfigError.bad("listen", text, "an address and a port, such as 127.0.0.1:8090")
    return host.strip("[]"), int(port)
