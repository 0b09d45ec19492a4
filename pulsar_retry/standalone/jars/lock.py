"""The lock files: the jars of the standalone Pulsar, with their exact sizes and checksums.

`python tools/lock_jars.py` makes a file for each release, such as `jars-4.2.lock`, from `pom.xml`
(this needs Maven). Each line describes one jar: coordinates, platform, size in bytes, SHA-256. The
path of a jar is not in it, because it follows from the coordinates by the layout of Maven
repositories.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import PurePosixPath

import attrs

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.jars.releases import Release, find_release

__all__ = ["Jar", "current_platform", "format_lock", "jars_for", "load_lock", "parse_lock"]

ANY = "any"
_OSES = {"linux": "linux", "darwin": "macos"}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
_FIELDS = 4


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


def parse_lock(text: str) -> Iterator[Jar]:
    """Yield the jars of a lock file's *text*.

    Raises:
        StandaloneError: A line is malformed.
    """
    for number, line in enumerate(text.splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) != _FIELDS or not fields[2].isdecimal():
            raise StandaloneError(f"lock file, line {number}: cannot read {line!r}")
        coordinates, target, size, sha256 = fields
        yield Jar(coordinates, target, int(size), sha256)


def format_lock(jars: Iterable[Jar], release: Release, pom_sha256: str) -> str:
    """Return the text of a lock file, sorted so that a new version gives a small diff."""
    header = (
        f"# The jars of the standalone Pulsar {release.version}: "
        "coordinates, platform, size in bytes, SHA-256.\n"
        "# Made by `python tools/lock_jars.py`; change pom.xml, not this file.\n"
        f"# pom.xml {pom_sha256}\n"
    )
    lines = (f"{j.coordinates} {j.platform} {j.size} {j.sha256}\n" for j in sorted(jars))
    return header + "".join(lines)


def load_lock(release: Release) -> list[Jar]:
    """Return every jar of *release*, for all platforms."""
    text = resources.files(__package__).joinpath(release.lock_name).read_text(encoding="ascii")
    return list(parse_lock(text))


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
