"""The verbs `archive`, `discard`, `restore` and `undo`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.completing import complete_topic
from pulsar_retry.cli._common.filter import filter_options
from pulsar_retry.cli._common.operator import Operator, operator_options
from pulsar_retry.cli._common.options import (
    all_letters_option,
    dry_run_option,
    limit_option,
    rate_option,
    with_options,
    yes_option,
)
from pulsar_retry.cli._common.output import ask, check_can_ask, clean, show_json
from pulsar_retry.cli._common.redriving import (
    carry_out,
    check_selects,
    dead_letter_topics,
    dlq_subscription_option,
    dlqs_argument,
    interruptible,
    patience,
    shown,
    within_option,
)
from pulsar_retry.ops.audit import Act
from pulsar_retry.replay.archiving.archiving import Archiving, Restoring
from pulsar_retry.replay.archiving.undoing import Undo, Undone
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.filter import Filter
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import STOPPED
from pulsar_retry.wire.archive import ArchivedAs, ArchiveNote
from pulsar_retry.wire.names import Kind, TopicName

__all__ = ["archive_command", "discard_command", "restore_command", "undo"]

#: The options that say what to move, and not how.
_WHAT = (
    *("ids", "reason", "error", "fingerprint", "key", "properties", "attempts", "search"),
    *("since", "until", "limit"),
)

_ANY_TOPIC = click.option(
    "--any-topic", is_flag=True, help="Accept a DLQ that is not a topic of letters."
)


def _move_options(*more: Any) -> Any:
    """Return the options of all three verbs, and *more*."""
    return with_options(
        *(filter_options, all_letters_option, limit_option, rate_option, *more),
        *(dry_run_option, within_option, yes_option),
        *(operator_options, json_option, cluster_options),
    )


def _key(verb: str) -> str:
    """Return a key that is the same for the same command."""
    given = click.get_current_context().params
    what = {name: given[name] for name in _WHAT}
    return json.dumps([verb, what], sort_keys=True, default=str)


def _archiving(archived_as: ArchivedAs, verb: str, text: str, example: str) -> click.Command:
    def run(
        *,
        cluster: Cluster,
        where: Filter,
        who: Operator,
        dlqs: tuple[str, ...],
        everything: bool,
        limit: int | None,
        rate: float | None,
        dlq_subscription: str | None,
        any_topic: bool,
        within: str | None,
        **output: Any,
    ) -> int:
        check_selects(selects=not where.takes_all, everything=everything)

        def make(topic: str, dry: bool, act: Act) -> Redrive:
            note = ArchiveNote(
                archived_as=archived_as,
                by=who.by,
                at=datetime.now(UTC),
                why=who.why,
                job=act.job,
            )
            return Archiving(
                topic,
                note,
                cluster=cluster,
                where=where,
                limit=limit,
                rate=rate,
                dlq_subscription=dlq_subscription,
                any_topic=any_topic,
                dry_run=dry,
                within=patience(within, as_json=output["as_json"]),
                job_key=_key(verb),
            )

        topics = dead_letter_topics(cluster, dlqs)
        words = (verb, archived_as)
        return carry_out(make, topics, cluster=cluster, who=who, words=words, total=limit, **output)

    options = with_options(dlqs_argument, _move_options(dlq_subscription_option, _ANY_TOPIC))
    return click.command(verb, help=text, epilog=example)(options(run))


def archive_command() -> click.Command:
    """Return the command `archive`."""
    return _archiving(
        "archived",
        "archive",
        """Move letters of DLQ to the archive beside it, the topic DLQ-ARCHIVE.

        The archive has the whole letter, and who archived it, when and why. Each letter is
        published there, its receipt is awaited, and then it is acknowledged in DLQ. If this command
        is killed, the same command continues. `dlq restore` brings letters back. A name of the form
        tenant/namespace stands for all dead-letter topics of this namespace that have letters.

        Without --yes it does a dry run first and asks.""",
        """\b
Examples:
  pulsar-retry dlq archive orders-billing-DLQ --reason invalid --why INC-1234 --dry-run
  pulsar-retry dlq archive orders-billing-DLQ --until 30d --yes""",
    )


def discard_command() -> click.Command:
    """Return the command `discard`."""
    return _archiving(
        "discarded",
        "discard",
        """Remove letters of DLQ for good. This cannot be undone.

        The archive beside DLQ, the topic DLQ-ARCHIVE, gets a record of each letter: its key and its
        properties, and who discarded it, when and why, but not its payload. The record is stored
        before the letter is acknowledged. If this command is killed, the same command continues.

        Without --yes it does a dry run first and asks.""",
        """\b
