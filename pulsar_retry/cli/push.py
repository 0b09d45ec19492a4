"""`pulsar-retry push serve`: deliver a subscription to an HTTP endpoint."""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import click
import pulsar

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.options import address, example, naming_option, with_options
from pulsar_retry.errors import ConfigError, UnreachableError
from pulsar_retry.policy.checks import seconds_of_text
from pulsar_retry.policy.dead_letter import DeadLetterPolicy
from pulsar_retry.policy.explain import SCHEDULE_SETTINGS
from pulsar_retry.policy.retry import RetryPolicy, policy_of_texts
from pulsar_retry.pull.settings import Breaker
from pulsar_retry.wire.names import Naming

if TYPE_CHECKING:
    from pulsar_retry.push.dispatcher import Dispatcher
    from pulsar_retry.push.tokens import ServiceAccount

__all__ = ["command"]

#: Options whose name differs from that of their argument.
_NAMES = {
    "client_email": "--service-account",
    "email": "--service-account",
    "others": "--service-account",
    "private_key": "--service-account",
    "dead_letter_status": "--dead-letter-status",
    "service_account": "--service-account",
}
#: An argument with its value in an error; of a flag, the value says nothing.
_ARGUMENT = re.compile(r"\b(\w+)=(?:(?:True|False)\b)?|^(\w+)(?=: )")
#: Seconds to wait at the end, if an answer may not take longer.
PATIENCE = 25.0
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(
    short_help="Deliver a subscription to an HTTP endpoint.",
    epilog=example(
        "pulsar-retry push serve --topic orders --subscription billing --endpoint "
        "http://localhost:8080/"
    ),
)
def command() -> None:
    """Deliver a subscription to an HTTP endpoint, as Pub/Sub push does."""


_serve_options = with_options(
    click.option("--topic", "topics", multiple=True, required=True, help="Repeatable."),
    click.option("--subscription", required=True),
    click.option(
        "--endpoint",
        envvar="PULSAR_PUSH_ENDPOINT",
        show_envvar=True,
        required=True,
        metavar="URL",
        help="Others can see the command line: give a secret URL by the environment.",
    ),
    click.option(
        "--ack-deadline",
        default="10",
        metavar="DURATION",
        help="How long an answer may take: 10s to 600s.  [default: 10s]",
    ),
    click.option("--unwrapped", is_flag=True, help="Post the payload instead of Pub/Sub's JSON."),
    click.option("--subscription-name", metavar="NAME", help="Its name in the request."),
    click.option("--ordered", is_flag=True, help="Each key in order (Key_Shared)."),
    click.option(
        "--service-account",
        "service_accounts",
        type=_FILE,
        multiple=True,
        help="Key file to sign requests with. Repeatable: the first signs, all keys are served.",
    ),
    click.option("--audience", metavar="TEXT", help="Of the JWT.  [default: the endpoint]"),
    click.option("--max-attempts", metavar="N", help="Retry by letters: so many attempts, or inf."),
    click.option("--max-age", metavar="DURATION", help="Retry by letters: up to this age."),
    click.option("--backoff", metavar="TEXT", help='Retry by letters: "exponential 10s 10m", …'),
    click.option("--jitter", metavar="KIND", help="Retry by letters: none, upward or full."),
    click.option(
        "--max-delivery-attempts", type=int, metavar="N", help="Then dead-letter: 5 to 100."
    ),
    click.option(
        "--dead-letter-status",
        "dead_letter_statuses",
        type=int,
        multiple=True,
        metavar="STATUS",
        help="Dead-letter at once, for example 410. Repeatable.",
    ),
    click.option("--dead-letter-topic", metavar="TOPIC", help="The dead-letter topic."),
    click.option("--retry-letter-topic", metavar="TOPIC", help="The retry topic."),
    naming_option("letter topics"),
    click.option("--pubsub-attributes", is_flag=True, help="Letters have Pub/Sub's attributes."),
    click.option("--no-breaker", is_flag=True, help="Dead-letter also while all requests fail."),
    click.option("--max-outstanding", type=int, default=3000, show_default=True, metavar="N"),
    click.option("--max-rate", type=float, metavar="N", help="Requests per second at most."),
    click.option("--allow-http", is_flag=True, help="Allow http:// to other machines."),
    click.option("--ca-file", type=_FILE, help="Trust only these certificates."),
    click.option(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="For health and metrics."
    ),
    json_option,
    cluster_options,
)


@command.command(
    short_help="Post each message to an endpoint until SIGTERM.",
    epilog="""\b
Example:
  pulsar-retry push serve --topic orders --subscription billing \\
      --endpoint https://example.com/push --service-account key.json --backoff "fixed 10s\"""",
)
@_serve_options
def serve(**options: Any) -> None:
    """Post each message of a subscription to an endpoint, and settle it by the answer.

    102, 200, 201, 202 and 204 acknowledge the message. After any other result it is delivered
    again: at once, as fast as the push backoff allows; or, with one of the options of a retry
    policy, by retry letters. SIGTERM and SIGINT wait for the answers to outstanding requests, for
    25 s or --ack-deadline, and the exit code is 0. The address of --listen serves GET /livez,
    /readyz and /metrics; with --service-account also /.well-known/jwks.json and
    /tokeninfo?id_token=TOKEN.
    """
    try:
        _serve(SimpleNamespace(**options))
    except ConfigError as error:
        raise _by_options(error) from None


