"""The releases of the standalone Pulsar, and their jars with their exact sizes and checksums.

`python tools/lock_jars.py` makes a file for each release, such as `jars-4.2.lock`, from `pom.xml`
(this needs Maven). Each line describes one jar: coordinates, platform, size in bytes, SHA-256. The
path of a jar is not in it, because it follows from the coordinates by the layout of Maven
repositories.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import resources
from pathlib import PurePosixPath

import attrs

from pulsar_retry.errors import ConfigError, StandaloneError

__all__ = [
    "DEFAULT_VERSION",
    "RELEASES",
    "VERSION_VARIABLE",
    "Jar",
    "Release",
    "current_platform",
    "find_release",
    "jars_for",
    "load_lock",
]

ANY = "any"
_OSES = {"linux": "linux", "darwin": "macos"}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


DEFAULT_VERSION = "4.2"
VERSION_VARIABLE = "PULSAR_RETRY_PULSAR_VERSION"


@attrs.frozen
class Release:
    """A release of Pulsar.

    Attributes:
        version: How users and the profiles of `pom.xml` name it: `4.2`.
        full: Its exact version: `4.2.4`.
    """

    version: str
    full: str

    @property
    def lock_name(self) -> str:
        """The name of its lock file."""
        return f"jars-{self.version}.lock"


RELEASES = {each.version: each for each in (Release("4.0", "4.0.7"), Release("4.2", "4.2.4"))}


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


@attrs.frozen(order=True)
class Jar:
    """One jar of the lock file.

    Attributes:
        coordinates: `group:artifact:version` or `group:artifact:version:classifier`.
        platform: `any`, an operating system (`linux`, `macos`), or one with its machine
            (`linux-x86_64`, `macos-aarch64`).
        size: The file's size in bytes.
        sha256: The file's SHA-256, as 64 lower-case hexadecimal digits.
    """

    coordinates: str
    platform: str
    size: int
    sha256: str

    @property
    def path(self) -> PurePosixPath:
        """The jar's path below the root of a Maven repository."""
        group, artifact, version, *classifier = self.coordinates.split(":")
        name = "-".join([artifact, version, *classifier])
        return PurePosixPath(group.replace(".", "/"), artifact, version, f"{name}.jar")

    def runs_on(self, target: str) -> bool:
        """Tell whether a Pulsar on *target* (as from `current_platform`) needs this jar."""
        return self.platform in (ANY, target) or target.startswith(f"{self.platform}-")


def current_platform() -> str:
    """Return this machine's platform, `<os>-<machine>`.

    Raises:
        StandaloneError: The lock file has no native libraries of RocksDB and Netty for it.
    """
    system = _OSES.get(sys.platform)
    machine = _MACHINES.get(platform.machine().lower())
    if system is None or machine is None:
        raise StandaloneError(
            f"the standalone Pulsar runs on Linux and macOS, on x86_64 and aarch64, not on "
            f"{sys.platform} {platform.machine()}; point PULSAR_SERVICE_URL at a broker instead"
        )
    return f"{system}-{machine}"


def load_lock(release: Release) -> list[Jar]:
    """Return every jar of *release*, for all platforms."""
    text = resources.files(__package__).joinpath(release.lock_name).read_text(encoding="ascii")
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return [Jar(coordinates, target, int(size), sha) for coordinates, target, size, sha in lines]


def jars_for(release: Release | None = None, target: str | None = None) -> list[Jar]:
    """Return the jars that *release* needs on the platform *target*.

    Args:
        release: None means that of `find_release`.
        target: A platform, as from `current_platform`; None means this machine's.

    Raises:
        ConfigError: The environment names a release that does not exist.
        StandaloneError: This machine's platform is not supported.
    """
    wanted = target or current_platform()
    return [jar for jar in load_lock(release or find_release()) if jar.runs_on(wanted)]
