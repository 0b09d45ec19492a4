"""Consumers that are killed at every step of a hand-off."""

from __future__ import annotations

import pytest

from support.faults.crashing import STEPS, crash, native_trap
from support.faults.handing import WAYS, publish

#: For each step: when the process is killed, and what happens then.
WHEN = {
    "unsent": ("before the letter is sent", "The original is delivered again"),
    "sent": (
        "while the letter is in flight",
        "The original is delivered again, and the letter may be stored, too",
    ),
    "stored": (
        "after the letter is stored, before the consumer sees the receipt",
        "The letter is stored, and the original is delivered again",
    ),
    "receipt": (
        "after the receipt, before the acknowledgement",
        "The letter is stored, and the original is delivered again",
    ),
    "acknowledged": (
        "right after the acknowledgement",
        "The letter is stored; the original comes again if the acknowledgement was not yet sent",
    ),
    "acknowledgement sent": (
        "0.1 s or more after the acknowledgement",
        "The letter is stored, and the original is not delivered again",
    ),
}

COUNT, AT = 20, 5

BOUND = "letters in flight, and acknowledgements of the last 0.1 s"


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

    when, effect = WHEN[step]
    # A subscriber with two workers may have another letter in flight.
    bound, why = AT + 1, BOUND
    if step == "acknowledgement sent":
        bound, why = int(way == "subscriber"), "letters in flight"
    fault.survived(f"consumer killed {when}", effect, account, bound=bound, why=why)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_with_many_nacks_under_way(stage, fault, step, trap):
    """Nacks return at once, so all their dead letters may be in flight at the kill."""
    account = died(stage, fault, "nack", step, trap)

    when, effect = WHEN[step]
    acknowledgements_sent = step == "acknowledgement sent"
    fault.survived(
        f"consumer killed {when}, with {COUNT} nacks in progress",
        effect,
        account,
        bound=0 if acknowledgements_sent else COUNT,
        why="" if acknowledgements_sent else BOUND,
    )
