"""The releases of Pulsar that can run as a child process, each with its lock file."""

from __future__ import annotations

import os

import attrs

from pulsar_retry.errors import ConfigError

__all__ = ["DEFAULT_VERSION", "RELEASES", "VERSION_VARIABLE", "Release", "find_release"]

DEFAULT_VERSION = "4.2"
VERSION_VARIABLE = "PULSAR_RETRY_PULSAR_VERSION"


@attrs.frozen
class Release:
    """A release of Pulsar.

    Attributes:
        version: How users and the profiles of `pom.xml` name it: `4.2`.
        full: Its exact version: `4.2.4`.
        minimum_java: The oldest Java that it runs on.
    """

    version: str
    full: str
    minimum_java: int

    @property
    def lock_name(self) -> str:
        """The name of its lock file."""
        return f"jars-{self.version}.lock"


RELEASES = {
    each.version: each for each in (Release("4.0", "4.0.7", 17), Release("4.2", "4.2.4", 17))
}


def find_release(version: str | None = None) -> Release:
    """Return the release that a user names.

    Args:
        version: `4.0` or `4.2`; None means `PULSAR_RETRY_PULSAR_VERSION`, or else 4.2.

    Raises:
        ConfigError: There is no such release, or the variable names none.
    """
    name = "version" if version is not None else VERSION_VARIABLE
    wanted = version if version is not None else os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION
    if wanted not in RELEASES:
        raise ConfigError.bad(name, wanted, " or ".join(repr(each) for each in RELEASES))
    return RELEASES[wanted]
