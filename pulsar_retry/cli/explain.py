"""`pulsar-retry explain`: the schedule of a retry policy."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from typing import Any

import click

from pulsar_retry.policy.actions import DeadLetter
from pulsar_retry.policy.durations import text_of
from pulsar_retry.policy.explain import PRESETS, SCHEDULE_SETTINGS, Schedule, Step, explain
from pulsar_retry.policy.retry import RetryPolicy, policy_of_texts
from pulsar_retry.policy.settings import Setting

__all__ = ["command"]

#: The origins of values here: options take the place of a call, the preset that of a subscriber.
_ORIGINS = {"call": "option", "subscriber": "preset"}


@click.command(
    short_help="Show the schedule of a retry policy.",
    epilog="""\b
Examples:
  pulsar-retry explain --preset tdmq
  pulsar-retry explain --preset pubsub --max-attempts 5
  pulsar-retry explain --backoff "exponential 1s 1m" --jitter full --max-age 10m
  pulsar-retry explain --backoff "levels 1s 5s 30s" --max-attempts 4 --json""",
)
@click.option("--preset", type=click.Choice(sorted(PRESETS)), help="Start from a known policy.")
@click.option("--max-attempts", metavar="N", help="Attempts, including the first one; or inf.")
@click.option(
    "--max-age", metavar="DURATION", help="The maximum age of a message at its last retry; or inf."
)
@click.option(
    "--backoff",
    metavar="TEXT",
    help='"immediate", "fixed 5s", "linear 10s 10m", "exponential 10s 10m" or "levels 1s 5s".',
)
@click.option("--jitter", metavar="KIND", help="none, full or decorrelated.")
@click.option("--attempts", type=int, metavar="N", help="The number of attempts to show.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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

    Durations are in seconds, or have a unit: 500ms, 10s, 5m, 2h, 1d. Values that neither an option
    nor the preset sets come from the environment (PULSAR_RETRY_MAX_ATTEMPTS, PULSAR_RETRY_MAX_AGE,
    PULSAR_RETRY_BACKOFF, PULSAR_RETRY_JITTER), or are the defaults.
    """
    texts = dict(zip(SCHEDULE_SETTINGS, (max_attempts, max_age, backoff, jitter), strict=True))
    policy = PRESETS[preset]() if preset else RetryPolicy()
    options = policy_of_texts(texts)
    settings = [
        each
        for each in policy.describe(call=options, environment=os.environ)
        if each.name in SCHEDULE_SETTINGS
    ]
    schedule = explain(policy.resolved(call=options, environment=os.environ), attempts=attempts)
    if as_json:
        click.echo(json.dumps(_facts(settings, schedule)))
    else:
        click.echo("\n".join([*_settings(settings), "", *_steps(schedule), "", _total(schedule)]))


def _origin(setting: Setting) -> str:
    return _ORIGINS.get(setting.origin, setting.origin)


# -- as data --------------------------------------------------------------------------------------


def _facts(settings: Sequence[Setting], schedule: Schedule) -> dict[str, Any]:
    return {
        "settings": {
            each.name: {"value": _plain(each.value), "origin": _origin(each)} for each in settings
        },
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


def _settings(settings: Sequence[Setting]) -> list[str]:
    rows = [(each.name.replace("_", "-"), _value(each), _origin(each)) for each in settings]
    return _aligned(rows)


def _value(setting: Setting) -> str:
    is_duration = setting.name == "max_age" and setting.value != math.inf
    return text_of(setting.value) if is_duration else str(setting.value)


def _steps(schedule: Schedule) -> list[str]:
    rows = [("attempt", "after", "if it fails")]
    rows += [
        (str(step.attempt), _span(step.elapsed), _outcome_text(step)) for step in schedule.steps
    ]
    return _aligned(rows)


def _outcome_text(step: Step) -> str:
    if isinstance(step.action, DeadLetter):
        return f"dead letter: {step.action.reason}"
    return f"again in {_span(step.delay)}"


def _total(schedule: Schedule) -> str:
    number = len(schedule.steps)
    attempts = f"{number} attempts" if number > 1 else "1 attempt"
    rest = "without the time that handlers take" if schedule.complete else "and more follow"
    return f"{attempts} in {_span(schedule.total)}, {rest}."


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


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
