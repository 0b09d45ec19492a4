"""`pulsar-retry discard`: removes dead letters for good."""

from __future__ import annotations

from typing import Any

import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.filter import filter_options
from pulsar_retry.cli._common.operation import Operator, operator_options
from pulsar_retry.cli._common.options import (
    dry_run_option,
    example,
    limit_option,
    rate_option,
    yes_option,
)
from pulsar_retry.cli._common.redriving import (
    any_topic_option,
    dlq_subscription_option,
    dlqs_argument,
    redrive_all,
)
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.targets import DISCARD

__all__ = ["command"]


@click.command(
    short_help="Remove dead letters for good.",
    epilog=example('pulsar-retry discard orders-billing-DLQ --id 12:7 --why "test data" --dry-run'),
)
@dlqs_argument
@dlq_subscription_option
@filter_options
@click.option("--all", "everything", is_flag=True, help="All letters of the topic.")
@limit_option
@rate_option
@any_topic_option
@dry_run_option
@yes_option
@operator_options
@json_option
@cluster_options
def command(
    *,
    cluster: Cluster,
    where: Filter,
    who: Operator,
    dlqs: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Remove letters of the dead-letter topics DLQ for good. This cannot be undone.

    tenant/namespace stands for all those of a namespace that have letters. DLQ may be a retry
    topic, too, whose letters wait.

    The letters are acknowledged, and their payloads are lost; the audit log says who discarded how
    many, when and why. `dlq export` writes them to a file before, and `redrive --to TOPIC` moves
    them to another topic instead. It shows a dry run first and asks. If it is killed, the same
    command takes what is left. A filter may be repeated.
    """
    if where.takes_all and not everything:
        raise ConfigError("expected a filter, such as --id or --reason, or --all for all letters")
    return redrive_all(
        dlqs,
        {**options, "where": where, "to": DISCARD},
        cluster=cluster,
        who=who,
        question="The payloads are lost. Discard {count} now",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