Examples:
  pulsar-retry dlq discard orders-billing-DLQ --id 12:7 --why "test data" --yes
  pulsar-retry dlq discard orders-billing-DLQ --fingerprint ccea288163ac967e --dry-run""",
    )


def restore_command(metavar: str, letters: Kind, kind: str, example: str) -> click.Command:
    """Return the command `restore` for a *kind* of topics, which have these *letters*."""

    def run(
        *,
        cluster: Cluster,
        where: Filter,
        who: Operator,
        topic: str,
        everything: bool,
        limit: int | None,
        rate: float | None,
        within: str | None,
        **output: Any,
    ) -> int:
        check_selects(selects=not where.takes_all, everything=everything)

        def make(source: str, dry: bool, _act: Act) -> Redrive:
            return Restoring(
                source,
                cluster=cluster,
                where=where,
                limit=limit,
                rate=rate,
                dry_run=dry,
                within=patience(within, as_json=output["as_json"]),
                job_key=_key("restore"),
            )

        return carry_out(
            make,
            [topic],
            cluster=cluster,
            who=who,
            words=("restore", "restored"),
            total=limit,
            **output,
        )

    text = f"""Bring letters back from the archive beside {metavar} into the {kind} {metavar}.

        --id is the id that a letter had in {metavar}. --property ARCHIVED_JOB=ID selects the
        letters of one command, whose id is in `pulsar-retry audit ls`. A letter that waited for its
        delay waits for the rest of it. If this command is killed, the same command continues.

        Without --yes it does a dry run first and asks."""
    topic = click.argument("topic", metavar=metavar, shell_complete=complete_topic(letters))
    return click.command(
        "restore",
        help=text,
        epilog=f"""\b
Examples:
  pulsar-retry {example} --all --dry-run
  pulsar-retry {example} --property ARCHIVED_JOB=1f0c2a9be5d7""",
    )(with_options(topic, _move_options())(run))


@click.command(
    epilog="""\b
Examples:
  pulsar-retry dlq undo orders-billing-DLQ 1f0c2a9be5d7 --dry-run
  pulsar-retry dlq undo orders-billing-DLQ 1f0c2a9be5d7 --why "wrong fix" --yes"""
)
@click.argument("dlq", metavar="DLQ", shell_complete=complete_topic("dead_letter"))
@click.argument("job", metavar="JOB")
@dlq_subscription_option
@dry_run_option
@yes_option
@operator_options
@json_option
@cluster_options
def undo(
    *,
    cluster: Cluster,
    who: Operator,
    dlq: str,
    job: str,
    dlq_subscription: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Undo a redrive of DLQ that has edited letters: bring the originals back into DLQ.

    JOB is the id that the redrive has printed, or that of the command in `audit ls`.

    Edited copies that still wait in a retry topic are taken back first, as `retry cancel` does it,
    and copies that are dead again are archived. A copy that a consumer has handled cannot be taken
    back: the report says how many there are. If this command is killed, the same command continues.

    Without --yes it does a dry run first and asks.
    """
    check_can_ask(yes=yes or dry_run)
    topic = str(TopicName.parse(dlq, "DLQ"))
    act = who.act(topic)

    def run(*, dry: bool) -> Undone:
        work = Undo(
            topic,
            job,
            cluster=cluster,
            by=who.by,
            why=who.why,
            command=act.job,
            dlq_subscription=dlq_subscription,
            dry_run=dry,
        )
        with interruptible(work):
            return shown("looking" if dry else "restored", topic, work.run)

    if not dry_run and not yes:
        plan = run(dry=True)
        if not as_json:
            _show_undone(plan)
        ask(f"Restore {plan.restored} letters now?")
    if dry_run:
        done = run(dry=True)
    else:
        with who.audited(cluster, topic, act) as tell:
            done = run(dry=False)
            tell(done.facts())
    show_json(done.facts()) if as_json else _show_undone(done)
    return 0 if done.is_complete else 1


def _show_undone(done: Undone) -> None:
    would = "would be restored" if done.dry_run else "restored"
    click.echo(f"{done.restored} of {done.edited} originals {would} to {done.source}")
    back = "would be taken back" if done.dry_run else "were taken back"
    archived = "would be archived" if done.dry_run else "are archived"
    rows = (
        (done.waiting, f"edited copies waited for their consumer and {back}"),
        (done.dead_again, f"edited copies are dead again and {archived}"),
        (done.handled, "edited copies were handled by a consumer, or one has them in hand"),
        *((count, f"edited copies went to {topic}") for topic, count in done.elsewhere.items()),
    )
    for count, text in rows:
        if count:
            click.echo(f"  {count} {text}")
    for problem in done.problems:
        click.echo(f"  {clean(problem)}", err=True)
    if done.stopped:
        click.echo(STOPPED.get(done.stopped, done.stopped))
