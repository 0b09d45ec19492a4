"""`pulsar-retry metrics`: how many letters wait, and what is due, for Prometheus."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import click
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from pulsar_retry.cli._common.cluster import CONNECTION, cluster_options, json_option
from pulsar_retry.cli._common.completing import complete_namespace
from pulsar_retry.cli._common.options import address
from pulsar_retry.cli._common.output import show_json
from pulsar_retry.observe.serving import serve_registry
from pulsar_retry.ops.due import DueBacklog, due_backlogs
from pulsar_retry.ops.exporter import DueCollector, LetterCollector
from pulsar_retry.ops.overview import LetterTopic, letter_topics
from pulsar_retry.pull.signals import awaiting_signals
from pulsar_retry.replay.cluster import Cluster

__all__ = ["command"]


@click.command(
    short_help="Export waiting letters and due backlogs to Prometheus.",
    epilog=f"""{CONNECTION}

\b
Examples:
  pulsar-retry metrics
  pulsar-retry metrics shop/orders shop/returns --listen 0.0.0.0:9469
  pulsar-retry metrics --once""",
)
@click.argument("namespaces", nargs=-1, metavar="[NAMESPACE]...", shell_complete=complete_namespace)
@click.option(
    "--listen",
    default="127.0.0.1:9469",
    show_default=True,
    metavar="HOST:PORT",
    help="The address to listen on; port 0 for any free port.",
)
@click.option(
    "--every",
    type=click.FloatRange(1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to ask the broker.",
)
@click.option(
    "--due/--no-due",
    default=True,
    show_default=True,
    help="Whether to export what is due. It asks the broker for up to 400 entries of a backlog.",
)
@click.option("--once", is_flag=True, help="Print the metrics once, and end.")
@json_option
@cluster_options
def command(
    *,
    cluster: Cluster,
    namespaces: tuple[str, ...],
    listen: str,
    every: float,
    due: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Serve what waits in each NAMESPACE: letters and their age, and what is due.

    Without NAMESPACE it serves public/default. For each subscription, it also serves the backlog,
    and how much of it is due: the broker's backlog includes messages that are delayed. One process
    is enough for a whole cluster, and it needs no consumer. (Consumers serve their own metrics.)
    Reading consumes nothing. Ctrl-C ends it.
    """
    host, port = address(listen)
    asked = namespaces or ("public/default",)
    with cluster.admin() as admin:
        if once:
            letters = {each: letter_topics(admin, each) for each in asked}
            backlogs = {each: due_backlogs(admin, each) for each in asked if due}
            if as_json:
                facts = [each.facts() for each in chain(*letters.values())]
                show_json(facts + [each.facts() for each in chain(*backlogs.values())])
                return
            collectors = _collectors(letters.__getitem__, backlogs.__getitem__, asked, every, due)
            for each in collectors:
                each.ask()
            click.echo(generate_latest(_registry(collectors)).decode(), nl=False)
            return
        collectors = _collectors(
            functools.partial(letter_topics, admin),
            functools.partial(due_backlogs, admin),
            asked,
            every,
            due,
        )
        for each in collectors:
            each.start()
        with (
            awaiting_signals(threading.Event()) as next_signal,
            serve_registry(_registry(collectors), port, host) as server,
        ):
            shown = f"[{host}]" if ":" in host else host
            url = f"http://{shown}:{server.port}/metrics"
            told = json.dumps({"url": url}) if as_json else f"Metrics are at {url}; Ctrl-C ends it."
            click.echo(told)
            next_signal()
        for each in collectors:
            each.stop()


def _collectors(
    letters: Callable[[str], Sequence[LetterTopic]],
    backlogs: Callable[[str], Sequence[DueBacklog]],
    namespaces: Sequence[str],
    every: float,
    due: bool,
) -> list[LetterCollector | DueCollector]:
    found: list[LetterCollector | DueCollector] = [LetterCollector(letters, namespaces, every)]
    return [*found, DueCollector(backlogs, namespaces, every)] if due else found


def _registry(collectors: Iterable[Collector]) -> CollectorRegistry:
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    return registry
