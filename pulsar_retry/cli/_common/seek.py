"""The common part of `seek` and `snapshot restore`: their options and their output."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import attrs
import click

from pulsar_retry.cli._common.operation import Operation, Operator, carry_out
from pulsar_retry.cli._common.options import naming_option, with_options
from pulsar_retry.cli._common.output import clean, progress, table
from pulsar_retry.errors import SnapshotError
from pulsar_retry.ops.audit import audited
from pulsar_retry.policy.checks import seconds_of_text
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import Naming

__all__ = ["carry_out_move", "grace_option", "letter_options", "subscription_of"]

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

grace_option = click.option(
    "--grace",
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="Wait for messages in hand; letters are made of the rest.",
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


@attrs.frozen
class _Move(Operation):
    """A seek, or a restore.

    Attributes:
        subscription: What is moved.
        move: Moves it, or with True only reports what it would do; the number is *grace*.
        grace: Seconds; see `seek`.
    """

    subscription: Subscription
    move: Callable[[bool, float], SeekReport]
    grace: float

    def plan(self, *, asked: bool) -> SeekReport | None:
        # A restore makes a new subscription, which a dry run cannot look at.
        with contextlib.suppress(*(() if asked else (SnapshotError,))), progress("looking"):
            return self.move(True, self.grace)
        return None

    def act(self, who: Operator) -> SeekReport:
        it = self.subscription
        act = who.act(f"{it.topic} {it.name}")
        with audited(it.cluster, it.topic, act, enabled=who.audits) as record:
            with progress("moving"):
                report = self.move(False, self.grace)
            record(report.recorded())
        return report

    def show(self, report: SeekReport) -> None:
        _show(report)


def carry_out_move(
    move: Callable[[bool, float], SeekReport],
    *,
    target: Subscription,
    who: Operator,
    grace: str,
    **output: bool,
) -> int:
    """Move the subscription *target*; see `_Move` and `carry_out`."""
    operation = _Move(target, move, seconds_of_text("--grace", grace))
    return carry_out([operation], who=who, question=lambda _: "Move the subscription?", **output)


def _show(report: SeekReport) -> None:
    """Print what was done, or would be done."""
    for warning in report.warnings:
        click.echo(f"warning: {clean(warning)}", err=True)
    done = "would be" if report.dry_run else "is"
    click.echo(
        f"{report.subscription!r} on {report.topic} {done} at {clean(report.to)}: "
        f"{report.replayed} to be delivered again, {report.purged} purged, "
        f"{report.backlog_after} to be delivered in all (a batch counts as one)"
    )
    for name, words in _LETTERS.items():
        if count := getattr(report.letters, name):
            click.echo(f"letters: {count} {words}")
    for problem in report.problems:
        click.echo(f"incomplete: {clean(problem)}", err=True)
    if report.consumers:
        verb = "are" if report.dry_run else "were"
        click.echo(f"consumers: {report.consumers} {verb} connected, and reconnect by themselves")
    if len(report.partitions) > 1:
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
