"""`pulsar-retry metrics`: how many letters wait, for Prometheus."""

from __future__ import annotations

import json
import time
from itertools import chain

import click
from prometheus_client import CollectorRegistry, generate_latest

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.options import address, every_option, example
from pulsar_retry.cli._common.output import show_json, until_interrupted
from pulsar_retry.observe.failures import LogLimiter
from pulsar_retry.observe.serving import serve_registry
from pulsar_retry.ops.exporter import LetterCollector
from pulsar_retry.ops.overview import letter_topics, pause_after
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.wire.names import parts_of_namespace

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
@every_option
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
    for each in asked:
        parts_of_namespace(each)
    collector, registry = LetterCollector(), CollectorRegistry()
    registry.register(collector)
    with cluster.admin() as admin:
        if once:
            found = {each: letter_topics(admin, each) for each in asked}
            if as_json:
                show_json([each.facts() for each in chain(*found.values())])
                return
            for namespace, topics in found.items():
                collector.show(namespace, topics)
            click.echo(generate_latest(registry).decode(), nl=False)
            return
        with until_interrupted(), serve_registry(registry, port, host) as server:
            url = f"{server.url}/metrics"
            told = json.dumps({"url": url}) if as_json else f"Metrics are at {url}; Ctrl-C ends it."
            click.echo(told)
            warn = LogLimiter().warn
            while True:
                began = time.monotonic()
                for each in asked:
                    try:
                        collector.show(each, letter_topics(admin, each, left_out=warn))
                    except Exception as error:  # noqa: BLE001 - it may work the next time
                        warn(f"the letter topics of {each} could not be read: {error}")
                        collector.show(each, None)
                now = time.monotonic()
                due = now + pause_after(now - began, every)
                while time.monotonic() < due:  # a signal can come just before a sleep
                    time.sleep(1)
