"""`pulsar-retry push serve`: deliver a subscription to an HTTP endpoint."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs
import click
import pulsar

from pulsar_retry.cli._common.cluster import cluster_options, json_option
from pulsar_retry.cli._common.options import (
    FILE,
    address,
    by_options,
    naming_option,
    with_options,
)
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
}


@click.group(short_help="Deliver a subscription to an HTTP endpoint.")
def command() -> None:
    """Deliver a subscription to an HTTP endpoint, as Pub/Sub push does."""


_serve_options = with_options(
    click.option(
        "--topic",
        "topics",
        multiple=True,
        required=True,
        help="Repeatable.",
    ),
    click.option("--subscription", required=True),
    click.option(
        "--endpoint",
        envvar="PULSAR_PUSH_ENDPOINT",
        show_envvar=True,
        required=True,
        metavar="URL",
        help="An https URL; http only to loopback or with --allow-http. Other users can see the "
        "command line: give a URL that contains a secret by the environment.",
    ),
    click.option(
        "--ack-deadline",
        default="10",
        metavar="DURATION",
        help="How long the endpoint has to answer, 10s to 600s.  [default: 10s]",
    ),
    click.option("--unwrapped", is_flag=True, help="Post the payload instead of Pub/Sub's JSON."),
    click.option(
        "--subscription-name", metavar="NAME", help="The subscription's name in the request."
    ),
    click.option(
        "--ordered",
        is_flag=True,
        help="Use Key_Shared: the messages of each key are sent in order.",
    ),
    click.option(
        "--service-account",
        "service_accounts",
        type=FILE,
        multiple=True,
        help="A service account's key file. Sign requests with a JWT. Repeatable, to change the "
        "key: the first one signs, and the public keys of all are served.",
    ),
    click.option(
        "--audience", metavar="TEXT", help="The audience of the JWT.  [default: the endpoint]"
    ),
    click.option(
        "--max-attempts",
        metavar="N",
        help="Retry by letters: the number of attempts, or inf.  [default: 17 if one of the next "
        "three options is given]",
    ),
    click.option(
        "--max-age", metavar="DURATION", help="Retry by letters: up to this age of the message."
    ),
    click.option("--backoff", metavar="TEXT", help='Retry by letters: "exponential 10s 10m", …'),
    click.option("--jitter", metavar="KIND", help="Retry by letters: none, upward or full."),
    click.option(
        "--max-delivery-attempts",
        type=int,
        metavar="N",
        help="Dead-letter after this number of attempts, 5 to 100.",
    ),
    click.option(
        "--dead-letter-status",
        "dead_letter_statuses",
        type=int,
        multiple=True,
        metavar="STATUS",
        help="Dead-letter at once after this status, for example 410. Repeatable.",
    ),
    click.option("--dead-letter-topic", metavar="TOPIC", help="The dead-letter topic."),
    click.option("--retry-letter-topic", metavar="TOPIC", help="The retry topic."),
    naming_option("retry and dead-letter topics"),
    click.option(
        "--pubsub-attributes",
        is_flag=True,
        help="Letters also have the attributes of Pub/Sub's dead letters.",
    ),
    click.option(
        "--no-breaker",
        is_flag=True,
        help="Dead-letter messages also while nearly all requests fail.",
    ),
    click.option("--max-outstanding", type=int, default=3000, show_default=True, metavar="N"),
    click.option(
        "--max-rate", type=float, metavar="N", help="Send at most this many requests a second."
    ),
    click.option("--allow-http", is_flag=True, help="Allow http:// for hosts other than this one."),
    click.option("--ca-file", type=FILE, help="The only certificates to trust at the endpoint."),
    click.option(
        "--renew-after",
        default="5m",
        metavar="DURATION",
        help="Replace a connection after this time, and look the name up again.  [default: 5m]",
    ),
    click.option(
        "--listen",
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="Serve health and metrics at this address.",
    ),
    click.option(
        "--drain-timeout",
        default="25",
        metavar="DURATION",
        help="How long to wait for answers when stopping; at least --ack-deadline.  [default: 25s]",
    ),
    json_option,
    cluster_options,
)


@command.command(
    short_help="Post each message to an endpoint until SIGTERM.",
    epilog="""\b
Examples:
  pulsar-retry push serve --topic orders --subscription billing \\
      --endpoint http://localhost:8080/push
  pulsar-retry push serve --topic orders --subscription billing \\
      --endpoint https://example.com/push --service-account key.json \\
      --backoff "exponential 10s 10m" --max-delivery-attempts 5
\b
The address of --listen serves GET /livez, /readyz and /metrics; with
--service-account also /.well-known/jwks.json and
/tokeninfo?id_token=TOKEN.""",
)
@_serve_options
def serve(**options: Any) -> None:
    """Post each message of a subscription to an endpoint, and settle it by the answer.

    102, 200, 201, 202 and 204 acknowledge the message. After any other result it is delivered
    again: at once, as fast as the push backoff allows; or, with one of the options of a retry
    policy, by retry letters. SIGTERM and SIGINT wait for the answers to outstanding requests, and
    the exit code is 0.
    """
    try:
        _serve(SimpleNamespace(**options))
    except ConfigError as error:
        raise by_options(error, click.get_current_context().command, _NAMES) from None


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
    timeout = _drain_timeout(options)
    client = options.cluster.client(check=False)
    try:
        dispatcher = _dispatcher(client, options, account)
        options.cluster.check()
        pages = key_pages(account)
        with serve_registry(own_registry(), port, host, dispatcher, pages) as server:
            told = {
                "topics": list(options.topics),
                "subscription": options.subscription,
                "endpoint": dispatcher.endpoint,
                "listen": server.url,
            }
            report = dispatcher.run(timeout=timeout, ready=lambda: _ready(told, options))
    except UnreachableError:
        raise
    except (pulsar.PulsarException, OSError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        client.close()
    _tell(attrs.asdict(report), options)


def _dispatcher(
    client: Any, options: SimpleNamespace, account: ServiceAccount | None
) -> Dispatcher:
    from pulsar_retry.pull.settings import Letters
    from pulsar_retry.push.dispatcher import Dispatcher
    from pulsar_retry.push.form import Connections, Form

    return Dispatcher(
        client,
        list(options.topics) if len(options.topics) > 1 else options.topics[0],
        options.subscription,
        options.endpoint,
        ack_deadline=seconds_of_text("ack_deadline", options.ack_deadline),
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
            renew_after=seconds_of_text("renew_after", options.renew_after),
        ),
        max_outstanding=options.max_outstanding,
        max_rate=options.max_rate,
        consumer_type=pulsar.ConsumerType.KeyShared if options.ordered else None,
        breaker=None if options.no_breaker else Breaker(),
        letters=Letters(naming=Naming(options.naming), pubsub_attributes=options.pubsub_attributes),
    )


# -- options as values ----------------------------------------------------------------------------


def _drain_timeout(options: SimpleNamespace) -> float:
    """Return the seconds to wait for answers, which are as many as an answer may take, or more."""
    deadline, drain = options.ack_deadline, options.drain_timeout
    timeout = seconds_of_text("drain_timeout", drain)
    if timeout < seconds_of_text("ack_deadline", deadline):
        accepted = f"at least --ack-deadline {deadline}, so that answers can be awaited"
        raise ConfigError.bad("drain_timeout", drain, accepted)
    return timeout


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
