"""The options that several verbs have, how a verb gets its options, and errors about them."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from pulsar_retry.errors import ConfigError
from pulsar_retry.wire.names import Naming

__all__ = [
    "FILE",
    "address",
    "as_argument",
    "by_options",
    "dry_run_option",
    "example",
    "limit_option",
    "naming_option",
    "rate_option",
    "text_of_file",
    "with_options",
    "yes_option",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Decorator = Callable[[_Command], _Command]

_LAST_PORT = 65_535
#: The beginning of an error: the name of an argument, before ``=value`` or a colon.
_FIRST = re.compile(r"(\w+)(?:=(?:True(?=: ))?|(?=: ))")
#: An argument that the error recommends, such as ``wrapped=False``.
_ADVICE = re.compile(r"\b(\w+)=(True|False)\b")

#: The type of an option that names a file.
FILE = click.Path(dir_okay=False, path_type=Path)


def example(command: str) -> str:
    """Return the end of a verb's help."""
    return f"\b\nExample:\n  {command}"


dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would be done.")
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
        help=f"That of the {topics}: {', '.join(each.value for each in Naming)}.",
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


def text_of_file(
    name: str, path: Path | None, accepted: str = "a file that holds a secret"
) -> str | None:
    """Return the content of a file, without white space around it; None if there is no file.

    Raises:
        ConfigError: the file cannot be read. The error does not show its content.
    """
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError.bad(name, f"{path} ({type(error).__name__})", accepted) from None


def by_options(
    error: ConfigError, command: click.Command, others: Mapping[str, str]
) -> ConfigError:
    """Return *error* with the names of options in place of Python's argument names.

    Args:
        error: The error.
        command: The command with the options.
        others: More options, by their names in the error, such as ``wrapped=False``.
    """
    options: dict[str, str] = {}
    for each in command.params:
        if isinstance(each, click.Option) and each.name is not None:
            option = each.opts[0]
            options |= {each.name: option, option.removeprefix("--").replace("-", "_"): option}
    options |= others

    def named(match: re.Match[str]) -> str:
        return options.get(match[0]) or options.get(match[1]) or match[0]

    text = str(error)
    if (first := _FIRST.match(text)) is not None and first[1] in options:
        value = text[first.end() :]
        text = f"{options[first[1]]}{'' if value.startswith(':') else ' '}{value}"
    return ConfigError(_ADVICE.sub(named, text))
