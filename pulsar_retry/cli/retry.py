"""`pulsar-retry retry`: letters that wait for their delay."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import attrs
import click

from pulsar_retry.cli._common.cluster import CONNECTION, cluster_options, json_option
from pulsar_retry.cli._common.completing import complete_namespace, complete_topic
from pulsar_retry.cli._common.filter import filter_options, moment
from pulsar_retry.cli._common.letters import full, show_groups
from pulsar_retry.cli._common.moves import restore_command
from pulsar_retry.cli._common.operator import Operator, operator_options
from pulsar_retry.cli._common.options import (
    all_letters_option,
    as_argument,
    dry_run_option,
    limit_option,
    with_options,
    yes_option,
)
from pulsar_retry.cli._common.output import (
    ask,
    check_can_ask,
    clean,
    progress,
    show_json,
    table,
    words_of_age,
)
from pulsar_retry.cli._common.redriving import check_selects, shown
from pulsar_retry.ops.audit import Act
from pulsar_retry.ops.browse import look_into
from pulsar_retry.ops.formatting import short
from pulsar_retry.ops.overview import letter_topics
from pulsar_retry.ops.waiting import survey_waiting, waiting_facts
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.reading import SOME_CANNOT_BE_READ
from pulsar_retry.replay.waiting.choosing import DueTimes
from pulsar_retry.replay.waiting.report import WaitingReport
from pulsar_retry.replay.waiting.waiting import WaitingLetters
from pulsar_retry.wire.archive import ArchiveNote
from pulsar_retry.wire.names import TopicName

__all__ = ["command"]

_TIME = "a time such as 2026-01-31T12:00:00Z"


@click.group(
    short_help="Look at letters that wait, cancel them, or make them due.",
    epilog=f"""{CONNECTION}

\b
Examples:
  pulsar-retry retry ls shop/orders
  pulsar-retry retry show orders-billing-RETRY --list 20
  pulsar-retry retry cancel orders-billing-RETRY --error ValueError --dry-run
  pulsar-retry retry expedite orders-billing-RETRY --id 12:7 --yes""",
)
def command() -> None:
    """Look at the letters of retry topics, which wait for their delay; cancel or expedite them."""


def _due_of(given: dict[str, Any]) -> DueTimes:
    after, before = given.pop("due_after"), given.pop("due_before")
    return DueTimes(after=_when("--due-after", after), before=_when("--due-before", before))


#: The options about due times; the command gets them as `subscription` and `due`.
_due_options = as_argument(
    "due",
    _due_of,
    click.option(
        "--subscription",
        metavar="NAME",
        help="The subscription of RETRY whose letters are meant.  [default: the only one]",
    ),
    click.option("--due-after", metavar="TIME", help=f"Due at or after: {_TIME}."),
    click.option("--due-before", metavar="TIME", help=f"Due before: {_TIME}."),
)


def _when(option: str, text: str | None) -> datetime | None:
    """Read a time; a duration such as 2h is that long from now."""
    when = moment(option, text)
    if when is None or text is None:
        return None
    is_duration = text[-1:].isalpha() and text[-1:] != "Z"
    now = datetime.now(UTC)
    return now + (now - when) if is_duration else when


@command.command(
    epilog="""\b
Examples:
  pulsar-retry retry ls
  pulsar-retry retry ls shop/orders --all --json"""
)
@click.argument("namespace", default="public/default", shell_complete=complete_namespace)
@click.option("--all", "everything", is_flag=True, help="Show topics without letters too.")
@json_option
@cluster_options
def ls(*, cluster: Cluster, namespace: str, everything: bool, as_json: bool) -> None:
    """List the retry topics of NAMESPACE [public/default].

    For each topic it shows the subscription, how many letters there are, how many of them the
    broker holds back until they are due, the age of the oldest, and how many consumers are
    connected. Without a consumer, the broker does not count what it holds back.
    """
    with cluster.admin() as admin, progress("asking for topics") as show:
        found = [
            each for each in letter_topics(admin, namespace, progress=show) if each.kind == "retry"
        ]
    if as_json:
        show_json([each.facts() for each in found])
        return
    rows = [
        (
            TopicName.parse(each.topic).local,
            each.subscription,
            each.backlog,
            each.delayed,
            words_of_age(each.oldest_age_seconds),
            each.consumers,
        )
        for each in found
        if everything or each.backlog
    ]
    if rows:
        names = ["topic", "subscription", "#letters", "#held back", "#oldest", "#consumers"]
        table(names, rows)
    else:
        click.echo(f"no letters wait in {namespace} ({len(found)} retry topics)")


@command.command(
    epilog="""\b
