"""`pulsar-retry dlq`: look into dead-letter topics."""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import click

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.filter import filter_options
from pulsar_retry.cli._common.letters import full, line, payload_line, show_groups
from pulsar_retry.cli._common.options import example, limit_option
from pulsar_retry.cli._common.output import clean, progress, show_json, table, words_of_age
from pulsar_retry.cli._common.redriving import dead_letter_topics, patience
from pulsar_retry.errors import AdminForbiddenError, AdminNotFoundError
from pulsar_retry.ops.browse import Sample, look_into
from pulsar_retry.ops.formatting import short
from pulsar_retry.ops.overview import LetterTopic, letter_topics
from pulsar_retry.ops.showing import fits
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.reading import CANNOT_BE_READ, tail_letters
from pulsar_retry.replay.redriving.report import SAMPLES, Group
from pulsar_retry.wire.names import TopicName

__all__ = ["command"]

_DEFAULT = "public/default"

_through = click.option(
    "--dlq-subscription",
    metavar="NAME",
    help="Leave out letters that this subscription of the DLQ has acknowledged.  "
    "[default: pulsar-retry, or the only one]",
)


@click.group(
    short_help="Look into dead-letter topics.",
    epilog=example("pulsar-retry dlq show orders-billing-DLQ --reason timeout"),
)
def command() -> None:
    """Look into dead-letter topics: list them, and show their letters and the reasons.

    This consumes nothing: every letter stays in its topic, for every subscription. `pulsar-retry
    redrive` moves letters, and `pulsar-retry discard` removes them.
    """


@command.command(
    short_help="List retry and dead-letter topics.",
    epilog=example("pulsar-retry dlq ls shop/orders --all"),
)
@click.argument("namespace", required=False)
@click.option("--all", "everything", is_flag=True, help="Show topics without letters too.")
@json_option
@cluster_options
def ls(*, cluster: Cluster, namespace: str | None, everything: bool, as_json: bool) -> None:
    """List the retry and dead-letter topics of NAMESPACE, or of all that the role may see.

    For each topic it shows how many letters wait, the age of the oldest, how many arrive per
    second, and the subscription that it belongs to. JSON has all topics.
    """
    found: list[LetterTopic] = []
    left_out: list[str] = []
    with cluster.admin() as admin, progress("topics asked for") as show:
        names = [namespace] if namespace is not None else _namespaces(admin)
        for each in names:
            try:
                found += letter_topics(
                    admin, each, by_letters=True, progress=show, left_out=left_out.append
                )
            except (AdminForbiddenError, AdminNotFoundError) as error:
                if len(names) == 1:  # named, or the only one that may be asked
                    raise
                if isinstance(error, AdminForbiddenError):  # else it was deleted meanwhile
                    left_out.append(f"{each} is left out: {error}")
    for text in left_out:
        click.echo(clean(text), err=True)
    found.sort(key=lambda each: -each.backlog)
    if as_json:
        show_json([each.facts() for each in found])
        return
    shown = [each for each in found if everything or each.backlog]
    if not shown:
        where = names[0] if len(names) == 1 else "all namespaces"
        click.echo(f"no letters in {where} ({len(found)} retry and dead-letter topics)")
        return
    is_default = namespace is not None or all(map(_is_default, shown))
    rows = [
        (
            TopicName.parse(each.topic).local if is_default else each.topic.partition("://")[2],
            each.kind.replace("_", " "),
            each.subscription,
            each.backlog if each.subscriptions else f"{each.backlog}, no subscription",
            words_of_age(each.oldest_age_seconds),
            f"{each.rate_in:.1f}",
        )
        for each in shown
    ]
    table(["topic", "kind", "subscription", "#backlog", "#oldest", "#in/s"], rows)


def _namespaces(admin: AdminClient) -> list[str]:
    """Return all namespaces, or the default one for a role that may not list them."""
    try:
        return admin.namespaces.all()
    except AdminForbiddenError:
        click.echo(f"{_DEFAULT} only: this role may not list the tenants; name others", err=True)
        return [_DEFAULT]


def _is_default(topic: LetterTopic) -> bool:
    return topic.topic.startswith(f"persistent://{_DEFAULT}/")


