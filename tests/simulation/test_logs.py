"""Logs of fault tests that are behaviours of the model, and logs that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.model.logs import check_log
from support.model.witness import NotABehaviourError

SENT = "sent 7 1"
FIRST = "delivered 7 1 main 0 5:0:-1:-1"
ASKED = "retried 7 1 main 0 5:0:-1:-1"
AGAIN = "delivered 7 2 retry 1 6:0:-1:-1"
TWIN = "delivered 7 2 retry 1 6:1:-1:-1"
DONE = "processed 7 2 retry 1 6:0:-1:-1"
TWIN_DONE = "processed 7 2 retry 1 6:1:-1:-1"
SECOND = "delivered 7 2 retry 2 6:2:-1:-1"
SECOND_DONE = "processed 7 2 retry 2 6:2:-1:-1"
DEAD = "dead 7 3 dlq 0 8:0:-1:-1"


def checked(tmp_path: Path, lines: list[str]) -> dict[str, int]:
    """Check a log of these lines."""
    log = tmp_path / "ledger"
    log.write_text("\n".join(lines) + "\n", encoding="ascii")
    return dict(check_log(log, retries=2))


@pytest.mark.parametrize(
    ("lines", "assumed"),
    [
        ([SENT, FIRST, ASKED, AGAIN, DONE], {}),
        ([SENT, FIRST, DEAD], {}),
        # The acknowledgement was lost, so a second letter was made; or the connection broke.
        ([SENT, FIRST, ASKED, FIRST, ASKED, AGAIN, DONE, TWIN, TWIN_DONE], {"redeliver": 1}),
        ([SENT, FIRST, ASKED, AGAIN, DONE, TWIN, TWIN_DONE], {"again": 1}),
        ([SENT, FIRST, ASKED, AGAIN, AGAIN, DONE], {"redeliver": 1}),
        # Refused once: no letter, and the message comes again.
        ([SENT, FIRST, ASKED, FIRST, ASKED, AGAIN, DONE], {"redeliver": 1}),
        # The process remembers its first attempt, so that the second letter counts both.
        ([SENT, FIRST, ASKED, FIRST, ASKED, SECOND, SECOND_DONE], {"redeliver": 1}),
        # The first of these letters is stored twice, so the order of the requests is not that of
        # the counts.
        (
            [SENT, FIRST, ASKED, FIRST, ASKED, AGAIN, DONE, TWIN, TWIN_DONE, SECOND, SECOND_DONE],
            {"redeliver": 1, "again": 1},
        ),
        # It remembers all attempts, also those whose letters were not stored.
        ([SENT, *[FIRST, ASKED] * 3, DEAD.replace("dlq 0", "dlq 2")], {"redeliver": 2}),
        # A copy is delivered again while it is handled, by another thread of the process.
        ([SENT, FIRST, FIRST, ASKED, ASKED, AGAIN, DONE, TWIN, TWIN_DONE], {"redeliver": 1}),
        ([SENT, FIRST, FIRST, ASKED, AGAIN, DONE, ASKED, SECOND, SECOND_DONE], {"redeliver": 1}),
    ],
)
def test_a_log_is_a_behaviour(tmp_path: Path, lines: list[str], assumed: dict[str, int]) -> None:
    """Only what the broker may do is assumed."""
    assert checked(tmp_path, lines) == {"messages": 1, **assumed}


@pytest.mark.parametrize(
    "lines",
    [
        [SENT, FIRST, AGAIN, DONE],  # a letter that nobody requested
        [SENT, FIRST, ASKED, AGAIN.replace("retry 1", "retry 2")],  # two attempts for one failure
        [SENT, FIRST, ASKED, AGAIN],  # it does not end
        [SENT, FIRST, ASKED, DEAD.replace("dlq 0", "dlq 2")],  # dead before its attempts
        # another process does not remember it
        [SENT, FIRST.replace("7 1", "7 9"), ASKED.replace("7 1", "7 9"), FIRST, ASKED, SECOND],
        [SENT, FIRST, ASKED, ASKED, AGAIN, DONE],  # two decisions about one delivery
        # dead after two attempts of three that it remembers
        [SENT, *[FIRST, ASKED] * 2, DEAD.replace("dlq 0", "dlq 2")],
    ],
)
def test_a_log_is_no_behaviour(tmp_path: Path, lines: list[str]) -> None:
    """Nothing else is assumed."""
    with pytest.raises(NotABehaviourError):
        checked(tmp_path, lines)
