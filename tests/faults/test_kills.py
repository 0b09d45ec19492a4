"""Consumers that are killed at every step of a hand-off."""

from __future__ import annotations

import pytest

from support.faults.crashing import STEPS, crash
from support.faults.handing import WAYS, publish

#: What the process is at when it dies, and what follows.
WHEN = {
    "unsent": ("before the letter is sent", "the original comes again"),
    "sent": ("while the letter is on its way", "the original comes again, or both"),
    "stored": ("after the letter is stored, before its receipt is seen", "both live on"),
    "receipt": ("after the receipt, before the acknowledgement", "both live on"),
    "acknowledged": ("right after the acknowledgement", "maybe both, if it was still grouped"),
    "told": ("0.1 s or more after the acknowledgement", "the letter comes"),
}

COUNT, AT = 20, 5


def died(stage, fault, way, step):
    """Kill a process at a hand-off, finish its work in another, and return the account."""
    publish(stage.client, stage.topic, stage.ledger, COUNT)
    assert -9 == crash(stage.url, stage.topic, stage.ledger, way, step, AT)
    fault.is_over()
    return stage.finish(WAYS[way])


@pytest.mark.parametrize("way", ["reconsume_later", "dead_letter", "subscriber"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_every_step_of_a_hand_off(stage, fault, way, step):
    """Whatever the step and the way, each message ends; what ends twice was in hand just then."""
    account = died(stage, fault, way, step)

    when, effect = WHEN[step]
    # A subscriber of two workers has another letter on its way.
    bound, why = AT + 1, "letters in flight, and acknowledgements of the last 0.1 s"
    if step == "told":
        bound, why = int(way == "subscriber"), "letters in flight"
    fault.survived(f"consumer killed {when}", effect, account, bound=bound, why=why)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_with_many_nacks_under_way(stage, fault, step):
    """Nacks return at once, so at a kill all their dead letters may be under way."""
    account = died(stage, fault, "nack", step)

    when, effect = WHEN[step]
    fault.survived(
        f"consumer killed {when}, with {COUNT} nacks under way",
        effect,
        account,
        bound=0 if step == "told" else COUNT,
        why="letters in flight, and acknowledgements of the last 0.1 s",
    )