@command.command(
    short_help="Show letters by reason and place, or one in full.",
    epilog=example("pulsar-retry dlq show orders-billing-DLQ --reason invalid --since 2h"),
)
@click.argument("dlq")
@click.argument("message_id", required=False)
@filter_options
@limit_option
@click.option(
    "--payloads",
    type=click.IntRange(1, SAMPLES),
    metavar="N",
    help=f"Also show the payloads of N letters of each group, {SAMPLES} at most.",
)
@click.option(
    "--within",
    metavar="DURATION",
    help="Read for this long at most, and say how many letters were read.  [default: until 4s "
    "after the start; with --json, without a limit]",
)
@_through
@json_option
@cluster_options
def show(
    *,
    cluster: Cluster,
    where: Filter,
    dlq: str,
    message_id: str | None,
    limit: int | None,
    payloads: int | None,
    within: str | None,
    dlq_subscription: str | None,
    as_json: bool,
) -> None:
    """Show the letters of DLQ by reason and place, with counts and an id.

    A name of the form tenant/namespace stands for all its dead-letter topics with letters.

    With MESSAGE_ID, in the form that is printed here, it shows one letter in full.
    """
    if message_id is not None:
        with look_into(cluster, dlq, dlq_subscription) as found:
            facts = found.facts(found.letter(message_id))
        show_json(facts) if as_json else click.echo(full(facts))
        return
    seconds = patience(within, as_json=as_json)
    topics = dead_letter_topics(cluster, [dlq], lambda text: click.echo(clean(text), err=True))
    give_up = math.inf if seconds is None else time.monotonic() + seconds
    is_one, hint = len(topics) == 1, ""
    found_facts: list[dict[str, Any]] = []
    others: list[Group] = []
    for number, topic in enumerate(topics):
        with (
            look_into(cluster, topic, dlq_subscription) as found,
            progress(f"letters of {TopicName.parse(topic).local} read") as tell,
        ):
            left = (give_up - time.monotonic()) / (len(topics) - number)
            seen = found.grouped(where, limit=limit, within=left, tell=tell)
            letters = [
                [found.facts(found.letter(one)) for one in each.samples[: payloads or 0]]
                for each in seen.groups
            ]
        _tell_what_is_missing(topic, seen, is_limited=limit is not None)
        others += seen.others
        for group, some in zip(seen.groups, letters, strict=True):
            of = {} if is_one else {"topic": topic}
            found_facts.append({**group.facts(), **of, **({"payloads": some} if some else {})})
        if seen.groups and not as_json:
            name = dlq if is_one and "/" not in dlq else topic
            hint = hint or f"{shlex.quote(name)} {seen.groups[0].samples[0]}"
            _show("" if is_one else f"{topic}:", seen.groups, letters)
    if as_json:
        show_json(found_facts)
    elif hint:
        click.echo(f"To see one in full: pulsar-retry dlq show {hint}")
    elif others:
        click.echo("No letter matches. There are:")
        show_groups(others)
    else:
        click.echo("no letters")


def _tell_what_is_missing(topic: str, seen: Sample, *, is_limited: bool) -> None:
    if not seen.is_whole and not is_limited:
        of = "" if seen.of is None else f" of about {seen.of}"
        sample = f"only the first {seen.read}{of} letters of {topic} were read"
        click.echo(f"{sample}: --within 10m reads for longer", err=True)
    _tell_unreadable(topic, seen.unreadable)


def _tell_unreadable(topic: str, count: int) -> None:
    if count:
        click.echo(f"{count} entries of {topic} cannot be read: {CANNOT_BE_READ}", err=True)


def _show(head: str, groups: Sequence[Group], letters: Sequence[list[dict[str, Any]]]) -> None:
    """Print groups, and some letters of each."""
    if head:
        click.echo(head)
    show_groups(groups)
    for group, some in zip(groups, letters, strict=True):
        if some:
            click.echo(f"{short(group.error or group.reason or 'no error')}:")
            click.echo("\n".join(map(payload_line, some)))


@command.command(
    epilog=example(
        "pulsar-retry dlq tail orders-billing-DLQ --reason timeout --json | jq .payload"
    ),
)
@click.argument("dlq")
@filter_options
@click.option(
    "--count", type=click.IntRange(min=1), metavar="N", help="End after this number of letters."
)
@json_option
@cluster_options
def tail(*, cluster: Cluster, where: Filter, dlq: str, count: int | None, as_json: bool) -> None:
    """Show letters as they arrive in DLQ, until Ctrl-C."""
    with look_into(cluster, dlq, None) as found:
        left = count
        click.echo(f"waiting for letters in {found.topic}", err=True)
        with contextlib.suppress(KeyboardInterrupt):
            for each in tail_letters(found.client, found.partitions):
                if not fits(where, each):
                    continue
                facts = found.facts(each)
                show_json(facts, lines=True) if as_json else click.echo(clean(line(facts)))
                left = None if left is None else left - 1
                if left == 0:
                    return


@command.command(
    epilog=example("pulsar-retry dlq export orders-billing-DLQ --reason invalid > dead.jsonl"),
)
@click.argument("dlq")
@filter_options
@limit_option
@_through
@json_option
@cluster_options
def export(
    *,
    cluster: Cluster,
    where: Filter,
    dlq: str,
    limit: int | None,
    dlq_subscription: str | None,
    as_json: bool,  # noqa: ARG001 - of the errors; the output is JSON anyway
) -> int:
    """Write the letters of DLQ as JSON Lines to standard output.

    Payloads are complete: text if they are UTF-8, and otherwise under payload_base64. The exit code
    is 1 if some letters cannot be read.
    """
    missed: list[object] = []
    with look_into(cluster, dlq, dlq_subscription) as found, progress("exported") as tell:
        reading = found.letters(lambda *place: missed.append(place))
        meant = (each for each in reading if fits(where, each))
        for number, each in enumerate(islice(meant, limit), 1):
            show_json(found.facts(each), lines=True)
            tell(number, limit)
    _tell_unreadable(dlq, len(missed))
    return int(bool(missed))
