"""The options of verbs that change something: who does it and why, for the audit log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import click
from click.core import ParameterSource

from pulsar_retry.cli._common.options import as_argument
from pulsar_retry.errors import AuditError
from pulsar_retry.ops.audit import Act, audited
from pulsar_retry.replay.cluster import Cluster
from pulsar_retry.replay.redriving.source import operator_name

__all__ = ["Operator", "audit_hint", "operator_options"]

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

    @contextlib.contextmanager
    def audited(
        self, cluster: Cluster, topic: str, act: Act
    ) -> Iterator[Callable[[Mapping[str, Any]], None]]:
        """Write the audit log around the body; see `ops.audit.audited`.

        Raises:
            AuditError: it cannot be written; the body did not run.
        """
        with audit_hint(), audited(cluster, topic, act, enabled=self.audits) as tell:
            yield tell


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
    click.option("--no-audit", is_flag=True, help="Do not write the audit log of the namespace."),
)
