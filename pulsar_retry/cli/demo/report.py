"""The demo's output: its steps, live progress, and the table at the end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from pulsar_retry.cli.demo.account import Account, DeadRecord
from pulsar_retry.cli.demo.pipeline import DELAY_LEVELS, WorkCount

__all__ = ["Storyteller"]

_LINE_EVERY = 1.0  # seconds between lines outside a terminal
_SHOWN_KEYS = 10


class Storyteller:
    """Prints the steps of the demo: with colours and a bar on a terminal, else in plain lines."""

    def __init__(self, *, stderr: bool = False) -> None:
        self._console = Console(stderr=stderr, highlight=False, soft_wrap=True)

    def title(self, text: str) -> None:
        """Print the title."""
        self._console.print(f"[bold]{escape(text)}[/]")

    def step(self, name: str, text: str) -> None:
        """Print what comes next, or what was done."""
        self._console.print(f"[bold cyan]{name:<10}[/] {escape(text)}")

    def more(self, text: str) -> None:
        """Add a line to the last step."""
        self.step("", text)

    @contextlib.contextmanager
    def progress(self, total: int) -> Iterator[Callable[[WorkCount], None]]:
        """Yield a function that shows the progress of the workers; call it a few times a second."""
        if not self._console.is_terminal:
            yield self._lines(total)
            return
        columns = (
            TextColumn(" " * 10),
            BarColumn(20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=self._console) as bar:
            task = bar.add_task("", total=total)
            yield lambda tally: bar.update(
                task, completed=tally.settled, description=_in_words(tally)
            )

    def _lines(self, total: int) -> Callable[[WorkCount], None]:
        due = time.monotonic()

        def show(tally: WorkCount) -> None:
            nonlocal due
            if time.monotonic() >= due or tally.settled >= total:
                due = time.monotonic() + _LINE_EVERY
                self.more(f"{tally.settled} of {total}: {_in_words(tally)}")

        return show

    def table(self, account: Account, seconds: float) -> None:
        """Print where the records ended, and the throughput over *seconds*."""
        table = Table(box=box.SIMPLE, show_header=False)
        table.add_column(min_width=44)
        table.add_column(justify="right")
        table.add_row("[bold]published[/]", str(len(account.published)))
        table.add_section()
        table.add_row("[bold green]processed[/]", str(len(account.processed)))
        table.add_section()
        delays = DELAY_LEVELS.split()
        for (attempt, count), delay in zip(account.retried.items(), delays, strict=True):
            table.add_row(f"[yellow]retried[/], attempt {attempt} after {delay}", str(count))
        table.add_section()
        table.add_row("[bold red]dead-lettered[/]", str(len(account.dead)))
        for reason, count in account.reasons.items():
            table.add_row(f"  {escape(reason)}", str(count))
        table.add_section()
        rate = f"{len(account.published) / seconds:.0f} records/s"
        table.add_row(f"throughput, over {seconds:.1f} s with the delays", rate)
        self._console.print(table)

    def samples(self, letters: list[DeadRecord]) -> None:
        """Print dead letters with all of their properties."""
        for number, letter in enumerate(letters, 1):
            title = f"dead letter {number} of {len(letters)}: {letter.reason}"
            self._console.print(f"[bold]{escape(title)}[/]")
            rows = {"key": letter.key, "payload": letter.payload, **letter.properties}
            for name, value in rows.items():
                self._console.print(f"  [cyan]{escape(f'{name:<24}')}[/] {escape(value)}")
            self._console.print()

    def verdict(self, account: Account) -> None:
        """Print whether the account is balanced, and what is wrong if it is not."""
        if account.is_balanced:
            sums = f"{len(account.processed)} processed + {len(account.dead)} dead-lettered"
            text = f"{sums} = {len(account.published)} published: each accounted for by its key"
            self._console.print(f"[bold green]{text}[/]")
        for what, keys in (
            ("were neither processed nor dead-lettered", account.missing),
            ("were processed and dead-lettered", account.in_both),
            ("were never published", account.unknown),
        ):
            if keys:
                shown = ", ".join(keys[:_SHOWN_KEYS]) + (", …" if len(keys) > _SHOWN_KEYS else "")
                self._console.print(f"[bold red]FAILED[/] {len(keys)} {what}: {escape(shown)}")
        if account.copies:
            text = "copies, which at-least-once delivery permits: each record was counted once"
            self._console.print(f"{account.copies} {text}")


def _in_words(tally: WorkCount) -> str:
    counts = tally.counts
    words = f"{counts['processed']} processed, {counts['retried']} sent to retry"
    return f"{words}, {counts['dead']} dead"
