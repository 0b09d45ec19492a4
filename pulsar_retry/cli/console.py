"""`pulsar-retry console`: dead letters in a browser."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from pathlib import Path
from typing import Any

import click

from pulsar_retry._extras import need
from pulsar_retry.cli._common.cluster import CONNECTION, cluster_options, json_option
from pulsar_retry.cli._common.options import FILE, by_options, text_of_file, with_options
from pulsar_retry.errors import ConfigError, PulsarRetryError
from pulsar_retry.policy.durations import seconds_of_text
from pulsar_retry.replay.cluster import Cluster

__all__ = ["command"]

#: The address of the console, without characters that end a link in a message.
_ADDRESS = re.compile(r"https?://[^\s<>|\"']+")
#: Where users are told of failures; see `_notify`.
_notify_options = with_options(
    click.option(
        "--notify",
        "notify_urls",
        multiple=True,
        envvar="PULSAR_RETRY_NOTIFY",
        metavar="URL",
        help="Tell this webhook of new failures, and of failures that grow. Repeatable. Other "
        "users can see the command line: give a URL that is a secret, such as one of Slack, by the "
        "environment or a file.",
    ),
    click.option(
        "--notify-file", type=FILE, metavar="FILE", help="A file with such URLs, one on each line."
    ),
    click.option(
        "--notify-form",
        type=click.Choice(["slack", "json"]),
        help="The form of the messages.  [default: slack for hooks.slack.com, else json]",
    ),
    click.option(
        "--notify-secret-file",
        type=FILE,
        help="A file with a secret. Sign the messages with an HMAC, as `push serve` does.",
    ),
    click.option(
        "--notify-service-account",
        type=FILE,
        help="A service account's key file. Sign the messages with a JWT, likewise.",
    ),
    click.option(
        "--notify-growth",
        type=click.IntRange(1),
        default=100,
        show_default=True,
        metavar="N",
        help="The least growth of a group or topic that is told: its letters have doubled, too.",
    ),
    click.option(
        "--notify-pause",
        default="1m",
        show_default=True,
        metavar="DURATION",
        help="The time between two messages. What is new meanwhile is in one message.",
    ),
    click.option(
        "--notify-allow-http", is_flag=True, help="Allow http:// for hosts other than this one."
    ),
    click.option(
        "--notify-test", is_flag=True, help="Send a test message to each webhook, and end."
    ),
    click.option(
        "--url",
        "public_url",
        metavar="URL",
        help="The address of the console for users, which messages link to.  [default: https:// "
        "and the first --allow-host, or else the address that it listens on]",
    ),
)


@click.command(
    short_help="Look into dead-letter topics in a browser.",
    epilog=f"""{CONNECTION}

