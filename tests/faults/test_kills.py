"""Consumers that are killed at every step of a hand-off."""

from __future__ import annotations

import pytest

from support.faults.crashing import STEPS, crash, native_trap
from support.faults.handing import WAYS, publish

#: For each step: when the process is killed.
WHEN = {
    "unsent": "before the letter is sent",
    "sent": "while the letter is in flight",
    "stored": "after the letter is stored, before the consumer sees the receipt",
    "receipt": "after the receipt, before the acknowledgement",
    "acknowledged": "right after the acknowledgement",
    "acknowledgement sent": "0.1 s or more after the acknowledgement",
}

COUNT, AT = 20, 5


@pytest.fixture(scope="module", params=["Python", "C++"])
def trap(request, tmp_path_factory):
    """Give what kills a process at a step of hand-offs in C++; None: for hand-offs in Python."""
    if request.param == "Python":
        return None
    try:
        return native_trap(tmp_path_factory.mktemp("trap"))
    except LookupError as why:
        pytest.skip(f"skipped, because {why}")


def died(stage, fault, way, step, trap):
    """Kill a process during a hand-off, finish its work in this one, and return the account."""
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    assert -9 == crash(stage.url, stage.topic, stage.ledger, way, step, AT, trap)
    fault.is_over()
    return stage.finish(WAYS[way])


@pytest.mark.parametrize("way", ["reconsume_later", "dead_letter", "subscriber"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_every_step_of_a_hand_off(stage, fault, way, step, trap):
    """Every message ends, at every step; duplicates are only of messages in hand at the kill."""
    account = died(stage, fault, way, step, trap)

    # Doubled are letters in flight, and acknowledgements of the last 0.1 s. A subscriber with two
    # workers may have another letter in flight.
    bound = int(way == "subscriber") if step == "acknowledgement sent" else AT + 1
    fault.survived(f"consumer killed {WHEN[step]}", account, bound=bound)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_with_many_nacks_under_way(stage, fault, step, trap):
    """Nacks return at once, so all their dead letters may be in flight at the kill."""
    account = died(stage, fault, "nack", step, trap)

    fault.survived(
        f"consumer killed at any step of a hand-off, with {COUNT} nacks in progress",
        account,
        bound=0 if step == "acknowledgement sent" else COUNT,
    )
