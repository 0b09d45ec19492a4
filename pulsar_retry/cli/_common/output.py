"""The output of verbs: tables, JSON, progress, questions, and the end by Ctrl-C."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import click

from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.formatting import clean, json_text, one_line, words_of_age

__all__ = [
    "ask",
    "check_can_ask",
    "clean",
    "progress",
    "show_json",
    "table",
    "until_interrupted",
    "words_of_age",
]

#: Seconds from one line of a log to the next, and from one state of a terminal to the next.
_LOG_SECONDS, _REDRAW_SECONDS = 10.0, 0.2


def show_json(facts: Any, *, lines: bool = False) -> None:
    """Print *facts* as JSON; with *lines* on one line."""
    click.echo(json_text(facts, None if lines else 2))


def table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()
) -> None:
    """Print rows below the names of their columns, aligned with spaces.

    Args:
        columns: The names of the columns; those that begin with ``#`` contain numbers.
        rows: The rows.
        notes: A text below the names, and one below each row; an empty one is left out.
    """
    texts = [["" if cell is None else one_line(str(cell)) for cell in row] for row in rows]
    lines = [[name.lstrip("#") for name in columns], *texts]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    align = [str.rjust if name.startswith("#") else str.ljust for name in columns]
    for line, note in zip_longest(lines, notes, fillvalue=""):
        cells = (put(cell, width) for put, cell, width in zip(align, line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
        if note:
            click.echo(f"{'':<{widths[0]}}  {one_line(note)}")


class Show(Protocol):
    """Shows progress."""

    def __call__(self, done: float, total: float | None, words: str = "") -> None:
        """Show what is done, the total if it is known, and in words what else there is to say."""


@contextlib.contextmanager
def progress(what: str, topic: str | None = None) -> Iterator[Show]:
    """Yield a function that shows progress on standard error: what is done, the total, and words.

    A terminal also shows the rate, and the time that is left if the total is known. Elsewhere, a
    verb that changes a *topic* writes a line every ten seconds, except with ``--json``; other verbs
    write nothing there.
    """
    on_terminal, began = sys.stderr.isatty(), time.monotonic()
    context = click.get_current_context(silent=True)
    is_json = context is not None and bool(context.params.get("as_json"))
    due = began if on_terminal else began + _LOG_SECONDS

    def show(done: float, total: float | None, words: str = "") -> None:
        nonlocal due
        now = time.monotonic()
        if now < due or not (on_terminal or (topic and not is_json)):
            return
        said = f"{done:.0f}{'' if total is None else f' of {total:.0f}'} {what}"
        more = f" ({words})" if words else ""
        if on_terminal:
            due, rate = now + _REDRAW_SECONDS, done / max(0.001, now - began)
            left = f", {words_of_age((total - done) / rate)} left" if total and rate else ""
            _redraw(f"{said}, {rate:.0f}/s{left}{more}")
        else:
            due = now + _LOG_SECONDS
            click.echo(clean(f"{topic}: {said}{more}"), err=True)

    if on_terminal:
        _redraw(f"{what} …")
    try:
        yield show
    finally:
        if on_terminal:
            _redraw("")


def _redraw(text: str) -> None:
    """Write over the terminal's last line."""
    width = shutil.get_terminal_size().columns - 1
    click.echo(f"\r\x1b[K{one_line(text)[:width]}", nl=False, err=True)


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """End the body without an error at Ctrl-C, and at SIGTERM, which service managers send."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
