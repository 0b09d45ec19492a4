"""A failure leaves the same dead letter, wherever its handler runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

import pulsar_retry as pr
from support.pull import failing
from support.reading import SUBSCRIPTION, read_all

#: A handler of each worker form, and the subscriber's options.
FORMS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "threads": (failing.handle, {}),
    "asyncio": (failing.handle_async, {}),
    "processes": (failing.handle, {"workers": "processes"}),
}

#: What differs between two messages that fail in the same way.
OWN = ("ORIGIN_MESSAGE", "REAL_TOPIC", "RETRY_TOPIC", "FAILURE_TIME", "FAILURE_PUBLISH_TIME")


def told(letter: pulsar.Message) -> dict[str, Any]:
    """Return what a dead letter says about its failure."""
    properties = letter.properties()
    said: dict[str, Any] = {
        name: text for name, text in properties.items() if not name.startswith(OWN)
    }
    if trace := said.get("FAILURE_TRACEBACK"):  # each form has its own handler
        trace = re.sub(r", line \d+, in handle\w*\n", "", trace)
        # Where a long one is cut depends on the length of the handler's name.
        said["FAILURE_TRACEBACK"] = trace[-7000:] if trace.startswith("…") else trace
    return said


@pytest.fixture
def dead_letters_of(
    client: pr.Client, topic: str, publish: Callable[..., Any]
) -> Callable[[str], dict[bytes, dict[str, Any]]]:
    """Return a function that has all ways to fail tried in a worker form, once."""

    def dead_letters_of(form: str) -> dict[bytes, dict[str, Any]]:
        handler, options = FORMS[form][0], {**FORMS[form][1]}
        at = f"{topic}-{form.replace(' ', '-')}"
        for payload in failing.WAYS:
            more = {"properties": {"text": b"\xff"}} if payload == b"properties" else {}
            publish(payload, topic=at, **more)
        options |= {"retry_policy": failing.POLICY, "breaker": None}  # all of them fail
        worker = client.subscriber(at, SUBSCRIPTION, handler, concurrency=2, **options)
        count = len(failing.WAYS) - 1
        with worker:
            letters = read_all(client, f"{at}-{SUBSCRIPTION}-DLQ", count)
        assert (1, count) == (worker.result().dropped, worker.result().dead_lettered)
        return {letter.data(): told(letter) for letter in letters}

    return dead_letters_of


@pytest.mark.parametrize("form", list(FORMS)[1:])
def test_each_form_tells_the_same(dead_letters_of, form):
    """Class, text, traceback, fingerprint, reason and count, whatever is raised."""
    expected, found = dead_letters_of("threads"), dead_letters_of(form)
    assert expected == found