def _serve(options: SimpleNamespace) -> None:
    try:
        from pulsar_retry.observe.serving import (  # for --help's sake
            own_registry,
            serve_registry,
        )
        from pulsar_retry.push.tokens import key_pages
    except ModuleNotFoundError as error:  # the message says what to install
        raise click.ClickException(str(error)) from error
    account = _account(options)
    host, port = address(options.listen)
    deadline = seconds_of_text("ack_deadline", options.ack_deadline)
    client = options.cluster.client(check=False)
    try:
        dispatcher = _dispatcher(client, options, account, deadline)
        options.cluster.check()
        pages = key_pages(account)
        with serve_registry(own_registry(), port, host, dispatcher, pages) as server:
            told = {
                "topics": list(options.topics),
                "subscription": options.subscription,
                "endpoint": dispatcher.endpoint,
                "listen": server.url,
            }
            report = dispatcher.run(
                timeout=max(PATIENCE, deadline), ready=lambda: _ready(told, options)
            )
    except UnreachableError:
        raise
    except (pulsar.PulsarException, OSError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        client.close()
    _tell(attrs.asdict(report), options)


def _dispatcher(
    client: Any, options: SimpleNamespace, account: ServiceAccount | None, deadline: float
) -> Dispatcher:
    from pulsar_retry.pull.settings import Letters
    from pulsar_retry.push.dispatcher import Dispatcher
    from pulsar_retry.push.form import Connections, Form

    return Dispatcher(
        client,
        list(options.topics) if len(options.topics) > 1 else options.topics[0],
        options.subscription,
        options.endpoint,
        ack_deadline=deadline,
        retry_policy=_retry_policy(options),
        dead_letter_policy=_dead_letter_policy(options),
        dead_letter_statuses=options.dead_letter_statuses,
        form=Form(
            wrapped=not options.unwrapped,
            subscription_name=options.subscription_name,
            sign=account,
            audience=options.audience,
        ),
        connections=Connections(
            allow_http=options.allow_http,
            tls=_trust(options.ca_file),
        ),
        max_outstanding=options.max_outstanding,
        max_rate=options.max_rate,
        consumer_type=pulsar.ConsumerType.KeyShared if options.ordered else None,
        breaker=None if options.no_breaker else Breaker(),
        letters=Letters(naming=Naming(options.naming), pubsub_attributes=options.pubsub_attributes),
    )


def _by_options(error: ConfigError) -> ConfigError:
    """Return *error* with the names of options in place of Python's argument names."""
    params = click.get_current_context().command.params
    names = {each.name: each.opts[0] for each in params} | _NAMES

    def named(match: re.Match[str]) -> str:
        option = names.get(match[1] or match[2])
        return match[0] if option is None else option + " " * match[0].endswith("=")

    return ConfigError(_ARGUMENT.sub(named, str(error)))


# -- options as values ----------------------------------------------------------------------------


def _retry_policy(options: SimpleNamespace) -> RetryPolicy | None:
    texts = {name: getattr(options, name) for name in SCHEDULE_SETTINGS}
    is_given = any(text is not None for text in texts.values())
    if not is_given and options.retry_letter_topic is not None:
        accepted = "an option of the retry policy too, for example --backoff"
        raise ConfigError.bad("retry_letter_topic", options.retry_letter_topic, accepted)
    return policy_of_texts(texts) if is_given else None


def _dead_letter_policy(options: SimpleNamespace) -> DeadLetterPolicy | None:
    dead, retry = options.dead_letter_topic, options.retry_letter_topic
    if options.max_delivery_attempts is not None:
        policy = DeadLetterPolicy.pubsub(options.max_delivery_attempts)
        return attrs.evolve(policy, dead_letter_topic=dead, retry_letter_topic=retry)
    if dead is None and retry is None:
        return None
    return DeadLetterPolicy(dead_letter_topic=dead, retry_letter_topic=retry)


def _account(options: SimpleNamespace) -> ServiceAccount | None:
    from pulsar_retry.push.tokens import ServiceAccount

    if not options.service_accounts:
        return None
    signs, *others = options.service_accounts
    return ServiceAccount.from_file(signs, others=map(ServiceAccount.from_file, others))


def _trust(path: Path | None) -> ssl.SSLContext | None:
    if path is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:  # an SSLError is one
        accepted = "a file of PEM certificates"
        raise ConfigError.bad("ca_file", f"{path} ({type(error).__name__})", accepted) from None


# -- output ---------------------------------------------------------------------------------------


def _ready(told: dict[str, Any], options: SimpleNamespace) -> None:
    if options.as_json:
        click.echo(json.dumps({"ready": told}))
    else:
        click.echo(
            f"pushing {', '.join(told['topics'])} ({told['subscription']}) to {told['endpoint']}; "
            f"health and metrics on {told['listen']}"
        )


def _tell(report: dict[str, Any], options: SimpleNamespace) -> None:
    if options.as_json:
        click.echo(json.dumps({"report": report}))
    else:
        click.echo(", ".join(f"{name} {_shown(value)}" for name, value in report.items()))


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
