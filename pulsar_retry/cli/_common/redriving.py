"""What verbs that move dead letters have in common: Ctrl-C, progress, and the report."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import click

from pulsar_retry.cli._common.letters import show_groups
from pulsar_retry.cli._common.operator import Operator, audit_hint
from pulsar_retry.cli._common.output import ask, check_can_ask, clean, progress, show_json
from pulsar_retry.ops.audit import audited_redrive
from pulsar_retry.ops.overview import letter_topics
from pulsar_retry.policy.checks import seconds_of_text
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import LIMIT, SAMPLE, STAYS, STOPPED, Redriven
from pulsar_retry.wire.names import TopicName

__all__ = [
    "carry_out",
    "dead_letter_topics",
    "dlq_subscription_option",
    "dlqs_argument",
    "patience",
    "within_option",
]

#: Seconds after its start until which a command reads, if nothing else is asked for, and its text
#: is for people; and for how long it reads at least.
_PATIENCE, _LEAST = 4.0, 1.0

dlqs_argument = click.argument("dlqs", metavar="DLQ...", nargs=-1, required=True)
dlq_subscription_option = click.option(
    "--dlq-subscription",
    metavar="NAME",
    help="The DLQ's subscription through which letters are taken.  [default: pulsar-retry, or the "
    "only one]",
)
within_option = click.option(
    "--within",
    metavar="DURATION",
    help="For how long a dry run reads at most; it says how many letters it has read.  [default: "
    "until 4s after its start; with --json, without a limit]",
)


def patience(within: str | None, *, as_json: bool) -> float | None:
    """Return for how many more seconds a command reads letters; None: without a limit.

    Raises:
        ConfigError: *within* is no duration.
    """
    if within is not None:
        return seconds_of_text("--within", within)
    if as_json:
        return None
    began: float | None = click.get_current_context().find_root().obj
    spent = 0.0 if began is None else time.monotonic() - began
    return max(_LEAST, _PATIENCE - spent)


#: Makes the job for one topic; the second argument says whether it is a dry run.
Make = Callable[[str, bool], Redrive]


def dead_letter_topics(cluster: Cluster, names: Sequence[str]) -> list[str]:
    """Return topics; a name ``tenant/namespace`` stands for its dead-letter topics with letters."""
    found: dict[str, None] = {}
    for name in names:
        if name.count("/") != 1:
            found[str(TopicName.parse(name, "DLQ"))] = None
            continue
        with cluster.admin() as admin, progress("asking for topics") as show:
            for each in letter_topics(admin, name, progress=show):
                if each.kind == "dead_letter" and each.backlog:
                    found[each.topic] = None
    return list(found)


def carry_out(
    make: Make,
    topics: Sequence[str],
    *,
    cluster: Cluster,
    who: Operator,
    question: str,
    total: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    diffs: int = 0,
) -> int:
    """Do a dry run, ask unless *yes* is set, do the job for each topic, and report.

    Args:
        make: Makes the job for one topic.
        topics: The topics, one after the other.
        cluster: The cluster.
        who: Who gives the command.
        question: What to ask, with a place for ``{count}``.
        total: The maximum number of letters, if it is known.
        dry_run: Do only the dry run.
        yes: Do not ask.
        as_json: Print JSON: an object, or a list of objects if there are several topics.
        diffs: For how many letters a dry run shows what a patch changes.

    Returns:
        The exit code.
    """
    check_can_ask(yes=yes or dry_run)
    jobs = {each: make(each, dry_run) for each in topics}  # checks the arguments first
    totals: dict[str, int | None] = dict.fromkeys(topics, total)
    if not dry_run and not yes:
        count = 0
        for each in topics:
            plan = _run(make(each, True), "looking", total)
            if not as_json:
                _show(plan, several=len(topics) > 1, diffs=diffs)
            totals[each] = None if plan.stopped == SAMPLE else plan.redriven
            count += plan.redriven
        least = "at least " if None in totals.values() else ""
        ask(f"{question.format(count=least + letters(count))}?")
    results: list[Redriven] = []
    try:
        for each, job in jobs.items():
            if dry_run:
                done = _run(job, "looking", total)
            else:
                act = who.act(each, job.job)
                in_log = partial(audited_redrive, cluster, job, act, enabled=who.audits)
                with audit_hint():
                    done = _run(job, job.done_word, totals[each], in_log)
            results.append(done)
            if not as_json:
                _show(done, several=len(topics) > 1, diffs=diffs)
            if done.stopped == "cancelled":
                break
    finally:  # an error about a topic must not hide what was done before
        if as_json and (results or not topics):
            facts = [each.facts() for each in results]
            show_json(facts[0] if len(topics) == 1 else facts)
    if not topics and not as_json:
        click.echo("no letters")
    return 0 if all(each.is_complete for each in results) else 1


def letters(count: int) -> str:
    """Return a number of letters in words."""
    return f"{count} letter{'' if count == 1 else 's'}"


def _run(
    job: Redrive,
    what: str,
    total: int | None,
    run: Callable[[Callable[[Redriven], None]], Redriven] | None = None,
) -> Redriven:
    """Do the job, by *run* if that is given, and show its progress."""
    with _interruptible(job), progress(what, job.source) as show:

        def tell(so_far: Redriven) -> None:
            if so_far.dry_run:
                show(so_far.read, so_far.backlog)
            elif so_far.became is None:
                show(so_far.redriven, total, so_far.waits and f"waiting: {so_far.waits}")
            else:
                show(so_far.redriven, total, f"{so_far.became.in_words()} (Ctrl-C ends this)")

        return (run or job.run)(tell)


@contextlib.contextmanager
def _interruptible(job: Redrive) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM cancel the job; the second ends the process."""
    previous = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def cancel(_number: int, _frame: object) -> None:
        for each, handler in previous.items():  # first, so that the second signal always ends it
            signal.signal(each, handler)
        job.cancel()

    for each in previous:
        signal.signal(each, cancel)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


