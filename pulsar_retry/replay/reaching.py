"""Check quickly whether there is a Pulsar broker at a URL.

pulsar-client tries for as long as an operation may take, 30 s, and then reports "timeout" or
"connect error" without the URL or the cause.
"""

from __future__ import annotations

import ssl

import certifi

from pulsar_retry.admin.transport import Endpoint, tls_context
from pulsar_retry.errors import UnreachableError
from pulsar_retry.runtime.reaching import problem_at

#: Seconds for all hosts of a URL together.
_PATIENCE = 4.0


def check_broker(service_url: str, endpoint: Endpoint, *, validate_hostname: bool = False) -> None:
    """Check that a broker answers at one of the hosts of a service URL. Blocks for 4 s at most.

    Args:
        service_url: The URL that pulsar-client would connect to.
        endpoint: The trusted certificates and our credentials.
        validate_hostname: Whether the certificate must match the host name. By default
            pulsar-client does not check this either.

    Raises:
        UnreachableError: nothing answers, or not a broker, or it refuses the token.
        ConfigError: the token or the certificates cannot be read.
    """
    scheme = service_url.partition("://")[0]
    token = endpoint.read_token() if scheme.startswith("pulsar") else None
    context = _tls(endpoint, validate_hostname) if scheme in {"pulsar+ssl", "https"} else None
    if problem := problem_at(service_url, token=token, context=context, patience=_PATIENCE):
        raise UnreachableError(f"{service_url} was not reached: {problem}")


def _tls(endpoint: Endpoint, validate_hostname: bool) -> ssl.SSLContext:
    """Return a context that is as strict as pulsar-client, which is less strict than Python."""
    context = tls_context(endpoint)
    context.check_hostname = validate_hostname and not endpoint.tls_allow_insecure
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if endpoint.tls_trust_certs_file is None and not endpoint.tls_allow_insecure:
        context.load_verify_locations(certifi.where())  # pulsar-client trusts these
    return context
