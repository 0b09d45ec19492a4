"""`pulsar-retry audit`: who changed what."""

from __future__ import annotations

import json
import textwrap

import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.options import example
from pulsar_retry.cli._common.output import progress, show_json
from pulsar_retry.ops.audit import AuditEntry, read_audit
from pulsar_retry.ops.formatting import one_line, short
from pulsar_retry.replay.cluster import Cluster

__all__ = ["command"]


@click.group(
    short_help="Show who changed letters and subscriptions.",
    epilog=example("pulsar-retry audit ls shop/orders"),
)
def command() -> None:
    """Show the audit log: the commands that changed letters and subscriptions.

    It is the topic pulsar-retry-audit of each namespace. Its subscription keeps all entries.
    """


@command.command(
    short_help="List the commands, the latest first.",
    epilog=example("pulsar-retry audit ls shop/orders --limit 100"),
)
@click.argument("namespace", default="public/default")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="The maximum number of commands.",
)
@json_option
@cluster_options
def ls(*, cluster: Cluster, namespace: str, limit: int, as_json: bool) -> None:
    """List the commands in the audit log of NAMESPACE [public/default], the latest first."""
    with progress("reading"):
        found = read_audit(cluster, namespace)[:limit]
    if as_json:
        show_json([each.facts() for each in found])
    elif not found:
        click.echo(f"nothing was changed in {namespace}, as far as its audit log says")
    else:
        click.echo("\n".join(map(_text, found)))


def _text(entry: AuditEntry) -> str:
    """Return a command on some lines: when, who and its id; what; the result; why."""
    options = json.dumps(entry.options, ensure_ascii=False) if entry.options else ""
    said = [
        f"{entry.verb} {entry.place} {options}",
        entry.outcome,
        f"why: {entry.why}" if entry.why else "",
    ]
    lines = [one_line(f"{entry.at.partition('.')[0]}Z  {entry.by}  {entry.job}")]
    lines += [_wrapped(one_line(short(each, _LONGEST))) for each in said if each]
    return "\n".join(lines)


#: Breaks a text into lines of at most 100 characters.
_wrapped = textwrap.TextWrapper(100, initial_indent="  ", subsequent_indent="    ").fill
#: The longest such text.
_LONGEST = 380
