"""The output of verbs: tables and bars on a terminal, plain lines and JSON elsewhere."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.formatting import clean, one_line, words_of_age

__all__ = [
    "aligned",
    "ask",
    "busy",
    "check_can_ask",
    "clean",
    "progress",
    "show_json",
    "table",
    "words_of_age",
]

#: Seconds from one line of a log to the next.
_LOG_SECONDS = 10.0


def show_json(facts: Any, *, lines: bool = False) -> None:
    """Print *facts* as JSON; with *lines* on one line."""
    click.echo(json.dumps(facts, ensure_ascii=False, indent=None if lines else 2))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table. Outside a terminal, its columns are aligned only with spaces.

    Columns whose name begins with ``#`` contain numbers.
    """
    names = [name.lstrip("#") for name in columns]
    if not sys.stdout.isatty():
        aligned(names, rows)
        return
    texts = _texts(rows)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, column in zip(names, columns, strict=True):
        shown.add_column(name, justify="right" if column[0] == "#" else "left", overflow="fold")
    for row in texts:
        shown.add_row(*map(escape, row))
    Console(highlight=False).print(shown)


def aligned(
    names: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()
) -> None:
    """Print rows below the names of their columns, aligned with spaces.

    Args:
        names: The names of the columns.
        rows: The rows.
        notes: A text below each row; an empty one is left out.
    """
    lines = [list(names), *_texts(rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line, note in zip_longest(lines, ["", *notes], fillvalue=""):
        click.echo("  ".join(map(str.ljust, line, widths)).rstrip())
        if note:
            click.echo(f"{'':<{widths[0]}}  {one_line(note)}")


def _texts(rows: Sequence[Sequence[object]]) -> list[list[str]]:
    return [["" if cell is None else one_line(str(cell)) for cell in row] for row in rows]


class _Rate(ProgressColumn):
    """Shows how many are done per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class _Count(ProgressColumn):
    """Shows how many are done, and of how many if that is known."""

    def render(self, task: Task) -> Text:
        of = "" if task.total is None else f"/{task.total:.0f}"
        return Text(f"{task.completed:.0f}{of}")


class Show(Protocol):
    """Shows progress."""

    def __call__(self, done: float, total: float | None, words: str = "") -> None:
        """Show what is done, the total if it is known, and in words what else there is to say."""


@contextlib.contextmanager
def progress(what: str, topic: str | None = None) -> Iterator[Show]:
    """Yield a function that shows progress on standard error: what is done, the total, and words.

    The rate, and the time that is left if the total is known, are shown, too. If standard error is
    not a terminal, a verb that changes a *topic* writes a line every ten seconds, except with
    ``--json``. Other verbs write nothing there.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        context = click.get_current_context(silent=True)
        is_json = context is not None and bool(context.params.get("as_json"))
        yield _nothing if topic is None or is_json else _lines(what, topic)
        return
    columns = (
        *(SpinnerColumn(), TextColumn(what), BarColumn(30), _Count()),
        *(_Rate(), TimeRemainingColumn(compact=True), TextColumn("{task.description}")),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(done: float, total: float | None, words: str = "") -> None:
            bar.update(task, completed=done, total=total, description=escape(clean(words)))

        yield show


def _nothing(done: float, total: float | None, words: str = "") -> None:
    """Show nothing."""


def _lines(what: str, topic: str) -> Show:
    due = time.monotonic() + _LOG_SECONDS

    def tell(done: float, total: float | None, words: str = "") -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _LOG_SECONDS
            of = "" if total is None else f" of {total:.0f}"
            more = f" ({words})" if words else ""
            click.echo(clean(f"{topic}: {done:.0f}{of} {what}{more}"), err=True)

    return tell


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Show on a terminal for how long something takes that cannot say how far it is."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn(what), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        bar.add_task("", total=None)
        yield


def check_can_ask(*, yes: bool) -> None:
    """Check that there is a terminal to ask on, unless *yes* is set.

    Raises:
        ConfigError: there is no terminal.
    """
    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("this command asks for confirmation, but there is no terminal: add --yes")


def ask(question: str) -> None:
    """Ask whether to continue.

    Raises:
        click.Abort: the answer is no.
    """
    click.confirm(question, abort=True, err=True)
