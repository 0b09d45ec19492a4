"""The root of the command line: finds the verbs, and turns errors into messages and exit codes."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from _pulsar import Interrupted, PulsarException

from pulsar_retry._version import __version__
from pulsar_retry.errors import AdminError, ConfigError, PulsarRetryError, UnreachableError

__all__ = ["run"]

_VERBS = Path(__file__).parents[1]
_PACKAGE = "pulsar_retry.cli"

_FAILED = 1
_WRONG_USAGE = 2


class _Verbs(click.Group):
    """A group whose commands are the public modules of the package above."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        modules = (module.name for module in pkgutil.iter_modules([str(_VERBS)]))
        return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{_PACKAGE}.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
The cluster of a verb; options win over the environment:
  --service-url URL            PULSAR_SERVICE_URL  [pulsar://localhost:6650]
  --admin-url URL              PULSAR_ADMIN_URL  [port 8080, with TLS 8443]
  --token TOKEN                PULSAR_TOKEN  (other users can see an option)
  --token-file FILE            PULSAR_TOKEN_FILE
  --tls-trust-certs-file FILE  PULSAR_TLS_TRUST_CERTS_FILE  [the system's]
  --tls-allow-insecure         PULSAR_TLS_ALLOW_INSECURE
\b
Exit codes: 0 ok, 1 the job failed, 2 wrong usage.""",
)
@click.version_option(__version__, prog_name="pulsar-retry")
def _root() -> None:
    """Retry letters, dead letters and delay levels for Apache Pulsar."""


def run(arguments: Sequence[str] | None, began: float) -> int:
    """Run the command line and return the exit code.

    An error becomes one line on standard error, or one line of JSON with ``--json``.

    Args:
        arguments: The arguments; None means those of this process.
        began: When the command began, by the monotonic clock.
    """
    try:
        # Without standalone_mode, click returns its exit code, or the verb's own result.
        code = _root.main(arguments, prog_name="pulsar-retry", standalone_mode=False, obj=began)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has ended (`… | head`)
        code = _FAILED
    except (click.Abort, click.ClickException, PulsarRetryError, PulsarException, OSError) as error:
        code = _tell(error, as_json="--json" in (arguments or sys.argv[1:]))
    try:
        sys.stdout.flush()
    except OSError:
        # What is left must not fail again when the interpreter flushes it: the exit code would be
        # 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code if isinstance(code, int) else 0


def _tell(error: Exception, *, as_json: bool) -> int:
    """Print an error and return the exit code."""
    if isinstance(error, Interrupted) or isinstance(error.__cause__, Interrupted):
        error = click.Abort()  # Ctrl-C while pulsar-client waited
    code, text = _FAILED, str(error)
    if isinstance(error, click.ClickException):
        code, text = error.exit_code, error.format_message()
    elif isinstance(error, ConfigError):
        code = _WRONG_USAGE
    elif isinstance(error, click.Abort):  # Ctrl-C, or "no" to a question
        text = "aborted"
    elif not isinstance(error, PulsarRetryError | OSError):
        text = f"the broker was not reached, or refused the request: {error}"
    if as_json:
        kind = type(error).__name__
        facts = {"code": _code_of(error), "error": text, "kind": kind, "exit_code": code}
        click.echo(json.dumps(facts, ensure_ascii=False), err=True)
    elif isinstance(error, click.ClickException):
        error.show()  # together with the usage
    elif isinstance(error, click.Abort):
        click.echo(text, err=True)
    else:
        click.echo(f"error: {text}", err=True)
    return code


def _code_of(error: BaseException) -> str:
    """Return a short, stable name of an error for programs: ``admin_not_found``, for example."""
    if isinstance(error, click.UsageError):
        return "usage"
    if isinstance(error, click.Abort):
        return "aborted"
    if type(error) is click.ClickException:  # a verb tells of another error
        return "failed" if error.__cause__ is None else _code_of(error.__cause__)
    if isinstance(error, AdminError) and error.status is None:
        return "unreachable"
    if isinstance(error, UnreachableError):
        from pulsar_retry.replay.reaching import REFUSES  # heavy

        if REFUSES in str(error):
            return "forbidden"
    name = type(error).__name__.removesuffix("Error")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
