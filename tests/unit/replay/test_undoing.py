"""Which originals and copies an undo finds, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsar_retry.replay import Cluster, Redriven, Undo, Undone
from pulsar_retry.replay.archiving import copies

DLQ = "persistent://public/default/orders-billing-DLQ"
RETRY = "persistent://public/default/orders-billing-RETRY"


def original(place: str, *, command: str, redrive: str = "r1") -> dict[str, str]:
    """Return the properties of the original of an edited letter."""
    return {
        "ARCHIVED_AS": "edited",
        "ARCHIVED_FROM": f"{DLQ} {place}",
        "ARCHIVED_TO": RETRY,
        "ARCHIVED_JOB": command,
        "ARCHIVED_EDIT": redrive,
    }


@pytest.mark.parametrize("asked", ["r1", "a1", "a2"])
def test_a_redrive_that_was_resumed_is_undone_as_a_whole(monkeypatch, asked) -> None:
    """Copies name the redrive, so a command stands for all commands that have continued it."""
    letters = {
        f"{DLQ}-ARCHIVE": [
            original("1:0", command="a1"),
            original("1:1", command="a2"),
            original("1:2", command="a3", redrive="r2"),
        ],
        RETRY: [{"EDITED_JOB": "r1", "EDITED_FROM": f"{DLQ} 1:0"}],
    }
    monkeypatch.setattr(
        copies,
        "_letters",
        lambda _client, _admin, topic, _subscription: [
            (each, f"9:{number}") for number, each in enumerate(letters.get(topic, []))
        ],
    )
    for name in ("subscription_of_retry", "find_subscription"):
        monkeypatch.setattr(copies, name, lambda *_: "billing")
    nothing: Any = cast("Any", None)
    admin: Any = type("Admin", (), {"topics": type("T", (), {"exists": lambda *_: True})()})()
    seen = copies.survey_edit(nothing, admin, DLQ, asked)
    assert {f"{DLQ} 1:0", f"{DLQ} 1:1"} == set(seen.targets)
    assert ({"r1"}, {f"{DLQ} 1:0"}) == (seen.jobs, seen.waiting)


def test_letters_of_an_earlier_run_hide_none_that_stay(monkeypatch) -> None:
    """A restoration that is continued counts what the killed one has restored."""
    undo = Undo(DLQ, "r1", cluster=Cluster("pulsar://127.0.0.1:1"))
    seen = copies.EditSurvey(jobs={"r1"}, targets={f"{DLQ} 1:{each}": RETRY for each in range(10)})
    back = Redriven(source=DLQ, job="x", dry_run=False, redriven=95, left={"no_target": 5})
    step = SimpleNamespace(run=lambda _: back, cancel=lambda: None)
    monkeypatch.setattr(undo, "_restoring", lambda *_: step)
    plan = Undone(source=DLQ, job="r1", dry_run=False, edited=10)
    done = undo._restore(seen, set(), plan, [], lambda *_: None)
    assert not done.is_complete
