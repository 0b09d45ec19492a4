"""`pulsar-retry redrive`: publishes dead letters again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.filter import filter_options
from pulsar_retry.cli._common.operation import Operator, operator_options
from pulsar_retry.cli._common.options import (
    dry_run_option,
    example,
    limit_option,
    naming_option,
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
from pulsar_retry.policy.checks import seconds_of_text
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.patching import checked_patch
from pulsar_retry.replay.redriving.redrive import MAX_REDRIVES
from pulsar_retry.replay.redriving.targets import DISCARD

__all__ = ["command"]

#: How long to watch what becomes of letters, after a question.
_WATCH = "1m"


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
    checked_patch(text)
    return text


@click.command(
    short_help="Publish dead letters again, so that they are retried.",
    epilog=example("pulsar-retry redrive orders-billing-DLQ --reason timeout --rate 100 --dry-run"),
)
@dlqs_argument
@click.option(
    "--to",
    default="retry",
    metavar="retry|origin|TOPIC",
    help="The subscription that failed (default), its topic, or another topic.",
)
@click.option(
    "--topic", metavar="NAME", help="Only letters of this topic; needed if it is not known whose."
)
@click.option("--subscription", metavar="NAME", help="Only letters of this subscription; the same.")
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
    help="Letters that were redriven N times stay.",
)
@click.option(
    "--patch",
    callback=_patch_text,
    metavar="FILE|JSON",
    help="Change JSON payloads by a JSON merge patch (RFC 7396).",
)
@click.option("--keep-failure", is_flag=True, help="Keep the properties that describe the failure.")
@click.option("--keep-attempts", is_flag=True, help="Keep the number of attempts.")
@any_topic_option
@click.option(
    "--wait",
    metavar="DURATION",
    help="How long to watch what becomes of them.  [default: 1m, with --yes 0]",
)
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
    wait: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Publish the letters of the dead-letter topics DLQ again, so that they are retried.

    tenant/namespace stands for all those of a namespace that have letters. Waiting letters of a
    retry topic become due. Attempts of dead letters start anew.

    It shows a dry run first and asks. A letter is acknowledged in DLQ after it is published, so
    nothing is lost if this is killed, and the same command takes what is left. Ctrl-C settles the
    letters in flight. A filter may be repeated. The exit code is 1 if letters are left over.
    """
    if options["to"] == DISCARD:
        raise ConfigError("--to discard: `pulsar-retry discard` does that")
    watch = ("0" if yes or as_json else _WATCH) if wait is None else wait
    return redrive_all(
        dlqs,
        {**options, "where": where, "wait": seconds_of_text("--wait", watch)},
        cluster=cluster,
        who=who,
        question="Redrive {count} now",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )
