"""Which originals and copies an undo finds, without a broker."""

from __future__ import annotations

from typing import Any, cast

import pytest

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
