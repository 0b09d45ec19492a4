"""`pulsar-retry console`: dead letters in a browser."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path

import click

from pulsar_retry._extras import need
from pulsar_retry.cli._common.cluster import CONNECTION, cluster_options, json_option
from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.replay.cluster import Cluster

__all__ = ["command"]


@click.command(
    short_help="Look into dead-letter topics in a browser.",
    epilog=f"""{CONNECTION}

\b
Examples:
  pulsar-retry console
  pulsar-retry console --namespace shop/orders --namespace shop/returns
  pulsar-retry console --host 0.0.0.0 --access-token-file secret""",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    default=["public/default"],
    show_default=True,
    metavar="TENANT/NAMESPACE",
    help="A namespace to show. Repeatable.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8070,
    show_default=True,
    help="The port to listen on; 0 for any free port.",
)
@click.option(
    "--access-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token for logging in. Required if other machines can reach the console.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="The host name of a proxy in front of the console. Repeatable.",
)
@click.option(
    "--every",
    type=click.FloatRange(1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to ask the broker for the number of waiting letters.",
)
@json_option
@cluster_options
def command(
    *,
    cluster: Cluster,
    namespaces: tuple[str, ...],
    host: str,
    port: int,
    access_token_file: Path | None,
    allow_hosts: tuple[str, ...],
    every: float,
    as_json: bool,
) -> None:
    """Serve a page that shows dead-letter and retry topics, their letters, and why they are dead.

    It can also redrive letters, after a dry run and a confirmation. Reading consumes nothing.
    Ctrl-C ends the console. A redrive that is running then settles its letters in flight; to
    continue it, request the same redrive again.
    """
    try:
        need("console", "the console", "starlette", "jinja2", "uvicorn")
    except ModuleNotFoundError as error:
        raise PulsarRetryError(str(error)) from None
    from pulsar_retry.console.access import Access  # noqa: PLC0415 - an extra
    from pulsar_retry.console.app import Console  # noqa: PLC0415 - likewise
    from pulsar_retry.console.depth import Depths  # noqa: PLC0415 - likewise
    from pulsar_retry.console.desk import LetterBrowser  # noqa: PLC0415 - likewise
    from pulsar_retry.console.jobs import Jobs  # noqa: PLC0415 - likewise
    from pulsar_retry.console.serving import serve_console  # noqa: PLC0415 - likewise

    access = Access(host, token=_token(access_token_file), allow_hosts=allow_hosts)
    desk = LetterBrowser(cluster, namespaces)
    console = Console(desk, Jobs(cluster), Depths(desk.topics, desk.namespaces, every), access)
    # `kill` and service managers must stop it as cleanly as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        serve_console(console, host, port, lambda url: _ready(url, as_json=as_json))


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        accepted = "a file that holds a token"
        named = f"{path} ({type(error).__name__})"
        raise ConfigError.bad("access_token_file", named, accepted) from None


def _ready(url: str, *, as_json: bool) -> None:
    click.echo(json.dumps({"url": url}) if as_json else f"The console is at {url}; Ctrl-C ends it.")
