"""`pulsar-retry discard`: removes dead letters for good."""

from __future__ import annotations

from typing import Any

import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.filter import filter_options
from pulsar_retry.cli._common.operator import Operator, operator_options
from pulsar_retry.cli._common.options import dry_run_option, limit_option, rate_option, yes_option
from pulsar_retry.cli._common.redriving import (
    carry_out,
    dead_letter_topics,
    dlq_subscription_option,
    dlqs_argument,
    patience,
    within_option,
)
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.targets import DISCARD

__all__ = ["command"]


@click.command(
    short_help="Remove dead letters for good.",
    epilog="""\b
Examples:
  pulsar-retry discard orders-billing-DLQ --fingerprint ccea288163ac967e --dry-run
  pulsar-retry discard orders-billing-DLQ --id 12:7 --why "test data" --yes
  pulsar-retry discard orders-billing-DLQ --until 30d --yes""",
)
@dlqs_argument
@dlq_subscription_option
@filter_options
@click.option("--all", "everything", is_flag=True, help="All letters of the topic.")
@limit_option
@rate_option
@click.option("--any-topic", is_flag=True, help="Accept a DLQ that is not a topic of letters.")
@dry_run_option
@within_option
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
    within: str | None,
    limit: int | None,
    rate: float | None,
    dlq_subscription: str | None,
    any_topic: bool,
    **output: Any,
) -> int:
    """Remove letters of the dead-letter topic DLQ for good. This cannot be undone.

    The letters are acknowledged, and their payloads are lost; the audit log says who discarded how
    many, when and why. `dlq export` writes them to a file before, and `redrive --to TOPIC` moves
    them to another topic instead. If this command is killed, the same command takes what is left.
    A name of the form tenant/namespace stands for all dead-letter topics of this namespace that
    have letters.

    Without --yes it does a dry run first and asks.
    """
    if where.takes_all and not everything:
        raise ConfigError("expected a filter, such as --id or --reason, or --all for all letters")

    def discard(topic: str, dry: bool) -> Redrive:
        return Redrive(
            topic,
            DISCARD,
            cluster=cluster,
            where=where,
            limit=limit,
            rate=rate,
            dlq_subscription=dlq_subscription,
            any_topic=any_topic,
            dry_run=dry,
            within=patience(within, as_json=output["as_json"]),
            by=who.by,
        )

    return carry_out(
        discard,
        dead_letter_topics(cluster, dlqs),
        cluster=cluster,
        who=who,
        question="Discard {count} now? Their payloads are lost",
        total=limit,
        **output,
    )
