"""`pulsar-retry explain`: the schedule of a retry policy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import click

from pulsar_retry.cli._common.cluster import json_option
from pulsar_retry.cli._common.options import example
from pulsar_retry.cli._common.output import table
from pulsar_retry.policy.checks import text_of
from pulsar_retry.policy.dead_letter import DEFAULT_MAX_REDELIVER_COUNT
from pulsar_retry.policy.explain import PRESETS, SCHEDULE_SETTINGS, Schedule, Step, explain
from pulsar_retry.policy.outcomes import DeadLetter
from pulsar_retry.policy.retry import policy_of_texts

__all__ = ["command"]


@click.command(
    short_help="Show the schedule of a retry policy.",
    epilog=example(
        'pulsar-retry explain --backoff "exponential 1s 1m" --jitter full --max-age 10m'
    ),
)
@click.option("--preset", type=click.Choice(sorted(PRESETS)), help="Start from a known policy.")
@click.option("--max-attempts", metavar="N", help="Attempts, including the first one; or inf.")
@click.option(
    "--max-age", metavar="DURATION", help="The maximum age of a message at its last retry; or inf."
)
@click.option(
    "--backoff",
    metavar="TEXT",
    help='"immediate", "fixed 5s", "exponential 10s 10m" or "levels 1s 5s".',
)
@click.option("--jitter", metavar="KIND", help="none, upward or full.")
@click.option("--attempts", type=int, metavar="N", help="The number of attempts to show.")
@json_option
def command(
    *,
    preset: str | None,
    max_attempts: str | None,
    max_age: str | None,
    backoff: str | None,
    jitter: str | None,
    attempts: int | None,
    as_json: bool,
) -> None:
    """Show when a message that keeps failing comes back, and what happens to it in the end.

    Durations are in seconds, or have a unit: 500ms, 10s, 5m, 2h, 1d. Options change the preset, or
    the default policy.
    """
    texts = dict(zip(SCHEDULE_SETTINGS, (max_attempts, max_age, backoff, jitter), strict=True))
    policy = policy_of_texts(texts, PRESETS[preset]() if preset else None)
    settings = {name: getattr(policy, name) for name in SCHEDULE_SETTINGS}
    settings["max_attempts"] = settings["max_attempts"] or DEFAULT_MAX_REDELIVER_COUNT + 1
    schedule = explain(policy, attempts=attempts)
    if as_json:
        click.echo(json.dumps(_facts(settings, schedule)))
        return
    for name in settings:
        click.echo(f"{name.replace('_', '-'):<12}  {_text(settings, name)}")
    click.echo()
    rows = [(each.attempt, _span(each.elapsed), _outcome_text(each)) for each in schedule.steps]
    table(["attempt", "after", "if it fails"], rows)
    click.echo(f"\n{_total(schedule)}")


# -- as data --------------------------------------------------------------------------------------


def _facts(settings: Mapping[str, Any], schedule: Schedule) -> dict[str, Any]:
    return {
        "settings": {name: _plain(value) for name, value in settings.items()},
        "schedule": [_step_facts(step) for step in schedule.steps],
        "total_seconds": schedule.total,
        "complete": schedule.complete,
    }


def _plain(value: Any) -> Any:
    """Return a JSON-compatible value; JSON has no infinity."""
    return value if isinstance(value, int | float) and value != math.inf else str(value)


def _step_facts(step: Step) -> dict[str, Any]:
    facts = {"attempt": step.attempt, "elapsed_seconds": step.elapsed}
    if isinstance(step.action, DeadLetter):
        return {**facts, "action": "dead_letter", "reason": step.action.reason}
    return {**facts, "action": "retry", "delay_seconds": step.delay}


# -- as text --------------------------------------------------------------------------------------


def _text(settings: Mapping[str, Any], name: str) -> str:
    value = settings[name]
    return text_of(value) if name == "max_age" and value != math.inf else str(value)


def _outcome_text(step: Step) -> str:
    if isinstance(step.action, DeadLetter):
        return f"dead letter: {step.action.reason}"
    return f"again in {_span(step.delay)}"


def _total(schedule: Schedule) -> str:
    number = len(schedule.steps)
    attempts = f"{number} attempts" if number > 1 else "1 attempt"
    rest = "without the time that handlers take" if schedule.complete else "and more follow"
    return f"{attempts} in {_span(schedule.total)}, {rest}."


def _span(times: tuple[float, float]) -> str:
    shortest, longest = map(_duration_text, times)
    return shortest if shortest == longest else f"{shortest} to {longest}"


def _duration_text(duration: float) -> str:
    """Return a duration in words, such as ``1 h 45 min 46 s``."""
    milliseconds = round(duration * 1000)
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if milliseconds >= size:
            parts.append(f"{milliseconds // size} {unit}")
            milliseconds %= size
    if milliseconds or not parts:
        parts.append(f"{milliseconds / 1000:g} s")
    return " ".join(parts)
