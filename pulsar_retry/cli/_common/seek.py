"""The common part of `seek` and `snapshot restore`: their options and their output."""

from __future__ import annotations

from collections.abc import Callable

import click

from pulsar_retry.cli._common.operator import Operator
from pulsar_retry.cli._common.options import naming_option, with_options
from pulsar_retry.cli._common.output import ask, busy, check_can_ask, clean, show_json, table
from pulsar_retry.policy.checks import seconds_of_text
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import Naming

__all__ = ["carry_out", "grace_option", "letter_options", "subscription_of"]

#: What happens to letters, in words.
_LETTERS = {
    "replayed": "acknowledged: their messages are delivered again",
    "purged": "acknowledged: their messages are purged",
    "reset": "delivered at once, as first attempts: their messages are no longer in the topic",
    "kept": "unchanged",
    "copied": "copied from the snapshot's subscription",
    "unreadable": "unchanged, because they are encrypted or incomplete",
    "late": "made from messages that consumers have in hand and may acknowledge late",
}

#: What the audit log has of a report.
_RECORDED = (
    "to",
    "replayed",
    "purged",
    "backlog_after",
    "consumers",
    "letters",
    "warnings",
    "doubts",
)

grace_option = click.option(
    "--grace",
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait until the messages that consumers have in hand are dispatched again. "
    "Letters are made from the rest.",
)


#: The options that name a subscription's letter topics.
letter_options = with_options(
    naming_option("retry topics"),
    click.option(
        "--retry-letter-topic", metavar="TOPIC", help="The retry topic.  [default: by --naming]"
    ),
)


def subscription_of(
    cluster: Cluster, topic: str, subscription: str, naming: str, retry_letter_topic: str | None
) -> Subscription:
    """Return the subscription that a command is about."""
    return Subscription(
        cluster, topic, subscription, naming=Naming(naming), retry_letter_topic=retry_letter_topic
    )


def carry_out(
    move: Callable[[bool, float], SeekReport],
    *,
    target: Subscription,
    who: Operator,
    grace: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    can_look: bool = True,
) -> int:
    """Do a dry run, ask unless *yes* is set, and move.

    Args:
        move: Moves, or with True only reports what it would do. The number is the grace in seconds.
        target: The subscription, for the audit log.
        who: Who gives the command.
        grace: The option as it was typed.
        dry_run: Do only the dry run.
        yes: Do not ask.
        as_json: Print JSON.
        can_look: Whether a dry run is possible before the question.

    Returns:
        The exit code.
    """
    wait = seconds_of_text("--grace", grace)
    check_can_ask(yes=yes or dry_run)
    if not dry_run and not yes:
        if can_look:
            with busy("looking"):
                plan = move(True, wait)
            _show(plan, err=True)
        ask("Move the subscription?")
    if dry_run:
        with busy("looking"):
            report = move(dry_run, wait)
    else:
        act = who.act(f"{target.topic} {target.name}")
        with who.audited(target.cluster, target.topic, act) as record:
            with busy("moving"):
                report = move(dry_run, wait)
            facts = report.facts()
            record({name: facts[name] for name in _RECORDED})
    if as_json:
        show_json(report.facts())
    else:
        _show(report)
    return 1 if report.doubts else 0


def _show(report: SeekReport, *, err: bool = False) -> None:
    """Print what was done, or would be done."""
    for warning in (*report.warnings, *report.doubts):
        click.echo(f"warning: {clean(warning)}", err=True)
    done = "would be" if report.dry_run else "is"
    click.echo(
        f"{report.subscription!r} on {report.topic} {done} at {clean(report.to)}: "
        f"{report.replayed} to be delivered again, {report.purged} purged, "
        f"{report.backlog_after} to be delivered in all (a batch counts as one)",
        err=err,
    )
    for name, words in _LETTERS.items():
        if count := getattr(report.letters, name):
            click.echo(f"letters: {count} {words}", err=err)
    if report.consumers:
        verb = "are" if report.dry_run else "were"
        click.echo(
            f"consumers: {report.consumers} {verb} connected, and reconnect by themselves", err=err
        )
    if len(report.partitions) > 1 and not err:
        table(
            ("partition", "begins at", "#before", "#after", "#again", "#purged"),
            [
                (
                    each.topic.rpartition("-")[2],
                    each.begin,
                    each.backlog_before,
                    each.backlog_after,
                    each.replayed,
                    each.purged,
                )
                for each in report.partitions
            ],
        )
