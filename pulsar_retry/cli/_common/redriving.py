"""What verbs that move dead letters have in common: Ctrl-C, progress, and the report."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from pulsar_retry.cli._common.letters import show_groups
from pulsar_retry.cli._common.operator import Operator
from pulsar_retry.cli._common.output import ask, check_can_ask, clean, progress, show_json
from pulsar_retry.ops.overview import letter_topics
from pulsar_retry.policy.checks import seconds_of_text
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import SAMPLE, STAYS, STOPPED, Redriven
from pulsar_retry.wire.names import TopicName

__all__ = [
    "carry_out",
    "dead_letter_topics",
    "dlq_subscription_option",
    "dlqs_argument",
    "job_key",
    "patience",
    "within_option",
]

#: The options of all such commands that say which letters, and not how.
_WHAT = (
    *("ids", "reason", "error", "fingerprint", "key", "properties", "attempts", "search"),
    *("since", "until", "limit"),
)

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


def job_key(*own: str) -> str:
    """Return a key that is the same for the same command. A text such as "2h" keeps its key.

    Args:
        own: The options, beside the filter and the limit, that say what to do, and not how.
    """
    given = click.get_current_context().params
    return json.dumps({name: given[name] for name in (*_WHAT, *own)}, sort_keys=True, default=str)


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
    words: tuple[str, str],
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
        words: What is done to letters: ``("redrive", "redriven")``.
        total: The maximum number of letters, if it is known.
        dry_run: Do only the dry run.
        yes: Do not ask.
        as_json: Print JSON: an object, or a list of objects if there are several topics.
        diffs: For how many letters a dry run shows what a patch changes.

    Returns:
        The exit code.
    """
    verb, done_ = words
    check_can_ask(yes=yes or dry_run)
    jobs = {each: make(each, dry_run) for each in topics}  # checks the arguments first
    totals: dict[str, int | None] = dict.fromkeys(topics, total)
    if not dry_run and not yes:
        count = 0
        for each in topics:
            plan = _run(make(each, True), "looking", total)  # noqa: FBT003 - a dry run
            if not as_json:
                _show(plan, done_, several=len(topics) > 1, diffs=diffs)
            totals[each] = None if plan.stopped == SAMPLE else plan.redriven
            count += plan.redriven
        least = "at least " if None in totals.values() else ""
        ask(f"{verb.capitalize()} {least}{count} letters now?")
    results: list[Redriven] = []
    for each, job in jobs.items():
        if dry_run:
            done = _run(job, "looking", total)
        else:
            with who.audited(cluster, each, who.act(each)) as tell:
                done = _run(job, done_, totals[each])
                tell(_counts(done))
        results.append(done)
        if not as_json:
            _show(done, done_, several=len(topics) > 1, diffs=diffs)
        if done.stopped == "cancelled":
            break
    if as_json:
        facts = [each.facts() for each in results]
        show_json(facts[0] if len(topics) == 1 else facts)
    elif not topics:
        click.echo("no letters")
    return 0 if all(each.is_complete for each in results) else 1


def _counts(done: Redriven) -> dict[str, Any]:
    """Return the result for the audit log."""
    facts = done.facts()
    names = ("job", "redriven", "at_least", "resumed", "left", "targets", "stopped", "seconds")
    patched = {"patched": done.patched} if done.patched else {}
    return {**{name: facts[name] for name in names}, **patched}


def _run(job: Redrive, what: str, total: int | None) -> Redriven:
    """Do the job, and show its progress."""
    with _interruptible(job), progress(what, job.source) as show:

        def tell(so_far: Redriven) -> None:
            if so_far.dry_run:
                show(so_far.read, so_far.backlog)
            else:
                show(so_far.redriven, total)

        return job.run(tell)


@contextlib.contextmanager
def _interruptible(job: Redrive) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM cancel the job; the second ends the process."""
    previous = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def cancel(_number: int, _frame: object) -> None:
        job.cancel()
        for each, handler in previous.items():
            signal.signal(each, handler)

    for each in previous:
        signal.signal(each, cancel)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


# -- as text --------------------------------------------------------------------------------------


def _show(done: Redriven, word: str, *, several: bool, diffs: int) -> None:
    if several:
        click.echo(f"{done.source}:")
    _show_plan(done, diffs)
    verb = f"would be {word}" if done.dry_run else word
    resumed = ", including the previous run" if done.resumed else ""
    least = "at least " if done.at_least else ""
    click.echo(f"{least}{done.redriven} {verb}{resumed}, {done.seconds:.1f} s")
    for topic, count in done.targets.items():
        click.echo(f"  {count} to {clean(topic)}")
    if done.patched:
        would = "would be changed" if done.dry_run else "changed"
        click.echo(f"  {done.patched} {would} by the patch")
    seen = "of those read " if done.stopped else ""
    for why, count in done.left.items():
        click.echo(f"  {count} {seen}stay: {STAYS.get(why, why)}")
    for problem in done.problems:
        click.echo(f"  {clean(problem)}", err=True)
    if done.stopped == SAMPLE:
        of = "" if done.backlog is None else f" of about {done.backlog}"
        click.echo(f"Only the first {done.read}{of} letters were read: --within 10m reads longer.")
    elif done.stopped:
        click.echo(STOPPED[done.stopped])


def _show_plan(done: Redriven, diffs: int) -> None:
    """Show what only a dry run has."""
    for diff in done.diffs[:diffs]:
        click.echo(f"letter {diff.message_id}:")
        click.echo(clean(diff.text))
        click.echo()
    if done.groups:
        show_groups(done.groups)
        click.echo()
