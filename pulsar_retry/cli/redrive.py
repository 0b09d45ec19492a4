"""`pulsar-retry redrive`: publishes dead letters again."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.filter import filter_options
from pulsar_retry.cli._common.operator import Operator, operator_options
from pulsar_retry.cli._common.options import (
    dry_run_option,
    limit_option,
    naming_option,
    rate_option,
    yes_option,
)
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
from pulsar_retry.replay.redriving.patching import DIFFS, PayloadPatch
from pulsar_retry.replay.redriving.redrive import MAX_REDRIVES, Redrive
from pulsar_retry.replay.redriving.targets import DISCARD

__all__ = ["command"]


def _patch_text(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    """Return the JSON of a patch, or that in the file that is given.

    The audit log has it then, too.

    Raises:
        ConfigError: it is no patch, or the file cannot be read.
    """
    if given is None:
        return None
    text = given
    if not given.lstrip().startswith("{"):
        try:
            text = Path(given).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--patch: {given} cannot be read: {error}") from None
    return PayloadPatch.of(text).text


@click.command(
    short_help="Publish dead letters again, so that they are retried.",
    epilog="""\b
Examples:
  pulsar-retry redrive orders-billing-DLQ --dry-run
  pulsar-retry redrive orders-billing-DLQ --reason timeout --limit 10 --yes
  pulsar-retry redrive orders-billing-DLQ --rate 500
  pulsar-retry redrive orders-billing-DLQ --to origin --since 2h
  pulsar-retry redrive orders-billing-DLQ --id 12:7 --id 12:9 --why INC-1234
  pulsar-retry redrive shop/orders --fingerprint ccea288163ac967e
  pulsar-retry redrive orders-billing-DLQ --to workbench --keep-failure --property shop=7
  pulsar-retry redrive orders-billing-DLQ --reason invalid --patch '{"total": 5}' --dry-run""",
)
@dlqs_argument
@click.option(
    "--to",
    default="retry",
    show_default=True,
    metavar="retry|origin|TOPIC",
    help="retry: only the subscription that failed gets the messages. origin: all subscriptions "
    "of the topic that a message came from. Or the name of a topic.",
)
@click.option(
    "--topic",
    metavar="NAME",
    help="Only letters of this topic. Needed with --subscription if neither the letters nor the "
    "name of DLQ says whose they are.",
)
@click.option("--subscription", metavar="NAME", help="Only letters of this subscription.")
@dlq_subscription_option
@naming_option("retry topics")
@filter_options
@limit_option
@rate_option
@click.option(
    "--max-redrives",
    type=click.IntRange(min=0),
    default=MAX_REDRIVES,
    show_default=True,
    metavar="N",
    help="Letters that were redriven this many times stay in the DLQ.",
)
@click.option(
    "--patch",
    callback=_patch_text,
    metavar="FILE|JSON",
    help="Change each payload by a JSON merge patch (an object, RFC 7396). The original payloads "
    "are not kept.",
)
@click.option(
    "--diffs",
    type=click.IntRange(0, DIFFS),
    default=3,
    show_default=True,
    metavar="N",
    help="For how many letters a dry run shows what the patch changes.",
)
@click.option("--keep-failure", is_flag=True, help="Keep the properties that describe the failure.")
@click.option("--keep-attempts", is_flag=True, help="Keep the number of attempts.")
@click.option(
    "--any-topic",
    is_flag=True,
    help="Accept a DLQ that is not a topic of letters, and publish the messages that its "
    "subscription has not acknowledged.",
)
@click.option(
    "--wait/--no-wait",
    default=None,
    help="Watch until all letters are handled or dead again, or Ctrl-C; otherwise say once what "
    "became of them.  [default: wait on a terminal]",
)
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
    diffs: int,
    within: str | None,
    wait: bool | None,
    **options: Any,
) -> int:
    """Publish the letters of the dead-letter topic DLQ again, so that they are retried.

    There may be several. A name of the form tenant/namespace stands for all dead-letter topics of
    this namespace that have letters.

    Each letter is published, then its receipt is awaited, and then it is acknowledged in DLQ. So
    nothing is lost if this command is killed, and the same command takes what is left. A letter
    that is published twice then has the same DEDUPE_ID both times. Attempts start anew, and
    REDRIVE_COUNT grows by one. Ctrl-C settles the letters in flight and ends.

    --patch changes JSON payloads on their way, and the dry run shows how. A letter that the patch
    does not fit stays.

    Without --yes it does a dry run first and asks. The exit code is 1 if letters that should be
    redriven are left.
    """
    if options["to"] == DISCARD:
        raise ConfigError("--to discard: `pulsar-retry discard` does that")
    output = {name: options.pop(name) for name in ("dry_run", "yes", "as_json")}
    watches = sys.stderr.isatty() and not output["as_json"] if wait is None else wait

    def redrive(topic: str, dry: bool) -> Redrive:
        return Redrive(
            topic,
            cluster=cluster,
            where=where,
            dry_run=dry,
            within=patience(within, as_json=output["as_json"]),
            wait=math.inf if watches else 0,
            by=who.by,
            **options,
        )

    return carry_out(
        redrive,
        dead_letter_topics(cluster, dlqs),
        cluster=cluster,
        who=who,
        question="Redrive {count} now",
        total=options["limit"],
        diffs=diffs,
        **output,
    )
