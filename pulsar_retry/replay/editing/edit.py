"""An edit of dead letters: a function of a letter, with a name and an identity. Pure."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from pulsar_retry._extras import need
from pulsar_retry.errors import ConfigError, PayloadError, shown
from pulsar_retry.replay.editing.content import LetterContent

#: Returns the edited letter, or None to leave the letter where it is. If it raises, the letter
#: stays, too, and the redrive reports why.
EditFunction = Callable[[LetterContent], LetterContent | None]

_PATCH = "a JSON patch (a list, RFC 6902) or a JSON merge patch (an object, RFC 7396)"


@attrs.frozen(kw_only=True)
class Edit:
    """What a redrive changes in each letter.

    A letter that dies again after an edit is not changed by the same edit again. Edits are the same
    if they have the same name and do the same.

    Attributes:
        name: A name for people, such as ``fixes:amount``.
        function: Does the edit. It must depend on nothing but the letter, because it is also called
            for the dry run, and again after a kill.
        digest: Identifies what the edit does.
        by: Who edits; None for the user and the host of the process.
        why: The reason, for the archive.
        job: The id of the command, which the archived originals have as ``ARCHIVED_JOB``; None for
            that of the redrive.
    """

    name: str
    function: EditFunction = attrs.field(eq=False, repr=False)
    digest: str
    by: str | None = None
    why: str | None = None
    job: str | None = None

    @classmethod
    def of_function(
        cls,
        function: EditFunction,
        name: str | None = None,
        *,
        by: str | None = None,
        why: str | None = None,
        job: str | None = None,
    ) -> Edit:
        """Return the edit that a function does.

        Args:
            function: Gets a `LetterContent` and returns another one. None leaves the letter where
                it is. An exception does so, too, and the report has its text.
            name: A name; None for that of the function, with its module.
            by: See `Edit`.
            why: See `Edit`.
            job: See `Edit`.

        Raises:
            ConfigError: *function* cannot be called.
        """
        if not callable(function):
            raise ConfigError.bad("function", function, "a function that takes a letter")
        inner: Any = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        called = getattr(inner, "__qualname__", type(inner).__qualname__)
        module = getattr(inner, "__module__", None) or "?"
        return cls(
            name=name or f"{module}:{called}",
            function=function,
            digest=_digest(_source_of(inner) + _values_of(function)),
            by=by,
            why=why,
            job=job,
        )

    @classmethod
    def of_patch(
        cls,
        patch: Sequence[Any] | Mapping[str, Any] | str,
        name: str = "patch",
        *,
        by: str | None = None,
        why: str | None = None,
        job: str | None = None,
    ) -> Edit:
        """Return the edit of a patch, which changes the value of the payload.

        Args:
            patch: A JSON patch (a list of operations, RFC 6902), or a JSON merge patch (an object,
                RFC 7396), or the text of one. A JSON patch with ``test`` refuses other letters.
            name: A name for people, such as the name of its file.
            by: See `Edit`.
            why: See `Edit`.
            job: See `Edit`.

        Raises:
            ConfigError: it is no patch.
            ModuleNotFoundError: a JSON patch needs `jsonpatch`.
        """
        read: Any = patch
        if isinstance(patch, str):
            try:
                read = json.loads(patch)
            except ValueError as error:
                raise ConfigError(f"patch: expected {_PATCH}: {error}") from None
        if isinstance(read, Mapping):
            function = _merge(read)
        elif isinstance(read, Sequence) and not isinstance(read, str):
            function = _json_patch(list(read))
        else:
            raise ConfigError.bad("patch", patch, _PATCH)
        digest = _digest(json.dumps(read, sort_keys=True, ensure_ascii=False))
        return cls(name=name, function=function, digest=digest, by=by, why=why, job=job)

    @property
    def id(self) -> str:
        """The name and the identity, as edited letters have it in ``EDITED_WITH``."""
        return f"{self.name}@{self.digest}"

    def apply(self, letter: LetterContent) -> LetterContent | None:
        """Return the edited letter, or None if the edit leaves it where it is.

        Raises:
            PayloadError: the letter is refused: the function has raised, or what it has returned
                cannot take the place of the letter.
        """
        try:
            edited: Any = self.function(letter)
        except PayloadError:
            raise
        except Exception as error:
            raise PayloadError(f"{type(error).__name__}: {shown(error)}") from error
        if edited is None:
            return None
        if not isinstance(edited, LetterContent):
            text = f"{self.name} returned {type(edited).__name__}: expected a LetterContent or None"
            raise PayloadError(text)
        return edited.checked_against(letter)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]


def _source_of(function: Any) -> str:
    """Return the source of the module of a function, whose other parts it may call."""
    for each in (inspect.getmodule(function), function):
        try:
            return inspect.getsource(each)  # type: ignore[arg-type] # None raises TypeError
        except (OSError, TypeError):
            continue
    return str(getattr(function, "__qualname__", function))


def _values_of(function: Any) -> str:
    """Return what a function got when it was made: by a partial, or from the function around it."""
    found: list[Any] = []
    while isinstance(function, functools.partial):
        found += [function.args, function.keywords]
        function = function.func
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    if not found:
        return ""
    # Of other objects only the class: their texts may differ from process to process.
    try:
        return json.dumps(found, default=lambda each: type(each).__qualname__, skipkeys=True)
    except (ValueError, RecursionError):  # an object that contains itself
        return str(len(found))


def _merge(patch: Mapping[str, Any]) -> EditFunction:
    def edit(letter: LetterContent) -> LetterContent:
        return letter.with_value(merged(letter.value, patch))

    return edit


def merged(value: Any, patch: Any) -> Any:
    """Return *value* with a JSON merge patch applied, as the pseudo code of RFC 7396 does it."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    result = dict(value) if isinstance(value, dict) else {}
    for name, each in patch.items():
        if each is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), each)
    return result


def _json_patch(operations: list[Any]) -> EditFunction:
    need("cli", "a JSON patch", "jsonpatch")
    import jsonpatch  # noqa: PLC0415 - an extra

    try:
        patch = jsonpatch.JsonPatch(operations)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise ConfigError(f"patch: expected {_PATCH}: {error}") from None

    def edit(letter: LetterContent) -> LetterContent:
        return letter.with_value(patch.apply(letter.value))

    return edit
