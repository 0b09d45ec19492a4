"""What verbs that move dead letters have in common: topics, Ctrl-C, progress, and the report."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import click

from pulsar_retry.cli._common.letters import show_groups
from pulsar_retry.cli._common.operation import Operation, Operator, carry_out
from pulsar_retry.cli._common.output import clean, progress
from pulsar_retry.ops.audit import audited_redrive
from pulsar_retry.ops.overview import letter_topics
from pulsar_retry.policy.checks import seconds_of_text
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.redriving.redrive import Redrive
from pulsar_retry.replay.redriving.report import LIMIT, SAMPLE, STAYS, STOPPED, Redriven
from pulsar_retry.wire.names import TopicName

__all__ = [
    "any_topic_option",
    "dead_letter_topics",
    "dlq_subscription_option",
    "dlqs_argument",
    "patience",
    "redrive_all",
]

#: Seconds after its start until which a command reads, if nothing else is asked for, and its text
#: is for people; and for how long it reads at least.
_PATIENCE, _LEAST = 4.0, 1.0
#: For how many letters a dry run shows what a patch changes.
_DIFFS = 3

dlqs_argument = click.argument("dlqs", metavar="DLQ...", nargs=-1, required=True)
dlq_subscription_option = click.option(
    "--dlq-subscription",
    metavar="NAME",
    help="Take letters through it.  [default: pulsar-retry, or the only one]",
)
any_topic_option = click.option(
    "--any-topic", is_flag=True, help="Accept a DLQ that is not a topic of letters."
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


def dead_letter_topics(
    cluster: Cluster, names: Sequence[str], left_out: Callable[[str], None]
) -> list[str]:
    """Return topics; a name ``tenant/namespace`` stands for its dead-letter topics with letters.

    *left_out* is called, in words, with each that is left out, because this role may not read it.
    """
    found: dict[str, None] = {}
    for name in names:
        if name.count("/") != 1:
            found[str(TopicName.parse(name, "DLQ"))] = None
            continue
        with cluster.admin() as admin, progress("asking for topics") as show:
            for each in letter_topics(admin, name, progress=show, left_out=left_out):
                if each.kind == "dead_letter" and each.backlog:
                    found[each.topic] = None
    return list(found)


def redrive_all(
    dlqs: Sequence[str],
    options: dict[str, Any],
    *,
    cluster: Cluster,
    who: Operator,
    question: str,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Redrive or discard the letters of *dlqs*, as `carry_out` does it, and return the exit code.

    Args:
        dlqs: Topics, or namespaces.
        options: Arguments of `Redrive`.
        cluster: The cluster.
        who: Who gives the command.
        question: What to ask, with a place for ``{count}``.
        dry_run: Do only a dry run, of all letters.
        yes: Do not ask.
        as_json: Print JSON.
    """
    left_out: list[str] = []
    topics = dead_letter_topics(cluster, dlqs, left_out.append)
    for text in left_out:
        click.echo(clean(text), err=True)
    options = {**options, "cluster": cluster, "by": who.by}
    operations = [_OfTopic(each, options, several=len(topics) > 1) for each in topics]

    def asked(plans: Sequence[Redriven]) -> str | None:
        least = "at least " if any(each.stopped == SAMPLE for each in plans) else ""
        count = sum(each.redriven for each in plans)
        if not (count or least):
            return None
        return question.format(count=f"{least}{count} letter{'' if count == 1 else 's'}") + "?"

    if not (topics or as_json):
        click.echo("no letters")
    code = carry_out(operations, who=who, question=asked, dry_run=dry_run, yes=yes, as_json=as_json)
    return code or int(bool(left_out))


@attrs.define(init=False)
class _OfTopic(Operation):
    """A redrive of one topic.

    Attributes:
        options: Arguments of `Redrive`.
        several: Whether there are other topics, too.
        redrive: The redrive.
        total: How many letters it will take, if that is known.
    """

    options: dict[str, Any]
    several: bool
    redrive: Redrive
    total: int | None

    def __init__(self, topic: str, options: dict[str, Any], *, several: bool) -> None:
        self.options, self.several, self.total = options, several, options["limit"]
        self.redrive = Redrive(topic, **options)

    def plan(self, *, asked: bool) -> Redriven:
        within = None if asked else patience(None, as_json=False)
        look = Redrive(self.redrive.source, dry_run=True, within=within, **self.options)
        plan = _run(look, "looking", self.total, look.run)
        self.total = None if plan.stopped == SAMPLE else plan.redriven
        return plan

    def act(self, who: Operator) -> Redriven:
        it, cluster = self.redrive, self.options["cluster"]
        act = who.act(it.source, it.job)

        def run(tell: Callable[[Redriven], None]) -> Redriven:
            return audited_redrive(cluster, it, act, tell, enabled=who.audits)

        return _run(it, it.done_word, self.total, run)

    def show(self, report: Redriven) -> None:
        if self.several:
            click.echo(f"{report.source}:")
        _show(report)


def _run(
    job: Redrive,
    what: str,
    total: int | None,
    run: Callable[[Callable[[Redriven], None]], Redriven],
) -> Redriven:
    """Do the job, by *run*, and show its progress."""
    with _interruptible(job), progress(what, job.source) as show:

        def tell(so_far: Redriven) -> None:
            if so_far.dry_run:
                show(so_far.read, so_far.backlog)
            elif so_far.became is None:
                show(so_far.redriven, total, so_far.waits and f"waiting: {so_far.waits}")
            else:
                show(so_far.redriven, total, f"{so_far.became.in_words()} (Ctrl-C ends this)")

        return run(tell)


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


def _show(done: Redriven) -> None:
    _show_plan(done)
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
        click.echo(f"Only the first {done.read}{of} letters were read: --dry-run reads all.")
    elif done.dry_run and done.stopped == LIMIT:
        click.echo("There are more: --limit leaves them.")
    elif done.stopped:
        click.echo(STOPPED[done.stopped])
    if done.became is not None:
        click.echo(f"published {done.redriven}: {done.became.in_words()}")


def _show_plan(done: Redriven) -> None:
    """Show what only a dry run has."""
    for diff in done.diffs[:_DIFFS]:
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
