"""`pulsar-retry doctor`: finds problems with a subscription's letters."""

from __future__ import annotations

import attrs
import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.options import example, naming_option
from pulsar_retry.cli._common.output import clean, show_json
from pulsar_retry.ops.doctor import check_up, owner_of_letters
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.subscription import Subscription
from pulsar_retry.wire.names import Naming

__all__ = ["command"]

_MARKS = {
    "ok": ("ok", "green"),
    "warning": ("warning", "yellow"),
    "error": ("ERROR", "red"),
    "unknown": ("unknown", "cyan"),
}


@click.command(
    short_help="Check that retries and dead letters can work.",
    epilog=example("pulsar-retry doctor orders billing"),
)
@click.argument("topic")
@click.argument("subscription", required=False)
@naming_option("retry and dead-letter topics")
@click.option(
    "--retry-letter-topic", metavar="TOPIC", help="The retry topic.  [default: by --naming]"
)
@click.option(
    "--dead-letter-topic", metavar="TOPIC", help="The dead-letter topic.  [default: by --naming]"
)
@json_option
@cluster_options
def command(
    *,
    cluster: Cluster,
    topic: str,
    subscription: str | None,
    naming: str,
    retry_letter_topic: str | None,
    dead_letter_topic: str | None,
    as_json: bool,
) -> int:
    """Check SUBSCRIPTION of TOPIC and its letter topics. Changes nothing.

    Without SUBSCRIPTION, TOPIC is a DLQ, and its name says whose letters it has.

    It checks delayed delivery, what the broker deletes, refuses and does not create, the letter
    topics, whose letters they have, and permissions. The exit code is 1 if there is an error among
    the results.
    """
    if subscription is None:
        it = owner_of_letters(cluster, topic, Naming(naming))
    else:
        it = Subscription(
            cluster,
            topic,
            subscription,
            naming=Naming(naming),
            retry_letter_topic=retry_letter_topic,
            dead_letter_topic=dead_letter_topic,
        )
    findings = []
    for each in check_up(it):
        findings.append(each)
        if not as_json:
            mark, colour = _MARKS[each.verdict]
            shown = click.style(f"{mark:<8}", fg=colour)
            click.echo(f"{shown} {each.check:<19} {clean(each.text)}")
    if as_json:
        show_json([attrs.asdict(each) for each in findings])
    return int(any(each.verdict == "error" for each in findings))
