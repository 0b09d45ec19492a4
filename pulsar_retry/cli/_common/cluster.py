"""The connection options of all verbs that use a cluster, and the `Cluster` that they make."""

from __future__ import annotations

from typing import Any

import click
import urllib3
from click.core import ParameterSource

from pulsar_retry.cli._common.options import as_argument
from pulsar_retry.replay.cluster import Cluster

__all__ = ["cluster_options", "json_option"]

#: The parameters that say where the cluster is.
_KEYS = (
    "service_url",
    "admin_url",
    "token",
    "token_file",
    "tls_trust_certs_file",
    "tls_allow_insecure",
)

#: The option of all verbs that print data.
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _cluster_of_options(given: dict[str, Any]) -> Cluster:
    return _cluster(_one_token({key: given.pop(key) for key in _KEYS}))


def _one_token(given: dict[str, Any]) -> dict[str, Any]:
    """Ignore a token, or its file, from the environment if an option gives the other one."""
    source = click.get_current_context().get_parameter_source
    for name, other in (("token", "token_file"), ("token_file", "token")):
        by_option = given[other] is not None and source(other) is ParameterSource.COMMANDLINE
        if by_option and source(name) is ParameterSource.ENVIRONMENT:
            return {**given, name: None}
    return given


def _cluster(given: dict[str, Any]) -> Cluster:
    arguments = {key: value for key, value in given.items() if value is not None}
    service_url = arguments.pop("service_url", None)
    if arguments.get("tls_allow_insecure"):  # the user knows it: no warning for each request
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return Cluster(**arguments) if service_url is None else Cluster(service_url, **arguments)


#: Gives a command the connection options; the command gets them as one argument, `cluster`. The
#: help of the root explains all of them, and that of a verb names the root's.
cluster_options = as_argument(
    "cluster",
    _cluster_of_options,
    click.option(
        "--service-url",
        envvar="PULSAR_SERVICE_URL",
        metavar="URL",
        help="Where clients connect. More of the connection: pulsar-retry --help.",
    ),
    click.option("--admin-url", envvar="PULSAR_ADMIN_URL", hidden=True),
    click.option("--token", envvar="PULSAR_TOKEN", hidden=True),
    click.option("--token-file", envvar="PULSAR_TOKEN_FILE", hidden=True),
    click.option("--tls-trust-certs-file", envvar="PULSAR_TLS_TRUST_CERTS_FILE", hidden=True),
    click.option(
        "--tls-allow-insecure/--tls-verify",
        envvar="PULSAR_TLS_ALLOW_INSECURE",
        default=None,
        hidden=True,
    ),
)
