"""Write `pulsar_retry/standalone/jars/jars.lock` from the `pom.xml` beside it; needs Maven on PATH.

Maven resolves the jars and copies them into a temporary folder in repository layout. The lock file
lists the jars found there. The classifier of a jar with native code names its platform.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
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


def resolve(pom: Path, target: Path) -> None:
    """Let Maven copy the runtime dependencies of *pom* to *target*, in repository layout."""
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
    options = ["-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true"]
    command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), goal, *options]
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


def main() -> int:
    """Resolve and describe the jars, and write the lock file."""
    pom = PACKAGE / "pom.xml"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        resolve(pom, root)
        jars = [jar for file in root.rglob("*.jar") if (jar := jar_of(root, file))]
    text = lock.format_lock(jars, hashlib.sha256(pom.read_bytes()).hexdigest())
    (PACKAGE / "jars.lock").write_text(text, encoding="ascii")
    print(f"{len(jars)} jars, {sum(jar.size for jar in jars) / 1e6:.0f} MB for all platforms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
