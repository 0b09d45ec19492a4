"""`pulsar-retry metrics`: how many letters wait, for Prometheus."""

from __future__ import annotations

import functools
import json
import threading
from itertools import chain

import click
from prometheus_client import CollectorRegistry, generate_latest

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.options import address, example
from pulsar_retry.cli._common.output import show_json
from pulsar_retry.observe.serving import serve_registry
from pulsar_retry.ops.exporter import LetterCollector
from pulsar_retry.ops.overview import letter_topics
from pulsar_retry.pull.signals import awaiting_signals
from pulsar_retry.replay.cluster import Cluster

__all__ = ["command"]


@click.command(
    short_help="Export waiting letters to Prometheus.",
    epilog=example("pulsar-retry metrics shop/orders shop/returns --listen 0.0.0.0:9469"),
)
@click.argument("namespaces", nargs=-1, metavar="[NAMESPACE]...")
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
@click.option("--once", is_flag=True, help="Print the metrics once, and end.")
@json_option
@cluster_options
def command(
    *,
    cluster: Cluster,
    namespaces: tuple[str, ...],
    listen: str,
    every: float,
    once: bool,
    as_json: bool,
) -> None:
    """Serve how many letters wait in each NAMESPACE, and for how long.

    Without NAMESPACE it serves public/default. One process is enough for a whole cluster, and it
    needs no consumer. (Consumers serve their own metrics.) Reading consumes nothing. Ctrl-C ends
    it.
    """
    host, port = address(listen)
    asked = namespaces or ("public/default",)
    with cluster.admin() as admin:
        if once:
            letters = {each: letter_topics(admin, each) for each in asked}
            if as_json:
                show_json([each.facts() for each in chain(*letters.values())])
                return
            collector = LetterCollector(letters.__getitem__, asked, every)
            collector.ask()
            click.echo(generate_latest(_registry(collector)).decode(), nl=False)
            return
        collector = LetterCollector(functools.partial(letter_topics, admin), asked, every)
        collector.start()
        with (
            awaiting_signals(threading.Event()) as next_signal,
            serve_registry(_registry(collector), port, host) as server,
        ):
            url = f"{server.url}/metrics"
            told = json.dumps({"url": url}) if as_json else f"Metrics are at {url}; Ctrl-C ends it."
            click.echo(told)
            next_signal()
        collector.stop()


def _registry(collector: LetterCollector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry
