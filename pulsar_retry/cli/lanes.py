"""`pulsar-retry lanes`: keys that are held because a message of them has failed."""

from __future__ import annotations

import click

from pulsar_retry.cli._common.cluster import CONNECTION, cluster_options, json_option
from pulsar_retry.cli._common.operator import Operator, operator_options
from pulsar_retry.cli._common.output import (
    ask,
    check_can_ask,
    progress,
    show_json,
    table,
    words_of_age,
)
from pulsar_retry.ops.formatting import short
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.waiting.lanes import entry_facts, lanes_of
from pulsar_retry.wire.lanes import Action, LaneTopics

__all__ = ["command"]


@click.group(
    short_help="Look at keys that are held by durable lanes, and release them.",
    epilog=f"""{CONNECTION}

\b
Examples:
  pulsar-retry lanes ls shop/eu/orders billing
  pulsar-retry lanes show shop/eu/orders billing customer-7
  pulsar-retry lanes release shop/eu/orders billing customer-7 --yes
  pulsar-retry lanes release shop/eu/orders billing customer-7 --retry --yes""",
)
def command() -> None:
    """Look at the keys that subscribers with ordering="durable" hold, and release them."""


@command.command(
    epilog="""\b
Examples:
  pulsar-retry lanes ls orders billing
  pulsar-retry lanes ls orders billing --json"""
)
@click.argument("topic")
@click.argument("subscription")
@json_option
@cluster_options
def ls(*, cluster: Cluster, topic: str, subscription: str, as_json: bool) -> None:
    """List the keys of SUBSCRIPTION of TOPIC that are held, those held for longest first.

    For each key it shows for how long it is held, how many of its messages wait, how many attempts
    at the first one have failed, when that is tried again, and its last error.
    """
    with lanes_of(cluster, topic, subscription) as lanes, progress("reading"):
        found = [each.facts() for each in lanes.held()]
    if as_json:
        show_json(found)
    elif not found:
        click.echo("no key is held")
    else:
        names = ["key", "#held for", "#messages", "#attempts", "next attempt", "message", "error"]
        table(
            names,
            [
                (
                    each["key"],
                    words_of_age(each["age_seconds"]),
                    each["messages"],
                    each["attempts"],
                    "waits for you" if each["waits_for_operator"] else each["due"],
                    each["message_id"],
                    short(each["error"]),
                )
                for each in found
            ],
        )


@command.command(
    epilog="""\b
Examples:
  pulsar-retry lanes show orders billing customer-7
  pulsar-retry lanes show orders billing customer-7 --json"""
)
@click.argument("topic")
@click.argument("subscription")
@click.argument("key")
@json_option
@cluster_options
def show(*, cluster: Cluster, topic: str, subscription: str, key: str, as_json: bool) -> None:
    """Show the messages of KEY that wait, in their order."""
    with lanes_of(cluster, topic, subscription) as lanes, progress("reading"):
        found = [entry_facts(each) for each in lanes.messages(key)]
    if as_json:
        show_json(found)
    elif not found:
        click.echo("no message waits; the key is released when its next message comes")
    else:
        table(list(found[0]), [tuple(each.values()) for each in found])


@command.command(
    epilog="""\b
Examples:
  pulsar-retry lanes release orders billing customer-7 --yes
  pulsar-retry lanes release orders billing customer-7 --retry --yes"""
)
@click.argument("topic")
@click.argument("subscription")
@click.argument("key")
@click.option(
    "--retry",
    is_flag=True,
    help="Try the first message again at once, and count its attempts anew.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@operator_options
@json_option
@cluster_options
def release(
    *,
    cluster: Cluster,
    topic: str,
    subscription: str,
    key: str,
    retry: bool,
    yes: bool,
    as_json: bool,
    who: Operator,
) -> None:
    """Dead-letter the first message of KEY, so that the next ones are handled.

    A subscriber does it. If none runs, the next one will.
    """
    check_can_ask(yes=yes)
    action: Action = "retry" if retry else "dead-letter"
    with lanes_of(cluster, topic, subscription) as lanes:
        if not yes:
            ask(f"{action} the first message of {key}?")
        target = LaneTopics.of(topic, subscription).log
        with who.audited(cluster, target, who.act(target)) as tell, progress("waiting", target):
            is_done = lanes.order(key, action)
            tell({"done": is_done})
    if as_json:
        show_json({"key": key, "action": action, "done": is_done})
    else:
        click.echo(f"{action}: {'done' if is_done else 'ordered; no subscriber has done it yet'}")


@command.command(
    epilog="""\b
Examples:
  pulsar-retry lanes compact orders billing"""
)
@click.argument("topic")
@click.argument("subscription")
@json_option
@cluster_options
def compact(*, cluster: Cluster, topic: str, subscription: str, as_json: bool) -> None:
    """Have the broker compact the log of the lanes of SUBSCRIPTION of TOPIC."""
    target = LaneTopics.of(topic, subscription).log
    with lanes_of(cluster, topic, subscription) as lanes, progress("compacting", target):
        lanes.compact()
    show_json({"compacted": target}) if as_json else click.echo("done")
