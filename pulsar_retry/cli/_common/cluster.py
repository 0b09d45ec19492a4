"""The connection options of all verbs that use a cluster, and the `Cluster` that they make."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import urllib3
from click.core import ParameterSource

from pulsar_retry.cli._common.options import as_argument
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.cluster import Cluster

__all__ = ["CONNECTION", "cluster_of", "cluster_options", "json_option"]

#: The keys of a configuration file.
_KEYS = (
    "service_url",
    "admin_url",
    "token",
    "token_file",
    "tls_trust_certs_file",
    "tls_allow_insecure",
)

#: The text about the connection in the help of a group.
CONNECTION = (
    "The settings of the connection come from the options, the environment (PULSAR_SERVICE_URL, "
    "PULSAR_ADMIN_URL, PULSAR_TOKEN, PULSAR_TOKEN_FILE, PULSAR_TLS_TRUST_CERTS_FILE, "
    "PULSAR_TLS_ALLOW_INSECURE), or a TOML file with keys such as service_url, in this order of "
    "precedence."
)


#: The option of all verbs that print data.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def cluster_of(params: Mapping[str, Any]) -> Cluster:
    """Return the cluster of a command that is being completed, from its parameters so far.

    Raises:
        ConfigError: a setting is invalid.
    """
    return _cluster({key: params.get(key) for key in _KEYS}, params.get("config_file"))


def _cluster_of_options(given: dict[str, Any]) -> Cluster:
    settings = _one_token({key: given.pop(key) for key in _KEYS})
    return _cluster(settings, given.pop("config_file"))


def _one_token(given: dict[str, Any]) -> dict[str, Any]:
    """Ignore a token, or its file, from the environment if an option gives the other one."""
    source = click.get_current_context().get_parameter_source
    for name, other in (("token", "token_file"), ("token_file", "token")):
        by_option = given[other] is not None and source(other) is ParameterSource.COMMANDLINE
        if by_option and source(name) is ParameterSource.ENVIRONMENT:
            return {**given, name: None}
    return given


def _cluster(given: dict[str, Any], config_file: str | None) -> Cluster:
    named = {key: value for key, value in given.items() if value is not None}
    if {"token", "token_file"} & set(named):
        # A given token replaces the token or the token file of the configuration file.
        base = {k: v for k, v in _read(config_file).items() if k not in {"token", "token_file"}}
    else:
        base = _read(config_file)
    arguments = base | named
    service_url = arguments.pop("service_url", None)
    if arguments.get("tls_allow_insecure"):  # the user knows it: no warning for each request
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return Cluster(**arguments) if service_url is None else Cluster(service_url, **arguments)


def _read(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, RuntimeError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        # RuntimeError: there is no such user as in "~user"
        raise ConfigError(f"--config {path} cannot be read: {error}") from None
    for key, value in found.items():
        expected = bool if key == "tls_allow_insecure" else str
        if key not in _KEYS or not isinstance(value, expected):
            accepted = (
                f"one of {', '.join(_KEYS)}, with a string (tls_allow_insecure: true or false)"
            )
            raise ConfigError.bad(f"{key} in {path}", value, accepted)
    return found


#: Gives a command the connection options; the command gets them as one argument, `cluster`.
cluster_options = as_argument(
    "cluster",
    _cluster_of_options,
    click.option(
        "--service-url",
        envvar="PULSAR_SERVICE_URL",
        metavar="URL",
        help="Where clients connect.  [default: pulsar://localhost:6650]",
    ),
    click.option(
        "--admin-url",
        envvar="PULSAR_ADMIN_URL",
        metavar="URL",
        help="The REST API.  [default: port 8080 of the same host, with TLS 8443]",
    ),
    click.option(
        "--token",
        envvar="PULSAR_TOKEN",
        metavar="TOKEN",
        help="A token. Other users of this machine can see it: prefer the environment or a file.",
    ),
    click.option(
        "--token-file",
        envvar="PULSAR_TOKEN_FILE",
        metavar="FILE",
        help="A file with the token.",
    ),
    click.option(
        "--tls-trust-certs-file",
        envvar="PULSAR_TLS_TRUST_CERTS_FILE",
        metavar="FILE",
        help="A file of trusted certificates.  [default: the system's; for brokers, certifi's]",
    ),
    click.option(
        "--tls-allow-insecure/--tls-verify",
        envvar="PULSAR_TLS_ALLOW_INSECURE",
        default=None,
        help="Whether to accept any certificate.  [default: verify]",
    ),
    click.option(
        "--config",
        "config_file",
        envvar="PULSAR_RETRY_CONFIG",
        metavar="FILE",
        help="A TOML file with settings that neither an option nor the environment gives.",
    ),
)
