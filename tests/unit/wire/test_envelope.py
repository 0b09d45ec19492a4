"""The failure envelope: what is told of an error, and what is kept from earlier failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.message import Message
from types import SimpleNamespace
from urllib.error import HTTPError

import attrs
import pytest

import pulsar_retry as pr

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PUBLISHED = NOW - timedelta(minutes=5)


def caught(raises: Callable[[], object]) -> BaseException:
    """Return what *raises* raises, with its traceback."""
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        raises()
    return caught.value


def no_amount(text: str = "no amount") -> None:
    """Raise an error as a handler does."""
    raise ValueError(text)


def told(error: BaseException | None, **changes: object) -> pr.Envelope:
    """Return the envelope of a failure."""
    arguments = {"attempt": 1, "when": NOW, "published": PUBLISHED} | changes
    return pr.Envelope.of(error, **arguments)  # type: ignore[arg-type]


def test_a_failure_in_full() -> None:
    """Where the message came from, what went wrong with it, and when."""
    envelope = told(
        caught(no_amount), reason="invalid", stage="decode", topic="orders", subscription="billing"
    )
    assert envelope.traceback is not None
    assert envelope.traceback.startswith("Traceback (most recent call last):\n")
    assert envelope.traceback.endswith("\nValueError: no amount\n")
    assert envelope.fingerprint is not None
    assert attrs.evolve(envelope, traceback=None) == pr.Envelope(
        topic="orders",
        subscription="billing",
        published=PUBLISHED,
        reason="invalid",
        stage="decode",
        error="ValueError",
        message="no amount",
        fingerprint=envelope.fingerprint,
        attempt=1,
        when=NOW,
    )


def test_a_retry_has_no_traceback() -> None:
    """A letter that comes back is read by a program."""
    envelope = told(caught(no_amount))
    assert (None, None) == (envelope.reason, envelope.traceback)


def test_an_outcome_that_was_returned_has_no_error() -> None:
    """There is nothing to tell but the reason."""
    envelope = told(None, reason="invalid")
    assert ("invalid", None, None, None) == (
        envelope.reason,
        envelope.error,
        envelope.message,
        envelope.traceback,
    )
    assert envelope.fingerprint == told(None, reason="invalid").fingerprint
    assert envelope.fingerprint != told(None, reason="other").fingerprint


def test_a_deep_traceback_is_told_by_its_end() -> None:
    """A recursion of thousands of frames makes no letter of megabytes."""

    def dive(depth: int) -> None:
        if not depth:
            no_amount()
        dive(depth - 1)

    traceback = told(caught(lambda: dive(500)), reason="invalid").traceback or ""
    assert len(traceback) < 10_000
    assert traceback.endswith("ValueError: no amount\n")


def fingerprint(error: BaseException) -> str | None:
    """Return the fingerprint of an error."""
    return told(error).fingerprint


def test_the_same_error_has_the_same_fingerprint() -> None:
    """Whatever its text, so that dead letters can be grouped."""
    one, other = (caught(lambda text=text: no_amount(text)) for text in ("no amount", "card 4711"))
    assert fingerprint(one) == fingerprint(other)
    assert len(fingerprint(one) or "") == 16


class HttpError(Exception):
    """An error of an HTTP client."""

    def __init__(self, name: str, value: object) -> None:
        """Say the status as *name*."""
        super().__init__(value)
        setattr(self, name, value)


@pytest.mark.parametrize(
    "error",
    [
        lambda status: HTTPError("http://x", status, "", Message(), None),
        lambda status: HttpError("status", status),
        lambda status: HttpError("response", SimpleNamespace(status_code=status)),
    ],
)
def test_http_errors_differ_by_status(error: Callable[[int], Exception]) -> None:
    """Of urllib, aiohttp, requests and httpx; other numbers say nothing."""
    assert 2 == len({fingerprint(error(status)) for status in (503, 404, 503)})
    assert fingerprint(error(7)) == fingerprint(error(1))


def test_other_errors_have_other_fingerprints() -> None:
    """By class, and by where they were raised."""

    def elsewhere() -> None:
        raise ValueError("no amount")

    def other_class() -> None:
        raise KeyError("no amount")

    errors = [caught(no_amount), caught(elsewhere), caught(other_class), ValueError(), KeyError()]
    assert 5 == len({fingerprint(error) for error in errors})


class Broken(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError


class BrokenToo(Exception):
    """One whose causes cannot be asked for."""

    @property
    def __cause__(self) -> BaseException:  # type: ignore[override]
        """Fail."""
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [
        Broken(),
        BrokenToo(),
        ExceptionGroup("several", [Broken()]),
        KeyboardInterrupt(),
        Exception(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_any_error_can_be_told(error: BaseException) -> None:
    """The message must reach the dead-letter topic all the same."""
    envelope = told(error, reason="invalid")
    assert type(error).__qualname__ == envelope.error
    assert envelope.message is not None


# -- redaction ------------------------------------------------------------------------------------


def test_redaction_sees_every_text() -> None:
    """Each under its name, and None leaves it out."""
    seen = {}

    def redact(name: str, text: str) -> str | None:
        seen[name] = text
        return None if name == "message" else text.replace("4711", "…")

    envelope = told(caught(lambda: no_amount("card 4711")), reason="card 4711")
    redacted = envelope.redacted(redact)
    assert {"reason", "message", "traceback"} == set(seen)
    assert ("card …", None) == (redacted.reason, redacted.message)
    assert redacted.traceback == (envelope.traceback or "").replace("4711", "…")


@pytest.mark.parametrize("broken", [lambda _name, _text: 1 / 0, lambda _name, _text: 5])
def test_what_cannot_be_redacted_is_left_out(broken: Callable[[str, str], str]) -> None:
    """Rather no text than a secret, and rather no text than no letter."""
    redacted = told(caught(no_amount), reason="invalid").redacted(broken)
    assert (None, None, None) == (redacted.reason, redacted.message, redacted.traceback)
    assert "ValueError" == redacted.error


def test_there_may_be_nothing_to_redact() -> None:
    """An absent text is not asked about."""
    assert pr.Envelope() == pr.Envelope().redacted(lambda _name, _text: "told")


def test_an_error_with_a_kind_has_no_traceback() -> None:
    """This package has raised it: its kind says more."""

    class NoAnswerError(pr.PulsarRetryError):
        kind = "timeout"

    def no_answer() -> None:
        raise NoAnswerError("no answer")

    envelope = told(caught(no_answer), reason="invalid")
    assert ("no answer", None) == (envelope.message, envelope.traceback)


def test_the_detail_of_an_error_is_in_its_letter() -> None:
    """It is not in its text, which is logged."""
    error = pr.PulsarRetryError("no answer")
    error.detail = "<html>"
    assert "no answer\n<html>" == told(error).message


def test_errors_with_a_kind_are_told_apart_by_it() -> None:
    """And by their class, wherever they were raised."""
    errors = [
        type(name, (pr.PulsarRetryError,), {"kind": kind})("no answer")
        for name, kind in (("A", "timeout"), ("A", "refused"), ("B", "timeout"))
    ]
    made = [told(each).fingerprint for each in errors]
    raised = [told(caught(lambda e=e: exec("raise e", {"e": e}))) for e in errors]
    assert made == [each.fingerprint for each in raised]
    assert 3 == len(set(made))
