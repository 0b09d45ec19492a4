"""`pulsar-retry console`: dead letters in a browser."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pulsar_retry._extras import need
from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.options import every_option, example
from pulsar_retry.cli._common.output import until_interrupted
from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.replay.cluster import Cluster

__all__ = ["command"]


@click.command(
    short_help="Look into dead-letter topics in a browser.",
    epilog=example("pulsar-retry console --namespace shop/orders --namespace shop/returns"),
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
    help="A file with the token to log in with. Required if other machines can reach the console, "
    "unless there is --user-header.",
)
@click.option(
    "--user-header",
    metavar="NAME",
    help="The header in which a proxy says who the user is, such as X-Forwarded-User; for the "
    "audit log. The console believes it, so it listens on loopback only.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="The host name of a proxy in front of the console. Repeatable.",
)
@every_option
@click.option("--no-audit", is_flag=True, help="Do not write the audit log of the namespace.")
@json_option
@cluster_options
def command(
    *,
    cluster: Cluster,
    namespaces: tuple[str, ...],
    host: str,
    port: int,
    access_token_file: Path | None,
    user_header: str | None,
    allow_hosts: tuple[str, ...],
    every: float,
    no_audit: bool,
    as_json: bool,
) -> None:
    """Serve pages that show dead-letter and retry topics, their letters, and why they are dead.

    From them, letters are redriven, moved or discarded, after a dry run and a confirmation. Reading
    consumes nothing. Ctrl-C ends the console. A job that is running then settles its letters in
    flight; the same job continues it when the console runs again.
    """
    try:
        need("console", "the console", "jinja2", "starlette", "uvicorn")
    except ModuleNotFoundError as error:
        raise PulsarRetryError(str(error)) from None
    from pulsar_retry.console.app import Console  # an extra
    from pulsar_retry.console.login import Access
    from pulsar_retry.console.serving import serve_console

    access = Access(
        host,
        token=None if access_token_file is None else _secret(access_token_file),
        user_header=user_header,
        allow_hosts=allow_hosts,
    )
    console = Console(cluster, access, namespaces, every=every, audits=not no_audit)
    with until_interrupted():
        serve_console(console, host, port, lambda url: _ready(url, as_json=as_json))


def _secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:  # the text of an error could show the secret
        raise ConfigError(f"--access-token-file: {path}: {type(error).__name__}") from None


def _ready(url: str, *, as_json: bool) -> None:
    click.echo(json.dumps({"url": url}) if as_json else f"The console is at {url}; Ctrl-C ends it.")