Examples:
  pulsar-retry retry show orders-billing-RETRY
  pulsar-retry retry show orders-billing-RETRY --attempt 3 --due-before 10m --list 20
  pulsar-retry retry show orders-billing-RETRY 12:7"""
)
@click.argument("retry", metavar="RETRY", shell_complete=complete_topic("retry"))
@click.argument("message_id", required=False)
@filter_options
@_due_options
@click.option(
    "--list",
    "listed",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="List the N letters that are due first.",
)
@json_option
@cluster_options
def show(
    *,
    cluster: Cluster,
    where: Filter,
    due: DueTimes,
    retry: str,
    message_id: str | None,
    subscription: str | None,
    listed: int,
    as_json: bool,
) -> None:
    """Show the letters that wait in the retry topic RETRY: why they wait, and until when.

    With MESSAGE_ID, it shows one letter in full.
    """
    with look_into(cluster, retry, subscription) as found:
        if message_id is not None:
            facts = waiting_facts(found.letter(message_id), found.codecs)
            show_json(facts) if as_json else click.echo(full(facts))
            return
        with progress("reading") as tell:
            missed: list[object] = []
            letters = found.letters(lambda *place: missed.append(place))
            seen = survey_waiting(_counted(letters, tell), where, due, listed)
            seen = attrs.evolve(seen, unreadable=len(missed))
    if seen.unreadable:
        click.echo(SOME_CANNOT_BE_READ.format(count=seen.unreadable), err=True)
    if as_json:
        show_json(seen.facts())
        return
    if not seen.count:
        click.echo("no letters")
        return
    show_groups(seen.groups)
    click.echo(f"{seen.count} letters, {seen.overdue} of them due")
    if seen.next_due:
        click.echo(f"the next is due at {seen.next_due}, the last at {seen.last_due}")
    if seen.attempts:
        by_attempt = ", ".join(f"{count} after attempt {n}" for n, count in seen.attempts.items())
        click.echo(by_attempt)
    if seen.letters:
        rows = [
            (
                each["message_id"],
                each["due"],
                each["attempt"],
                each["error"],
                each["key"],
                short(each["message"]),
            )
            for each in seen.letters
        ]
        table(["id", "due", "#attempt", "error", "key", "message"], rows)


def _counted(letters: Any, tell: Callable[[float, float | None], None]) -> Any:
    for number, each in enumerate(letters, 1):
        if number % 500 == 0:
            tell(number, None)
        yield each


#: The options of commands that change letters.
_change_options = with_options(all_letters_option, limit_option, dry_run_option, yes_option)


@command.command(
    epilog="""\b
Examples:
  pulsar-retry retry cancel orders-billing-RETRY --error ValueError --dry-run
  pulsar-retry retry cancel orders-billing-RETRY --id 12:7 --id 12:9 --why INC-1234 --yes
  pulsar-retry retry cancel orders-billing-RETRY --property shop=7 --due-after 1h"""
)
@click.argument("retry", metavar="RETRY", shell_complete=complete_topic("retry"))
@filter_options
@_due_options
@_change_options
@click.option(
    "--no-unload",
    is_flag=True,
    help="Do not unload the topic. Then consumers keep the letters that they have fetched, and a "
    "broker that is killed within a minute delivers some letters again.",
)
@operator_options
@json_option
@cluster_options
def cancel(*, no_unload: bool, **options: Any) -> int:
    """Cancel letters of RETRY, so that they are never delivered.

    Each letter is moved to the archive beside RETRY (the topic RETRY-ARCHIVE), with who cancelled
    it, when and why; `retry restore` brings it back. If this command is killed, the same command
    continues. Then RETRY is unloaded: the broker stores what is acknowledged, and consumers drop
    the letters that they have fetched. They connect again at once, and get those letters again that
    their handlers have in hand. Without the right to unload, a warning says what is not certain.

    Without --yes it does a dry run first and asks.
    """

    def run(letters: WaitingLetters, who: Operator, act: Act, tell: Any) -> WaitingReport:
        note = ArchiveNote(
            archived_as="cancelled", by=who.by, at=datetime.now(UTC), why=who.why, job=act.job
        )
        return letters.cancel(note, unload=not no_unload, tell=tell)

    return _carry_out(run, "cancel", "cancelled", **options)


@command.command(
    epilog="""\b
