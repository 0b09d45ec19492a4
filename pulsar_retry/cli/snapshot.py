"""`pulsar-retry snapshot`: keeps what a subscription has not acknowledged, and restores it."""

from __future__ import annotations

from typing import Any

import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.operation import Operator, audit_hint, operator_options
from pulsar_retry.cli._common.options import dry_run_option, example, yes_option
from pulsar_retry.cli._common.output import ask, check_can_ask, clean, progress, show_json, table
from pulsar_retry.cli._common.seek import (
    carry_out_move,
    grace_option,
    letter_options,
    subscription_of,
)
from pulsar_retry.errors import ConfigError
from pulsar_retry.ops.audit import audited
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.seeking.report import SeekReport
from pulsar_retry.replay.seeking.snapshot import Snapshot
from pulsar_retry.wire.names import logical

__all__ = ["command"]


@click.group(
    short_help="Keep what a subscription has not acknowledged, and restore it later.",
    epilog=example("pulsar-retry snapshot create orders billing --name before-deploy"),
)
def command() -> None:
    """Keep what a subscription has not acknowledged, and restore it later.

    A snapshot holds the messages that were not acknowledged when it was made, including retry
    letters, and everything that is published since then. It expires after 7 days, minus the age of
    its oldest message. Until then its messages count as backlog of their topics. Any subscription
    to the topic can be moved to it, any number of times.
    """


@command.command(
    epilog=example("pulsar-retry snapshot create orders billing --name before-deploy"),
)
@click.argument("topic")
@click.argument("subscription")
@click.option(
    "--name", metavar="NAME", help="The name of the snapshot.  [default: made from the time]"
)
@letter_options
@json_option
@cluster_options
def create(
    *,
    cluster: Cluster,
    topic: str,
    subscription: str,
    name: str | None,
    naming: str,
    retry_letter_topic: str | None,
    as_json: bool,
) -> None:
    """Make a snapshot of SUBSCRIPTION to TOPIC, and print its name.

    Consumers can continue meanwhile. Each partition is captured at its own moment.
    """
    target = subscription_of(cluster, topic, subscription, naming, retry_letter_topic)
    with progress("capturing"):
        snapshot = Snapshot.create(target, name=name)
    for warning in snapshot.warnings:
        click.echo(f"warning: {clean(warning)}", err=True)
    if as_json:
        show_json(snapshot.facts())
    else:
        click.echo(snapshot.name)


@command.command(
    epilog=example("pulsar-retry snapshot ls --namespace shop/orders"),
)
@click.argument("topic", required=False)
@click.option(
    "--namespace", metavar="NAME", help="All topics of this namespace.  [default: public/default]"
)
@click.option("--subscription", metavar="NAME", help="Only snapshots of this subscription.")
@json_option
@cluster_options
def ls(
    *,
    cluster: Cluster,
    topic: str | None,
    namespace: str | None,
    subscription: str | None,
    as_json: bool,
) -> None:
    """List the snapshots of TOPIC, or of all topics of a namespace."""
    found = [
        snapshot
        for each in _topics(cluster, topic, namespace)
        for snapshot in Snapshot.list(cluster, each, subscription=subscription)
    ]
    if as_json:
        show_json([each.facts() for each in found])
        return
    if not found:
        click.echo("no snapshots")
        return
    table(
        ("name", "topic", "subscription", "#backlog", "created", "expires"),
        [
            (
                each.name,
                each.topic.rpartition("/")[2],
                each.subscription,
                each.backlog,
                f"{each.created:%Y-%m-%dT%H:%MZ}",
                f"{each.expires:%Y-%m-%dT%H:%MZ}",
            )
            for each in found
        ],
    )


@command.command(
    epilog=example("pulsar-retry snapshot restore orders billing before-deploy --dry-run"),
)
@click.argument("topic")
@click.argument("subscription")
@click.argument("name")
@grace_option
@letter_options
@dry_run_option
@yes_option
@operator_options
@json_option
@cluster_options
def restore(
    *,
    cluster: Cluster,
    topic: str,
    subscription: str,
    name: str,
    naming: str,
    retry_letter_topic: str | None,
    **options: Any,
) -> int:
    """Move SUBSCRIPTION to TOPIC to the snapshot NAME. A new subscription is created.

    It works like `pulsar-retry seek`, whose help says what happens to letters and consumers.
    """
    target = subscription_of(cluster, topic, subscription, naming, retry_letter_topic)
    snapshot = Snapshot.get(cluster, topic, name)

    def move(dry_run: bool, grace: float) -> SeekReport:
        return snapshot.restore(target, dry_run=dry_run, grace=grace)

    return carry_out_move(move, target=target, **options)


@command.command(epilog=example("pulsar-retry snapshot rm orders before-deploy"))
@click.argument("topic")
@click.argument("name")
@yes_option
@json_option
@operator_options
@cluster_options
def rm(*, cluster: Cluster, who: Operator, topic: str, name: str, yes: bool, as_json: bool) -> None:
    """Remove the snapshot NAME of TOPIC. Its messages are not kept any longer."""
    snapshot = Snapshot.get(cluster, topic, name)
    check_can_ask(yes=yes)
    if not yes:
        ask(f"Remove {snapshot.name!r}, with {snapshot.backlog} messages?")
    act = who.act(f"{logical(topic)} {name}")
    with audit_hint(), audited(cluster, topic, act, enabled=who.audits):
        snapshot.delete()
    if as_json:
        show_json({"removed": name})


def _topics(cluster: Cluster, topic: str | None, namespace: str | None) -> list[str]:
    if topic is not None and namespace is not None:
        raise ConfigError.bad("--namespace", namespace, "a topic or a namespace, not both")
    if topic is not None:
        return [logical(topic)]
    with cluster.admin() as admin:
        return admin.namespaces.topics(namespace or "public/default")
