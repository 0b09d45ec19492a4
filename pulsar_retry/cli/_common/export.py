"""Writes dead letters to a file: JSON Lines or CSV."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.ops.rows import as_csv
from pulsar_retry.replay.reading import LetterInPlace

__all__ = ["Export"]

#: The name that stands for standard output.
_STDOUT = "-"

#: Returns a letter as JSON-compatible values.
FactsOf = Callable[[LetterInPlace], dict[str, Any]]


class Export:
    """Writes letters to a file, or to standard output."""

    def __init__(self, output: str | None, *, force: bool) -> None:
        """Check what can be checked before anything is read.

        Args:
            output: The file; its extension sets the format. None or ``-`` means standard output.
            force: Whether an existing file is replaced.

        Raises:
            ConfigError: the file exists.
        """
        self._output = None if output == _STDOUT else output
        self._force = force
        if self._output is not None:
            _check_is_new(Path(self._output), force=force)

    def write(
        self,
        letters: Iterable[LetterInPlace],
        limit: int | None,
        tell: Callable[[float, float | None], None],
        facts_of: FactsOf,
    ) -> int:
        """Write *letters*, at most *limit*, and return how many were written.

        Args:
            letters: The letters.
            limit: How many at most; None for all.
            tell: Called with the number of letters that are written, and of all.
            facts_of: Returns a letter as JSON-compatible values.

        Raises:
            ConfigError: the file has been created by another process meanwhile.
            PulsarRetryError: the file cannot be written.
        """
        told = _counted(islice(letters, limit), limit, tell)
        counted = map(facts_of, told)
        if self._output is None:
            return _write_lines(sys.stdout, counted)
        try:
            with _complete(Path(self._output), force=self._force) as path:
                write = _write_csv if self._output.endswith(".csv") else _write_lines
                # The csv module ends lines itself.
                with path.open("w", encoding="utf-8", newline="") as file:
                    return write(file, counted)
        except OSError as error:
            raise PulsarRetryError(f"{self._output} cannot be written: {error}") from None


def _counted(
    letters: Iterable[LetterInPlace], limit: int | None, tell: Callable[[float, float | None], None]
) -> Iterator[LetterInPlace]:
    for number, each in enumerate(letters, 1):
        if number % 500 == 0:
            tell(number, limit)
        yield each


def _write_lines(file: IO[str], letters: Iterable[dict[str, Any]]) -> int:
    count = 0
    for count, facts in enumerate(letters, 1):  # noqa: B007 - it is what is returned
        file.write(json.dumps(facts, ensure_ascii=False) + "\n")
    return count


def _write_csv(file: IO[str], letters: Iterable[dict[str, Any]]) -> int:
    count = -1  # the first line has the names of the columns
    for count, text in enumerate(as_csv(letters)):  # noqa: B007 - likewise
        file.write(text)
    return count


# -- the file -------------------------------------------------------------------------------------


def _check_is_new(target: Path, *, force: bool) -> None:
    if target.is_dir():
        raise ConfigError.bad("--output", str(target), "a file")
    if target.is_file() and not force:
        raise ConfigError(f"--output: {target} exists; --force replaces it")


@contextlib.contextmanager
def _complete(target: Path, *, force: bool) -> Iterator[Path]:
    """Yield a temporary file beside *target*; it replaces *target* when it is complete."""
    if target.exists() and not target.is_file():  # a pipe or a device, which must not be replaced
        yield target
        return
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(handle)
    path = Path(name)
    try:
        yield path
        _check_is_new(target, force=force)
        if target.exists():
            shutil.copymode(target, path)  # a new file is for its owner only: it has payloads
        path.replace(target)
    finally:
        path.unlink(missing_ok=True)
