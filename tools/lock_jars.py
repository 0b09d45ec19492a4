"""Write the lock files of `pulsar_retry/standalone/jars` from its `pom.xml`; needs Maven on PATH.

`python tools/lock_jars.py [VERSION]...` writes those of all releases, or of the given ones.

Maven resolves the jars and copies them into a temporary folder in repository layout. The lock file
lists the jars found there. The classifier of a jar with native code names its platform.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pulsar_retry.standalone.jars import lock

PACKAGE = Path(lock.__file__).parent

# The platform that a classifier stands for; None for a platform that is not supported.
PLATFORMS: dict[str, str | None] = {
    "linux64": "linux",
    "linux-x86_64": "linux-x86_64",
    "linux-aarch_64": "linux-aarch64",
    "osx": "macos",
    "osx-x86_64": "macos-x86_64",
    "osx-aarch_64": "macos-aarch64",
    "windows-x86_64": None,
}


def resolve(pom: Path, release: lock.Release, target: Path) -> None:
    """Let Maven copy the jars of *release* to *target*, in repository layout."""
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    options = ["-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true"]
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), goal, *options]
    command += [f"--activate-profiles={release.version}"]
    subprocess.run([*command, f"-DoutputDirectory={target}"], check=True)


def jar_of(root: Path, file: Path) -> lock.Jar | None:
    """Describe one copied jar; return None if no supported platform needs it."""
    *group, artifact, version = file.parent.relative_to(root).parts
    classifier = file.stem.removeprefix(f"{artifact}-{version}").removeprefix("-")
    platform = PLATFORMS.get(classifier, lock.ANY)
    if platform is None:
        return None
    coordinates = ":".join(filter(None, [".".join(group), artifact, version, classifier]))
    content = file.read_bytes()
    return lock.Jar(coordinates, platform, len(content), hashlib.sha256(content).hexdigest())


def format_lock(jars: Iterable[lock.Jar], release: lock.Release, pom_sha256: str) -> str:
    """Return the text of a lock file, sorted so that a new version gives a small diff."""
    header = (
        f"# The jars of the standalone Pulsar {release.version}: "
        "coordinates, platform, size in bytes, SHA-256.\n"
        "# Made by `python tools/lock_jars.py`; change pom.xml, not this file.\n"
        f"# pom.xml {pom_sha256}\n"
    )
    lines = (f"{j.coordinates} {j.platform} {j.size} {j.sha256}\n" for j in sorted(jars))
    return header + "".join(lines)


def write_lock(release: lock.Release) -> None:
    """Resolve and describe the jars of *release*, and write its lock file."""
    pom = PACKAGE / "pom.xml"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        resolve(pom, release, root)
        jars = [jar for file in root.rglob("*.jar") if (jar := jar_of(root, file))]
    text = format_lock(jars, release, hashlib.sha256(pom.read_bytes()).hexdigest())
    (PACKAGE / release.lock_name).write_text(text, encoding="ascii")
    size = sum(jar.size for jar in jars) / 1e6
    print(f"{release.version}: {len(jars)} jars, {size:.0f} MB for all platforms")


def main(versions: list[str]) -> int:
    """Write the lock files of *versions*, or of all releases."""
    for release in map(lock.find_release, versions or lock.RELEASES):
        write_lock(release)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