# -- as text --------------------------------------------------------------------------------------


def _show(done: Redriven, *, several: bool, diffs: int) -> None:
    if several:
        click.echo(f"{done.source}:")
    _show_plan(done, diffs)
    verb = f"would be {done.verb}" if done.dry_run else done.verb
    click.echo(f"{done.redriven} {verb}, {done.seconds:.1f} s")
    for topic, count in done.targets.items():
        click.echo(f"  {count} to {clean(topic)}")
    for owner, count in done.owners.items():
        click.echo(f"  {count} of {clean(owner)}")
    if done.patched:
        would = "would be changed" if done.dry_run else "changed"
        click.echo(f"  {done.patched} {would} by the patch")
    seen = "of those read " if done.stopped else ""
    for why, count in done.left.items():
        click.echo(f"  {count} {seen}stay: {STAYS.get(why, why)}")
    for problem in (*done.doubts, *done.problems):
        click.echo(f"  {clean(problem)}", err=True)
    _show_end(done)


def _show_end(done: Redriven) -> None:
    """Show why it ended before its end, and what became of the letters."""
    if done.stopped == SAMPLE:
        of = "" if done.backlog is None else f" of about {done.backlog}"
        click.echo(f"Only the first {done.read}{of} letters were read: --within 10m reads longer.")
    elif done.dry_run and done.stopped == LIMIT:
        click.echo("There are more: --limit leaves them.")
    elif done.stopped:
        click.echo(STOPPED[done.stopped])
    if done.became is not None:
        click.echo(f"published {done.redriven}: {done.became.in_words()}")


def _show_plan(done: Redriven, diffs: int) -> None:
    """Show what only a dry run has."""
    for diff in done.diffs[:diffs]:
        click.echo(f"letter {diff.message_id}:")
        click.echo(clean(diff.text))
        click.echo()
    if done.groups:
        show_groups(done.groups)
        click.echo()
    if done.others:
        click.echo("No letter matches. There are:")
        show_groups(done.others)
        click.echo()
