"""A real Pulsar for integration tests, from the first of three places that has one.

1. The environment: `PULSAR_SERVICE_URL`, with `PULSAR_ADMIN_URL` (default: port 8080 of the same
   host).
2. A container, when testcontainers is installed, a Docker daemon answers, and the image
   `PULSAR_IMAGE` (default: the official one) is there or can be pulled.
3. The standalone child process (see `pulsar_retry.standalone`).

`PULSAR_RETRY_REQUIRE_CONTAINER=1` makes it an error to arrive at the third. Container and child
process get the same settings, so a test sees no difference.
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
from pulsar_retry.standalone.jars.progress import progress_on
from pulsar_retry.standalone.jvm.health import is_ready, wait_until
from pulsar_retry.testing._container import PulsarContainer, missing_for_container

__all__ = [
    "DEFAULT_IMAGE",
    "BrokerChoice",
    "Kind",
    "RunningBroker",
    "find_broker",
    "running_broker",
]

DEFAULT_IMAGE = "apachepulsar/pulsar:4.2.4"

Kind = Literal["environment", "container", "standalone"]

_ENVIRONMENT_TIMEOUT = 30.0  # seconds for a broker that somebody just started
_log = logging.getLogger(__name__)


@attrs.frozen
class BrokerChoice:
    """Which broker tests get.

    Attributes:
        kind: Where it comes from.
        why_no_container: What a container lacks; "" when it is the choice.
    """

    kind: Kind
    why_no_container: str


@attrs.frozen
class RunningBroker:
    """A broker that is ready.

    Attributes:
        kind: Where it comes from.
        service_url: What a client connects to.
        admin_url: The REST API's root, without a slash at the end.
        restart: Stops the broker if it runs and starts it with the same data and URLs; None when
            it is not ours to restart.
        kill: Kills the broker as a crash would; `restart` brings it back. None as above.
    """

    kind: Kind
    service_url: str
    admin_url: str
    restart: Callable[[], None] | None = None
    kill: Callable[[], None] | None = None


def find_broker() -> BrokerChoice:
    """Say which broker `running_broker` would give. It may pull the image, but starts nothing.

    Raises:
        StandaloneError: A container is required and can't be had.
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
    """Give a broker that is ready, and stop at the end what was started for it.

    Args:
        choice: What `find_broker` returned; None asks it.
        settings: Lines of `standalone.conf` to add or replace. A broker that the environment names
            is used as it is.

    Raises:
        StandaloneError: The broker did not become ready, or a container is required and can't be
            had.
    """
    chosen = choice or find_broker()
    if chosen.kind == "environment":
        yield _from_environment()
    elif chosen.kind == "container":
        with PulsarContainer(_image(), settings) as container:
            yield RunningBroker(
                "container",
                container.service_url,
                container.admin_url,
                container.restart,
                container.kill,
            )
    else:
        _log.info("using the standalone Pulsar, because %s", chosen.why_no_container)
        with Standalone(progress=progress_on(), settings=settings) as standalone:
            yield RunningBroker(
                "standalone",
                standalone.service_url,
                standalone.admin_url,
                standalone.restart,
                standalone.kill,
            )


def _image() -> str:
    return os.environ.get("PULSAR_IMAGE") or DEFAULT_IMAGE


def _from_environment() -> RunningBroker:
    service_url = os.environ["PULSAR_SERVICE_URL"]
    host = urllib.parse.urlsplit(service_url).hostname or "localhost"
    admin_url = (os.environ.get("PULSAR_ADMIN_URL") or f"http://{host}:8080").rstrip("/")
    if not wait_until(lambda: is_ready(admin_url), _ENVIRONMENT_TIMEOUT):
        raise StandaloneError(
            f"the broker that PULSAR_SERVICE_URL={service_url} names is not healthy at {admin_url} "
            "(set PULSAR_ADMIN_URL if its REST API is elsewhere)"
        )
    return RunningBroker("environment", service_url, admin_url)
