"""A real Pulsar for integration tests, from the first available of three sources.

1. The environment: `PULSAR_SERVICE_URL`, with `PULSAR_ADMIN_URL` (default: port 8080 of the same
   host).
2. A container, if testcontainers is installed, a Docker daemon answers, and the image
   `PULSAR_IMAGE` (default: the official one) exists or can be pulled.
3. The standalone child process (see `pulsar_retry.standalone`).

`PULSAR_RETRY_PULSAR_VERSION` chooses the release, 4.2 (the default) or 4.0, of the official image
and of the child process.
With `PULSAR_RETRY_REQUIRE_CONTAINER=1` it is an error to use the third source. The container and
the child process have the same settings, so that tests see no difference.
"""

from __future__ import annotations

import logging
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import attrs

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone import Standalone
from pulsar_retry.standalone.config import Setting
from pulsar_retry.standalone.jars.lock import DEFAULT_VERSION, find_release
from pulsar_retry.standalone.jars.store import to_stderr
from pulsar_retry.standalone.jvm.health import DEFAULT_NAMESPACE, is_ready, wait_until
from pulsar_retry.testing._container import PulsarContainer, missing_for_container

__all__ = [
    "DEFAULT_IMAGE",
    "BrokerChoice",
    "Kind",
    "RunningBroker",
    "find_broker",
    "running_broker",
]

_OFFICIAL_IMAGE = "apachepulsar/pulsar:{}"
DEFAULT_IMAGE = _OFFICIAL_IMAGE.format(find_release(DEFAULT_VERSION).full)

Kind = Literal["environment", "container", "standalone"]

_ENVIRONMENT_TIMEOUT = 30.0  # seconds for a broker that was just started
_log = logging.getLogger(__name__)


@attrs.frozen
class BrokerChoice:
    """The broker that tests get.

    Attributes:
        kind: Its source.
        why_no_container: Why it is not a container; "" if it is one.
    """

    kind: Kind
    why_no_container: str


@attrs.frozen
class RunningBroker:
    """A broker that is ready.

    Attributes:
        kind: Its source.
        service_url: The URL for clients.
        admin_url: The root URL of the REST API, without a slash at the end.
        restart: Stops the broker if it runs, and starts it with the same data and URLs. None for a
            broker from the environment.
        kill: Kills the broker like a crash; `restart` starts it again. None for a broker from the
            environment.
    """

    kind: Kind
    service_url: str
    admin_url: str
    restart: Callable[[], None] | None = None
    kill: Callable[[], None] | None = None


def find_broker() -> BrokerChoice:
    """Return which broker `running_broker` would use. It may pull the image, but starts nothing.

    Raises:
        StandaloneError: a container is required and not available.
    """
    if os.environ.get("PULSAR_SERVICE_URL"):
        return BrokerChoice("environment", "PULSAR_SERVICE_URL names a broker")
    missing = missing_for_container(_image())
    if not missing:
        return BrokerChoice("container", "")
    if os.environ.get("PULSAR_RETRY_REQUIRE_CONTAINER") == "1":
        raise StandaloneError(f"PULSAR_RETRY_REQUIRE_CONTAINER=1, but {missing}")
    return BrokerChoice("standalone", missing)


@contextmanager
def running_broker(
    choice: BrokerChoice | None = None, *, settings: Mapping[str, Setting] | None = None
) -> Iterator[RunningBroker]:
    """Yield a broker that is ready. A broker that was started for this is stopped at the end.

    Args:
        choice: The result of `find_broker`; None calls it.
        settings: Lines of `standalone.conf` to add or replace. They do not apply to a broker from
            the environment.

    Raises:
        StandaloneError: the broker did not become ready, or a container is required and not
            available.
    """
    chosen = choice or find_broker()
    if chosen.kind == "environment":
        yield _from_environment()
    elif chosen.kind == "container":
        with PulsarContainer(_image(), settings) as it:
            yield RunningBroker("container", it.service_url, it.admin_url, it.restart, it.kill)
    else:
        _log.info("using the standalone Pulsar, because %s", chosen.why_no_container)
        with Standalone(progress=to_stderr, settings=settings) as it:
            yield RunningBroker("standalone", it.service_url, it.admin_url, it.restart, it.kill)


def _image() -> str:
    return os.environ.get("PULSAR_IMAGE") or _OFFICIAL_IMAGE.format(find_release().full)


def _from_environment() -> RunningBroker:
    service_url = os.environ["PULSAR_SERVICE_URL"]
    host = urllib.parse.urlsplit(service_url).hostname or "localhost"
    admin_url = (os.environ.get("PULSAR_ADMIN_URL") or f"http://{host}:8080").rstrip("/")
    # Brokers before 2.8 have no namespace pulsar/system.
    namespaces = (DEFAULT_NAMESPACE,)
    if not wait_until(lambda: is_ready(admin_url, namespaces=namespaces), _ENVIRONMENT_TIMEOUT):
        raise StandaloneError(
            f"the broker that PULSAR_SERVICE_URL={service_url} names is not healthy at {admin_url} "
            "(set PULSAR_ADMIN_URL if its REST API is elsewhere)"
        )
    return RunningBroker("environment", service_url, admin_url)
