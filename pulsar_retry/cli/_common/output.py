"""What verbs print: tables and bars on a terminal, plain lines and JSON elsewhere."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.formatting import clean, words_of_age

__all__ = ["ask", "check_can_ask", "clean", "progress", "show_json", "table", "words_of_age"]


def show_json(facts: Any, *, lines: bool = False) -> None:
    """Print *facts*; *lines*: on one line."""
    click.echo(json.dumps(facts, ensure_ascii=False, indent=None if lines else 2))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; elsewhere than on a terminal its columns are aligned with spaces alone.

    Columns whose name begins with ``#`` hold numbers.
    """
    texts = [["" if cell is None else clean(str(cell)) for cell in row] for row in rows]
    names = [name.lstrip("#") for name in columns]
    if not sys.stdout.isatty():
        _plain(names, texts)
        return
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, column in zip(names, columns, strict=True):
        shown.add_column(name, justify="right" if column[0] == "#" else "left", overflow="fold")
    for row in texts:
        shown.add_row(*map(escape, row))
    Console(highlight=False).print(shown)


def _plain(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [names, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[float, float | None], None]]:
    """Give what shows how much is done, and of how much, on standard error.

    It shows nothing where that is no terminal.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(30), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def check_can_ask(*, yes: bool) -> None:
    """See that somebody can be asked, unless that is not needed.

    Raises:
        ConfigError: there is nobody.
    """
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("this changes something and there is no terminal to ask: say --yes")


def ask(question: str) -> None:
    """Ask whether to go on.

    Raises:
        click.Abort: no.
    """
    click.confirm(question, abort=True, err=True)
