"""Errors of worker processes keep their classes, causes and texts, whatever they are."""

from __future__ import annotations

import asyncio
import pickle
import sys
from types import ModuleType
from typing import Any, Self

import pytest

from pulsar_retry.pull.workers.pickled import dumps
from pulsar_retry.wire.stack import fingerprint_of, name_of, text_of, traceback_of
from support.pull import failing


def raised(way: bytes) -> BaseException:
    """Return what a way to fail raises."""
    try:
        failing.WAYS[way]()
    except BaseException as error:
        return error
    pytest.fail("it raises nothing")


def sent(error: BaseException) -> BaseException:
    """Return *error* as the parent of a worker process gets it."""
    copy = pickle.loads(dumps(error))
    assert isinstance(copy, BaseException)
    return copy


RAISING = [way for way in failing.WAYS if not way.startswith(b"returned")]


@pytest.mark.parametrize("way", RAISING)
def test_an_error_is_described_as_at_home(way: bytes) -> None:
    """Its name, text, traceback and fingerprint do not change; nor does what `isinstance` says."""
    error = raised(way)
    copy = sent(error)
    for what in (name_of, text_of, traceback_of, fingerprint_of):
        assert what(error) == what(copy)
    kinds = {failing.DeclinedError, failing.RefusedError} if way == b"local" else {type(error)}
    if way.startswith(b"own"):  # of a class that no other process can import, either
        kinds = {Exception}
    assert all(isinstance(copy, kind) for kind in kinds)


def test_attributes_that_can_travel_do() -> None:
    """An outcome keeps its reason, and what cannot be pickled is left out."""
    assert 9 == sent(failing.FrozenError(9)).code  # type: ignore[attr-defined]
    assert 4 == sent(failing.DeclinedError(code=4)).code  # type: ignore[attr-defined]
    assert "invalid-sum" == sent(failing.Invalid(field="sum")).reason  # type: ignore[attr-defined]
    status = sent(failing.StatusError(418, response=lambda: None))
    assert (418, ("it answered",)) == (status.status, status.args)  # type: ignore[attr-defined]
    assert not hasattr(status, "response")
    in_parts = sent(failing.StatusError(None, response=lambda: None))  # type: ignore[arg-type]
    assert in_parts.status is None  # type: ignore[attr-defined]


class StatefulError(Exception):
    """An error whose state is not in its attributes."""

    __slots__ = ("code",)

    def __setstate__(self, state: Any) -> None:
        self.code = state

    def __reduce__(self) -> Any:
        return StatefulError, self.args, self.code


class ConstantError(Exception):
    """An error of which there is one."""

    def __reduce__(self) -> str:
        return "CONSTANT"


CONSTANT = ConstantError("the only one")


def test_state_of_its_own() -> None:
    """An error keeps what it pickles itself, as `ImportError` keeps the name of the module."""
    assert "absent" == sent(ModuleNotFoundError("no", name="absent")).name  # type: ignore[attr-defined]
    error = StatefulError("m")
    error.code = 7
    assert 7 == sent(error).code  # type: ignore[attr-defined]
    assert sent(CONSTANT) is CONSTANT


@pytest.mark.parametrize("as_attribute", [False, True])
def test_a_class_that_only_the_other_process_has(
    monkeypatch: pytest.MonkeyPatch, as_attribute: bool
) -> None:
    """The error is of the nearest class that is known here; what else it has does not get lost."""
    module: Any = ModuleType("only_there")
    module.PluginError = type("PluginError", (TimeoutError,), {"__module__": "only_there"})
    with monkeypatch.context() as there:
        there.setitem(sys.modules, "only_there", module)
        error: BaseException = module.PluginError("too late")
        if as_attribute:
            error, cause = ConnectionError("too late"), error
            error.cause_of_it = cause  # type: ignore[attr-defined]
        data = dumps(error)
    copy = pickle.loads(data)
    assert (type(copy), "too late") == (
        ConnectionError if as_attribute else TimeoutError,
        str(copy),
    )
    assert name_of(error) == name_of(copy)


def test_what_it_was_raised_from_comes_along() -> None:
    """The cause, what was handled, and the members of a group: the policy judges them."""
    assert isinstance(sent(raised(b"cause")).__cause__, failing.RefusedError)
    in_context = sent(raised(b"context"))
    assert isinstance(in_context.__context__, failing.LockedError)
    assert not in_context.__suppress_context__
    group: Any = sent(raised(b"group"))
    assert [ValueError, failing.RefusedLockError] == [type(each) for each in group.exceptions]
    assert str(group) == str(raised(b"group"))


def test_endless_causes_do_not_matter() -> None:
    """Only the first ones come along."""
    error = ValueError("0")
    for number in range(1, 2000):
        outer = ValueError(str(number))
        outer.__cause__ = error
        error = outer
    assert "1999" == str(sent(error))


class PickyError(Exception):
    """An error that nobody can make but by its own method."""

    def __new__(cls, *, key: object) -> Self:
        """Refuse other keys."""
        if key is not KEY:
            raise PermissionError
        return super().__new__(cls, "made")

    def __init__(self, *, key: object) -> None:
        self.key = key


KEY = object()


def test_an_error_that_cannot_be_made_here() -> None:
    """Is one of its base class, by its own name."""
    copy = sent(PickyError(key=KEY))
    assert (Exception, "PickyError", "made") == (type(copy), name_of(copy), text_of(copy))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_what_ends_a_program_stays_that(kind: type[BaseException]) -> None:
    """Also with an argument that cannot be pickled."""
    assert kind is type(sent(kind(lambda: None)))


def test_the_main_module_has_one_name() -> None:
    """A process that was spawned imports it by another one; fingerprints must not differ."""

    def fingerprint(module: str) -> str:
        kind: Any = type("Declined", (ValueError,), {"__module__": module})
        return fingerprint_of(kind())

    assert fingerprint("__main__") == fingerprint("__mp_main__") != fingerprint("another")


def test_a_policy_decides_as_at_home() -> None:
    """By class, cause and member."""
    errors = [error for way in RAISING if isinstance(error := raised(way), Exception)]
    verdicts = [failing.POLICY.verdict(error) for error in errors]
    assert verdicts == [failing.POLICY.verdict(_exception(sent(error))) for error in errors]
    assert {"dead_letter", "drop", None} == set(verdicts)


def _exception(error: BaseException) -> Exception:
    assert isinstance(error, Exception)
    return error
