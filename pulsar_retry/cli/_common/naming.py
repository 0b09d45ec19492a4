"""Errors about arguments, with the names of the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

from pulsar_retry.errors import ConfigError

__all__ = ["by_options"]

#: The beginning of an error: the name of an argument, before ``=value`` or a colon.
_FIRST = re.compile(r"(\w+)(?:=(?:True(?=: ))?|(?=: ))")
#: An argument that the error recommends, such as ``wrapped=False``.
_ADVICE = re.compile(r"\b(\w+)=(True|False)\b")


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