Examples:
  pulsar-retry retry expedite orders-billing-RETRY --id 12:7 --yes
  pulsar-retry retry expedite orders-billing-RETRY --error TimeoutError --due-after 10m"""
)
@click.argument("retry", metavar="RETRY", shell_complete=complete_topic("retry"))
@filter_options
@_due_options
@_change_options
@operator_options
@json_option
@cluster_options
def expedite(**options: Any) -> int:
    """Make letters of RETRY due now. Their count of attempts does not change.

    Letters that are due already stay as they are.

    Each letter is published again without a delay, its receipt is awaited, and then it is
    acknowledged. If this command is killed, the same command continues; a letter may then be
    delivered twice. The property REPUBLISHED_FROM names the earlier letter.

    Without --yes it does a dry run first and asks.
    """

    def run(letters: WaitingLetters, _who: Operator, act: Act, tell: Any) -> WaitingReport:
        return letters.expedite(act.job, tell)

    return _carry_out(run, "expedite", "expedited", **options)


def _carry_out(
    run: Callable[[WaitingLetters, Operator, Act, Any], WaitingReport],
    verb: str,
    done: str,
    *,
    cluster: Cluster,
    where: Filter,
    due: DueTimes,
    who: Operator,
    retry: str,
    subscription: str | None,
    everything: bool,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Do a dry run, ask, do it, and return the exit code."""
    check_selects(selects=not where.takes_all or due != DueTimes(), everything=everything)
    check_can_ask(yes=yes or dry_run)
    letters = WaitingLetters(
        cluster, retry, subscription=subscription, where=where, due=due, limit=limit
    )
    if dry_run or not yes:
        with progress("looking", letters.topic) as tell:
            plan = letters.look(expedites=verb == "expedite", tell=tell)
        if dry_run and as_json:
            show_json(plan.facts())
            return 0
        if not as_json:
            _show(plan, done)
        if dry_run:
            return 0
        ask(f"{verb.capitalize()} {plan.count} letters now?")
    act = who.act(letters.topic)
    with who.audited(cluster, letters.topic, act) as record:
        report = shown(done, letters.topic, functools.partial(run, letters, who, act))
        facts = report.facts()
        record({name: facts[name] for name in _RECORDED})
    if as_json:
        show_json(report.facts())
    else:
        _show(report, done)
    return 0 if report.is_complete else 1


_RECORDED = (
    "count",
    "left",
    "unreadable",
    "handled",
    "moved",
    "due",
    "unloaded",
    "archive",
    "warnings",
)


def _show(report: WaitingReport, done: str) -> None:
    if report.dry_run and report.groups:
        show_groups(report.groups)
    verb = f"would be {done}" if report.dry_run else done
    click.echo(f"{report.count} {verb}, {report.left} stay")
    if report.due and report.dry_run:
        click.echo(f"{report.due} of them are due: a consumer may have them already")
    if report.handled:
        click.echo(f"{report.handled} others were handled in the meantime")
    if report.moved:
        click.echo(f"{report.moved} others were published again, with the rest of their delay")
    if report.archive and report.count:
        click.echo(f"they are in {report.archive}: pulsar-retry retry restore brings them back")
    for warning in report.warnings:
        click.echo(f"warning: {clean(warning)}", err=True)


command.add_command(
    restore_command("RETRY", "retry", "retry topic", "retry restore orders-billing-RETRY")
)
