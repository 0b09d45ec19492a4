"""What verbs that change something have in common: dry run, question, audit log, and report."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import click
from click.core import ParameterSource

from pulsar_retry.cli._common.options import as_argument
from pulsar_retry.cli._common.output import ask, check_can_ask, show_json
from pulsar_retry.errors import AuditError
from pulsar_retry.ops.audit import Act
from pulsar_retry.replay.redriving.report import CANCELLED
from pulsar_retry.replay.redriving.source import operator_name

__all__ = ["Operation", "Operator", "audit_hint", "carry_out", "operator_options"]

#: Options that say how to connect or to print, and not what to do.
_LEFT_OUT = frozenset(
    {
        *("service_url", "admin_url", "token", "token_file", "tls_trust_certs_file"),
        *("tls_allow_insecure", "as_json", "yes", "by", "why", "no_audit"),
    }
)


@attrs.frozen
class Operator:
    """Who gives a command, and why.

    Attributes:
        by: Who.
        why: The reason; None if none was given.
        audits: Whether the audit log is written.
    """

    by: str
    why: str | None
    audits: bool

    def act(self, target: str, job: str | None = None) -> Act:
        """Return the running command, which changes *target*, with the options that were given.

        *job* is its id, if it has one of its own.
        """
        context = click.get_current_context()
        source = context.get_parameter_source
        given = {
            name: value
            for name, value in context.params.items()
            if name not in _LEFT_OUT and source(name) is ParameterSource.COMMANDLINE
        }
        _, _, verb = context.command_path.partition(" ")
        facts = {} if job is None else {"job": job}
        return Act(verb=verb, target=target, by=self.by, why=self.why, given=given, **facts)


class Report(Protocol):
    """What was done, or would be done."""

    @property
    def stopped(self) -> str | None:
        """Why it ended early."""

    @property
    def is_complete(self) -> bool:
        """Whether all of it could be done."""

    def facts(self) -> dict[str, Any]:
        """Return it as JSON-compatible values."""


class Operation(abc.ABC):
    """A change of one topic, or of one subscription."""

    @abc.abstractmethod
    def plan(self, *, asked: bool) -> Any:
        """Do a dry run, which was *asked* for or comes before the question; return its report.

        None: there cannot be one before the question.
        """

    @abc.abstractmethod
    def act(self, who: Operator) -> Any:
        """Do it, within entries of the audit log, and return the report."""

    @abc.abstractmethod
    def show(self, report: Any) -> None:
        """Print a report."""


def carry_out(
    operations: Sequence[Operation],
    *,
    who: Operator,
    question: Callable[[Sequence[Any]], str | None],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Do a dry run, ask unless *yes* is set, do all *operations*, and report.

    Args:
        operations: What to do, one after the other.
        who: Who gives the command.
        question: Returns what to ask, from the reports of the dry runs; None: nothing is to do.
        dry_run: Do only the dry run.
        yes: Do not ask.
        as_json: Print JSON: an object, or a list of objects unless there is one operation.

    Returns:
        The exit code.
    """
    check_can_ask(yes=yes or dry_run)
    reports: list[Report] = []

    def end() -> int:
        if as_json and (reports or not operations):
            facts = [each.facts() for each in reports]
            show_json(facts[0] if len(operations) == 1 else facts)
        return 0 if all(each.is_complete for each in reports) else 1

    if not (dry_run or yes):
        reports += _planned(operations, as_json=as_json)
        asked = question(reports)
        if asked is None:
            return end()
        ask(asked)
        reports.clear()
    try:
        for each in operations:
            with audit_hint():
                report: Report = each.plan(asked=True) if dry_run else each.act(who)
            reports.append(report)
            if not as_json:
                each.show(report)
            if report.stopped == CANCELLED:
                break
    finally:  # an error about one must not hide what was done before
        code = end()
    return code


def _planned(operations: Sequence[Operation], *, as_json: bool) -> Iterator[Report]:
    """Yield the reports of dry runs, and show them unless *as_json* is set.

    Raises:
        click.Abort: one was cancelled.
    """
    for each in operations:
        plan: Report | None = each.plan(asked=False)
        if plan is None:
            continue
        if not as_json:
            each.show(plan)
        if plan.stopped == CANCELLED:
            raise click.Abort
        yield plan


@contextlib.contextmanager
def audit_hint() -> Iterator[None]:
    """Add to the error about an audit log that cannot be written what to do."""
    try:
        yield
    except AuditError as error:
        raise AuditError(f"{error}; nothing was done (--no-audit goes on without it)") from None


def _operator_of(given: dict[str, Any]) -> Operator:
    by, why = given.pop("by"), given.pop("why")
    return Operator(by or operator_name(), why, audits=not given.pop("no_audit"))


#: Gives a command the options of the audit log; the command gets them as one argument, `who`.
operator_options = as_argument(
    "who",
    _operator_of,
    click.option("--why", metavar="TEXT", help="The reason, for the audit log."),
    click.option(
        "--by",
        envvar="PULSAR_RETRY_OPERATOR",
        metavar="NAME",
        help="Who does this, for the audit log.  [default: user@host]",
    ),
    click.option("--no-audit", is_flag=True, help="Do not write the audit log."),
)
