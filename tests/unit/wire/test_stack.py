"""The text of a traceback is that of Python's own module, however often its place has raised."""

from __future__ import annotations

import traceback

import pytest

from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.wire import stack
from pulsar_retry.wire.stack import (
    described,
    fingerprint_of,
    formatted,
    of_handler,
    own_frame,
    place_of,
)


def simple(number):
    """Raise an error whose text depends on *number*."""
    raise ValueError(f"order {number}")


def with_cause(number):
    """Raise an error that has a cause."""
    try:
        simple(number)
    except ValueError as error:
        raise RuntimeError("it failed") from error


def in_context(_number):
    """Raise an error while another one is handled."""
    try:
        simple(1)
    except ValueError:
        [].pop()


def without_context(_number):
    """Raise an error that hides its context."""
    try:
        simple(1)
    except ValueError:
        raise KeyError("x") from None


def with_note(number):
    """Raise an error with a note."""
    error = ValueError("noted")
    error.add_note(f"at order {number}")
    raise error


def misspelled(_number):
    """Raise an error for which Python makes a suggestion."""
    return "".joim([])


def recursive(number):
    """Raise an error below many frames."""
    if number:
        recursive(number - 1)
    simple(number)


def group(_number):
    """Raise a group of errors."""
    raise ExceptionGroup("several", [ValueError("one"), TypeError("two")])


def not_code(_number):
    """Raise an error of source that does not parse."""
    compile("def", "there.py", "exec")


def empty(_number):
    """Raise an error without a text."""
    raise ValueError


class OfAModuleError(Exception):
    """A class of error that Python shows with its module."""

    def __str__(self):
        """Return one line, or two, or raise an error."""
        return [str(self.args), "one\ntwo", None][self.args[0] % 3]


def of_a_module(number):
    """Raise one."""
    raise OfAModuleError(number)


class OfMainError(Exception):
    """A class of error that Python shows without its module."""

    __module__ = "__main__"


def of_main(number):
    """Raise one."""
    raise OfMainError(number)


CASES = [
    of_a_module,
    of_main,
    simple,
    with_cause,
    in_context,
    without_context,
    with_note,
    misspelled,
]
CASES += [recursive, group, not_code, empty]


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.__name__)
@pytest.mark.parametrize("most", [1, 3, 30])
def test_the_text_is_pythons(case, most, monkeypatch):
    """The first time, and with other values from the same place."""
    monkeypatch.setattr(stack, "MAX_FRAMES", most)
    monkeypatch.setattr(stack, "_places", {})
    for number in (0, 1, 2, 50):
        try:
            case(number)
        except Exception as error:
            wanted = "".join(traceback.format_exception(error, limit=-most))
            found = formatted(error)
        assert wanted == found


def test_an_error_that_was_not_raised():
    """It has no frames."""
    error = ValueError("made")
    assert "".join(traceback.format_exception(error)) == formatted(error)


def test_many_places(monkeypatch):
    """Their texts do not fill the memory, and stay right."""
    monkeypatch.setattr(stack, "_places", {})
    for number in range(600):
        space: dict[str, object] = {}
        source = f"def raises():\n    raise ValueError({number})"
        exec(source, space)
        with pytest.raises(ValueError, match=str(number)) as caught:
            space["raises"]()
        wanted = "".join(traceback.format_exception(caught.value, limit=-30))
        assert wanted == formatted(caught.value)
        assert len(stack._places) <= stack._MOST


def test_a_place_is_read_once():
    """It is remembered with its code, so that no other code is taken for it."""
    trace = raises_in("/srv/shop").__traceback__
    place = place_of(trace)
    assert place is place_of(trace)
    assert trace.tb_frame.f_code in place.codes


def test_nothing_was_raised():
    """It has no place."""
    assert not place_of(None).function


def test_an_error_is_described_with_its_place():
    """In the application, if it came through that; by the names of a program's first process."""
    assert "/srv/shop/m.py:2 in f" == described(raises_in("/srv/shop", "/x/site-packages/h")).place
    error = type("Declined", (Exception,), {"__module__": "__mp_main__"})("no")
    assert ("", "Declined: no\n") == (described(error).place, described(error).traceback)
    own = type("OwnError", (PulsarRetryError,), {"kind": "timeout"})("no")
    assert described(own).traceback is None


def test_a_handlers_part_of_a_traceback():
    """What is around it depends on where it runs."""
    inner = "/x/pulsar_retry.pull.workers.threads", "/x/pulsar_retry.observe.spans"
    around = "/x/threading", *inner
    trace = of_handler(raises_in(*around, "/srv/shop", "/srv/till").__traceback__)
    assert ["shop", "till"] == [f.f_globals["__name__"] for f, _ in traceback.walk_tb(trace)]
    assert of_handler(raises_in(*around).__traceback__) is None


def test_classes_of_one_name():
    """Their errors are told apart by the module."""
    other = type("OfMainError", (Exception,), {"__module__": "shop"})
    assert fingerprint_of(OfMainError()) != fingerprint_of(other())


def raises_in(*folders: str) -> Exception:
    """Return an error that came through functions of modules in these folders, the outermost first.

    The module of a function is named like the last part of its folder.
    """
    call: object = None
    for folder in reversed(folders):
        space: dict[str, object] = {"inner": call, "__name__": folder.rpartition("/")[2]}
        body = "inner()" if call else "raise ValueError"
        exec(compile(f"def f():\n    {body}", f"{folder}/m.py", "exec"), space)
        call = space["f"]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the frames matter
        call()  # type: ignore[operator]
    trace = caught.value.__traceback__
    return caught.value.with_traceback(trace and trace.tb_next)  # without the test's own frame


STANDARD = stack._STANDARD[1]


@pytest.mark.parametrize(
    ("folders", "own"),
    [
        (["/srv/shop", "/srv/shop", "/x/site-packages/httpx", f"{STANDARD}/socket"], "shop"),
        (["/srv/outer", f"{STANDARD}/json", "/srv/inner"], "inner"),
        (["/x/site-packages/pulsar_retry", "/srv/shop", "/x/site-packages/pulsar_retry"], "shop"),
        (
            [f"{STANDARD}/asyncio", "/x/site-packages/app.jobs", "/x/site-packages/httpx"],
            "app.jobs",
        ),
        ([f"{STANDARD}/asyncio", f"{STANDARD}/json"], "json"),
        (["<frozen importlib>/importlib", "/x/dist-packages/app"], "app"),
    ],
)
def test_the_place_is_in_the_application(folders, own):
    """Not in a library that it called, unless there is nothing else."""
    frame, line = own_frame(raises_in(*folders).__traceback__)
    assert (own, 2) == (frame.f_globals["__name__"], line)


def test_there_is_no_place_in_this_package():
    """It raises errors that say themselves what they are of."""
    assert own_frame(raises_in("/srv/pulsar_retry.consumer.handoff").__traceback__) is None
