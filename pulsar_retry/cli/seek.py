"""`pulsar-retry seek`: moves a subscription, with its letters, to a time or a message."""

from __future__ import annotations

from typing import Any

import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.operation import operator_options
from pulsar_retry.cli._common.options import dry_run_option, example, yes_option
from pulsar_retry.cli._common.seek import (
    carry_out_move,
    grace_option,
    letter_options,
    subscription_of,
)
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.seeking.seek import seek

__all__ = ["command"]


@click.command(
    short_help="Replay or purge a subscription.",
    epilog=example("pulsar-retry seek orders billing --to 2h --dry-run"),
)
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--to",
    required=True,
    metavar="WHERE",
    help="earliest, latest (purges all), a time (ISO 8601; UTC without a zone), how long ago "
    "(90s, 15m, 2h, 7d), or a message id (ledger:entry:partition).",
)
@click.option(
    "--partial",
    "partial_retention",
    is_flag=True,
    help="If the broker has no older messages, start at its oldest one.",
)
@grace_option
@letter_options
@dry_run_option
@yes_option
@operator_options
@json_option
@cluster_options
def command(
    *,
    cluster: Cluster,
    topic: str,
    subscription: str,
    to: str,
    partial_retention: bool,
    naming: str,
    retry_letter_topic: str | None,
    **options: Any,
) -> int:
    """Move SUBSCRIPTION to TOPIC, with all its partitions and its retry letters, as a unit.

    Messages that were published before WHERE count as acknowledged. All other messages are
    delivered (again), as first attempts. Letters of messages that are delivered again are removed.
    Letters whose messages the broker has deleted are delivered at once. Consumers are disconnected
    and come back by themselves. The dead-letter topic is not changed.

    Without --yes it does a dry run first and asks. It may be interrupted and run again: nothing is
    lost.
    """
    target = subscription_of(cluster, topic, subscription, naming, retry_letter_topic)

    def move(dry_run: bool, grace: float) -> SeekReport:
        return seek(target, to, dry_run=dry_run, partial_retention=partial_retention, grace=grace)

    return carry_out_move(move, target=target, **options)
