"""The options that edit dead letters on their way."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pulsar_retry.cli._common.options import as_argument
from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.audit import Act
from pulsar_retry.replay.editing.edit import Edit
from pulsar_retry.replay.redriving.editor import DIFFS

__all__ = ["MakeEdit", "edit_options"]

#: Returns the edit of a command; None if there is none.
MakeEdit = Callable[[Act], Edit | None]


def _edit_of(transform: str | None, patch: str | None) -> Callable[..., Edit] | None:
    if transform is not None and patch is not None:
        raise ConfigError("--transform and --patch: expected only one of them")
    if transform is not None:
        return functools.partial(Edit.of_function, _function(transform), _name_of(transform))
    if patch is None:
        return None
    if patch.lstrip().startswith(("[", "{")):
        text, name = patch, "patch"
    else:
        try:
            text, name = Path(patch).read_text("utf-8"), Path(patch).name
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--patch: {patch} cannot be read: {error}") from None
    Edit.of_patch(text)  # checks it before anything is opened
    return functools.partial(Edit.of_patch, text, name)


def _make_edit_of(given: dict[str, Any]) -> MakeEdit:
    edit = _edit_of(given.pop("transform"), given.pop("patch"))

    def make_edit(act: Act) -> Edit | None:
        return None if edit is None else edit(by=act.by, why=act.why, job=act.job)

    return make_edit


#: Gives a command the options of an edit; the command gets them as `make_edit` and `diffs`.
edit_options = as_argument(
    "make_edit",
    _make_edit_of,
    click.option(
        "--transform",
        metavar="MODULE:FUNCTION",
        help="Change each letter by this function of a module, or of a file such as fixes.py. It "
        "gets a pulsar_retry.replay.LetterContent and returns another one, or None to leave it.",
    ),
    click.option(
        "--patch",
        metavar="FILE|JSON",
        help="Change each payload by a JSON patch (a list, RFC 6902) or a JSON merge patch (an "
        "object, RFC 7396).",
    ),
    click.option(
        "--diffs",
        type=click.IntRange(0, DIFFS),
        default=3,
        show_default=True,
        metavar="N",
        help="For how many letters a dry run shows the changes.",
    ),
)


def _name_of(transform: str) -> str:
    module, _, function = transform.rpartition(":")
    return f"{Path(module).stem if module.endswith('.py') else module}:{function}"


def _function(transform: str) -> Any:
    """Return the function that ``module:function`` or ``file.py:function`` names.

    The current folder is searched for the module first.

    Raises:
        ConfigError: there is no such function, or its module cannot be imported.
    """
    where, _, name = transform.rpartition(":")
    if not where or not name:
        raise ConfigError.bad("--transform", transform, "module:function, or file.py:function")
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
        return getattr(module, name)
    except Exception as error:
        text = f"--transform: {transform} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(text) from error


def _from_path(module: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    finally:
        sys.path.pop(0)


def _from_file(path: Path) -> Any:
    """Return the module in a file; other modules beside the file can be imported by it."""
    # A name of its own: a file may have that of a module that we or others import later.
    spec = importlib.util.spec_from_file_location(f"pulsar_retry_transform_{path.stem}", path)
    assert spec is not None  # noqa: S101 - the name ends with .py
    assert spec.loader is not None  # noqa: S101 - same
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # `inspect` finds its source so
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module
