"""The output of verbs: tables and bars on a terminal, plain lines and JSON elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Self

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
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
    "ask",
    "busy",
    "check_can_ask",
    "clean",
    "progress",
    "show_json",
    "table",
    "words_of_age",
]

#: The environment variable with the form of the lines for a log, its values, and the seconds from
#: one line to the next.
_LOG = "PULSAR_RETRY_LOG"
_LOG_FORMS = ("text", "json", "off")
_LOG_SECONDS = 10.0


def show_json(facts: Any, *, lines: bool = False) -> None:
    """Print *facts* as JSON; with *lines* on one line."""
    click.echo(json.dumps(facts, ensure_ascii=False, indent=None if lines else 2))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table. Outside a terminal, its columns are aligned only with spaces.

    Columns whose name begins with ``#`` contain numbers.
    """
    texts = [["" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
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


class _Rate(ProgressColumn):
    """Shows how many are done per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


@contextlib.contextmanager
def progress(
    what: str, topic: str | None = None, result: Callable[[], str] = lambda: "ok"
) -> Iterator[Callable[[float, float | None], None]]:
    """Yield a function that shows progress on standard error: what is done, and the total.

    The rate, and the time that is left if the total is known, are shown, too. If standard error is
    not a terminal, a verb that changes a *topic* writes lines for a log: when it begins, every ten
    seconds, and when it ends, with the *result* if no error was raised. Other verbs write nothing
    there.
    """
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        form = _log_form()
        if topic is None or form == "off":
            yield lambda _done, _total: None
        else:
            with _VerbLog(what, topic, result, as_json=form == "json") as log:
                yield log.tell
        return
    columns = (
        *(SpinnerColumn(), TextColumn(what), BarColumn(30), MofNCompleteColumn()),
        *(_Rate(), TimeRemainingColumn(compact=True)),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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


def _log_form() -> str:
    """Return ``text``, ``json`` or ``off``.

    Raises:
        ConfigError: the environment has another value.
    """
    context = click.get_current_context(silent=True)
    is_json = context is not None and bool(context.params.get("as_json"))
    form = os.environ.get(_LOG) or ("off" if is_json else "text")
    if form not in _LOG_FORMS:
        raise ConfigError.bad(_LOG, form, " or ".join(_LOG_FORMS))
    return form


class _VerbLog:
    """Writes lines with fields to standard error: at the start, in between, and at the end.

    If the work fails before it has begun, there is no line.
    """

    def __init__(self, what: str, topic: str, result: Callable[[], str], *, as_json: bool) -> None:
        context = click.get_current_context(silent=True)
        path = "" if context is None else context.command_path
        self._fields = {"verb": path.partition(" ")[2], "what": what, "topic": topic}
        self._result, self._as_json = result, as_json
        self._began = self._next = time.monotonic()
        self._has_begun = False
        self._so_far: tuple[float, float | None] = (0, None)

    def __enter__(self) -> Self:
        self._next += _LOG_SECONDS
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._has_begun:
            return  # the error is told anyway
        self._begin()
        result = self._result() if kind is None else kind.__name__
        self._write("end", result=result, **self._counts())

    def tell(self, done: float, total: float | None) -> None:
        """Record what is done, and write a line if the last one is ten seconds old."""
        self._begin()
        self._so_far = (done, total)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LOG_SECONDS
            self._write("progress", **self._counts())

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._write("start")

    def _counts(self) -> dict[str, Any]:
        (done, total), seconds = self._so_far, time.monotonic() - self._began
        rate = done / seconds if seconds else 0.0
        counts = {"done": done, "total": total, "seconds": round(seconds, 1), "rate": round(rate)}
        if total is not None and rate:
            counts["left_seconds"] = round(max(0.0, total - done) / rate)
        return {name: each for name, each in counts.items() if each is not None}

    def _write(self, event: str, **more: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        fields = {"at": now, "event": event, **self._fields, **more}
        if self._as_json:
            click.echo(json.dumps(fields, ensure_ascii=False), err=True)
        else:
            pairs = (f"{name}={_quoted(str(each))}" for name, each in fields.items())
            click.echo(clean(" ".join(pairs)), err=True)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"=]', text) else text


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