\b
Examples:
  pulsar-retry console
  pulsar-retry console --namespace shop/orders --namespace shop/returns
  pulsar-retry console --host 0.0.0.0 --access-token-file secret
  pulsar-retry console --notify-file slack-url --notify-secret-file hmac-secret""",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    default=["public/default"],
    show_default=True,
    metavar="TENANT/NAMESPACE",
    help="A namespace to show. Repeatable.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8070,
    show_default=True,
    help="The port to listen on; 0 for any free port.",
)
@click.option(
    "--access-token-file",
    type=FILE,
    help="A file with the token of operators. Required if other machines can reach the console, "
    "unless there is --oidc-issuer.",
)
@click.option(
    "--viewer-token-file",
    type=FILE,
    help="A file with the token of viewers, who may change nothing.",
)
@click.option(
    "--oidc-issuer",
    metavar="URL",
    help="The OpenID Connect provider where users log in. Register the console there with the "
    "redirect URI https://HOST/login/oidc/callback.",
)
@click.option("--oidc-client-id", metavar="ID", help="The console's client id there.")
@click.option(
    "--oidc-client-secret-file",
    type=FILE,
    help="A file with the console's secret there.  [default: none, a public client]",
)
@click.option(
    "--oidc-claim",
    default="groups",
    show_default=True,
    metavar="NAME",
    help="The claim that decides about roles, such as groups or email.",
)
@click.option(
    "--oidc-operator",
    "oidc_operators",
    multiple=True,
    metavar="VALUE",
    help="A value of the claim that operators have. Repeatable.",
)
@click.option(
    "--oidc-viewer",
    "oidc_viewers",
    multiple=True,
    metavar="VALUE",
    help="A value that viewers have; * for everybody who can log in. Repeatable.",
)
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="The host name of a proxy in front of the console. Repeatable.",
)
@click.option(
    "--every",
    type=click.FloatRange(1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to ask the broker for the number of waiting letters.",
)
@click.option(
    "--store",
    metavar="FILE",
    help="The file with what the console remembers: an index of letters without payloads, depths, "
    "jobs, actions. :memory: remembers nothing.  [default: a file for each cluster in "
    "~/.local/state/pulsar-retry]",
)
@click.option(
    "--keep",
    default="30d",
    show_default=True,
    metavar="DURATION",
    help="How long depths and arrivals are remembered.",
)
@click.option("--no-audit", is_flag=True, help="Do not write the audit log of the namespace.")
@_notify_options
@json_option
@cluster_options
def command(
    *,
    cluster: Cluster,
    namespaces: tuple[str, ...],
    host: str,
    port: int,
    access_token_file: Path | None,
    viewer_token_file: Path | None,
    allow_hosts: tuple[str, ...],
    every: float,
    store: str | None,
    keep: str,
    no_audit: bool,
    as_json: bool,
    notify_test: bool,
    **more: Any,
) -> None:
    """Serve pages that show dead-letter and retry topics, their letters, and why they are dead.

    From them, letters are redriven or discarded, after a dry run and a confirmation. Reading
    consumes nothing. Ctrl-C ends the console. A job that is running then settles its letters in
    flight; it can be resumed when the console runs again.
    """
    try:
        needed = ("authlib", "h11", "jinja2", "jwt", "requests", "starlette", "uvicorn")
        need("console", "the console", *needed)
    except ModuleNotFoundError as error:
        raise PulsarRetryError(str(error)) from None
    from pulsar_retry.console.assembling import ConsoleOptions, opened  # noqa: PLC0415 - likewise
    from pulsar_retry.console.login.access import Access  # noqa: PLC0415 - an extra
    from pulsar_retry.console.serving import serve_console  # noqa: PLC0415 - likewise

    oidc = {name: value for name, value in more.items() if name.startswith("oidc_")}
    try:
        notify = _notify(allow_hosts, **{n: v for n, v in more.items() if n not in oidc})
    except ConfigError as error:
        its = click.get_current_context().command
        raise by_options(error, its, {"secret": "--notify-secret-file"}) from None
    if notify_test:
        _test(notify, cluster, as_json=as_json)
        return
    access = Access(
        host,
        token=text_of_file("access_token_file", access_token_file),
        viewer_token=text_of_file("viewer_token_file", viewer_token_file),
        allow_hosts=allow_hosts,
        by_oidc=oidc["oidc_issuer"] is not None,
    )
    options = ConsoleOptions(
        namespaces=namespaces,
        every=every,
        store=store,
        keep=seconds_of_text("--keep", keep),
        audits=not no_audit,
        notify=notify,
    )
    with opened(cluster, access, options, login=_login(**oidc)) as console:
        # `kill` and service managers must stop it as cleanly as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with contextlib.suppress(KeyboardInterrupt):
            serve_console(console, host, port, lambda url: _ready(url, as_json=as_json))


def _login(
    *,
    oidc_issuer: str | None,
    oidc_client_id: str | None,
    oidc_client_secret_file: Path | None,
    oidc_claim: str,
    oidc_operators: tuple[str, ...],
    oidc_viewers: tuple[str, ...],
) -> Any:
    if oidc_issuer is None:
        return None
    if not oidc_client_id:
        raise ConfigError("oidc_client_id: expected the console's client id at the provider")
    from pulsar_retry.console.login.oidc import OidcLogin, OidcSettings  # noqa: PLC0415 - an extra

    return OidcLogin(
        OidcSettings(
            issuer=oidc_issuer,
            client_id=oidc_client_id,
            client_secret=text_of_file("oidc_client_secret_file", oidc_client_secret_file),
            claim=oidc_claim,
            operators=oidc_operators,
            viewers=oidc_viewers,
        )
    )


def _notify(
    allow_hosts: tuple[str, ...],
    *,
    notify_urls: tuple[str, ...],
    notify_file: Path | None,
    notify_form: Any,
    notify_secret_file: Path | None,
    notify_service_account: Path | None,
    notify_growth: int,
    notify_pause: str,
    notify_allow_http: bool,
    public_url: str | None,
) -> Any:
    """Return what is told to webhooks; None if there are none."""
    from pulsar_retry.console.notify.notifier import NotifyOptions  # noqa: PLC0415 - an extra
    from pulsar_retry.console.notify.webhook import Webhook  # noqa: PLC0415 - likewise
    from pulsar_retry.push.auth.hmacs import Hmac  # noqa: PLC0415 - likewise
    from pulsar_retry.push.auth.tokens import ServiceAccount  # noqa: PLC0415 - likewise

    lines = (text_of_file("notify_file", notify_file) or "").split("\n")
    listed = [each for each in map(str.strip, lines) if each]
    if notify_file is not None and not listed:
        raise ConfigError.bad("notify_file", str(notify_file), "a file with a URL on each line")
    urls = dict.fromkeys([*notify_urls, *listed])
    signers: list[Any] = []
    if (secret := text_of_file("notify_secret_file", notify_secret_file)) is not None:
        signers.append(Hmac(secret if secret.startswith("whsec_") else secret.encode()))
    if notify_service_account is not None:
        signers.append(ServiceAccount.from_file(notify_service_account))
    if public_url is None:  # a proxy, if there is one
        public_url = next((f"https://{each}/" for each in allow_hosts if each != "localhost"), None)
    if public_url is not None and not _ADDRESS.fullmatch(public_url):
        raise ConfigError.bad("--url", public_url, "a URL that begins with https:// or http://")
    hooks = [
        Webhook.of(each, form=notify_form, signers=signers, allow_http=notify_allow_http)
        for each in urls
    ]
    if not hooks:
        return None
    pause = seconds_of_text("--notify-pause", notify_pause)
    return NotifyOptions(hooks, notify_growth, pause, public_url)


def _test(notify: Any, cluster: Cluster, *, as_json: bool) -> None:
    """Send a test message to each webhook.

    Raises:
        ConfigError: there are none.
        PulsarRetryError: some have not accepted it.
    """
    if notify is None:
        raise ConfigError("--notify-test: expected --notify or --notify-file, too")
    from pulsar_retry.console.assembling import send_test  # noqa: PLC0415 - an extra

    if faults := send_test(notify, cluster):
        raise PulsarRetryError(f"not accepted by {'; '.join(faults)}")
    told = [str(each) for each in notify.webhooks]
    click.echo(json.dumps({"accepted": told}) if as_json else f"accepted by {', '.join(told)}")


def _ready(url: str, *, as_json: bool) -> None:
    click.echo(json.dumps({"url": url}) if as_json else f"The console is at {url}; Ctrl-C ends it.")
