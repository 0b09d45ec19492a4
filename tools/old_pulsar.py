"""Run a command on an old Pulsar, such as those that TDMQ's clusters stand for.

`python tools/old_pulsar.py 2.7.2 pytest tests/contract` starts Pulsar 2.7.2 as a child process, and
runs the command with its addresses in PULSAR_SERVICE_URL and PULSAR_ADMIN_URL; the exit code is the
command's. Maven resolves the jars once, into the cache. Where the release or a Java cannot be had,
the script says "skipped, because …", and ends with 0; with CI in the environment it ends with 1.

These releases have no lock file in `pulsar_retry.standalone`. They were made for Java 8, 11 or 17;
all run on Java 17, with the internals that `java_options` opens.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.config import BROKER_SETTINGS, format_conf, own_settings
from pulsar_retry.standalone.jars.store import default_cache
from pulsar_retry.standalone.jvm.health import DEFAULT_NAMESPACE, wait_until, why_not_ready
from pulsar_retry.standalone.jvm.java import find_java
from pulsar_retry.standalone.jvm.jvm import GuardedProcess, java_options
from pulsar_retry.standalone.ports import free_ports

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>io.github.pulsar-retry</groupId>
  <artifactId>old</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.pulsar</groupId>
      <artifactId>pulsar-broker</artifactId>
      <version>{version}</version>
      <exclusions>
        <exclusion><groupId>org.apache.pulsar</groupId><artifactId>jetcd-core-shaded</artifactId></exclusion>{without}
      </exclusions>
    </dependency>
  </dependencies>
</project>
"""

#: For metadata in etcd and functions on Kubernetes, which a standalone does not need, 3.0 and later
#: ask for versions of gRPC that contradict each other.
_SINCE_3 = "".join(
    f"<exclusion><groupId>{group}</groupId><artifactId>*</artifactId></exclusion>"
    for group in ("io.etcd", "io.grpc", "io.kubernetes")
)
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"

#: What 2.7 and 2.9 do not start with.
_UNKNOWN_BEFORE_2_10 = {"diskUsageLwmThreshold", "loadBalancerEnabled"}

#: Seconds that a start may take.
_PATIENCE = 180.0


class CannotBeHadError(Exception):
    """The release, or what it needs, is not to be had here."""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def jars(version: str) -> Path:
    """Return the folder of the jars of *version*; Maven fills it at the first use."""
    folder = default_cache().parent / "old" / version
    if not folder.is_dir():
        if shutil.which("mvn") is None:
            raise CannotBeHadError("there is no Maven on PATH")
        with tempfile.TemporaryDirectory() as temporary:
            pom, target = Path(temporary, "pom.xml"), Path(temporary, "jars")
            without = _SINCE_3 if _numbers(version) >= (3,) else ""
            pom.write_text(_POM.format(version=version, without=without), "ascii")
            command = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), _GOAL]
            command += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                line = next((e for e in done.stdout.splitlines() if "ERROR" in e), "Maven failed")
                raise CannotBeHadError(f"Maven cannot resolve Pulsar {version}: {line}")
            folder.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(target, folder)
    return folder


def run(version: str, command: list[str]) -> int:
    """Start Pulsar *version*, run *command* on it, and return its exit code."""
    classes = jars(version)
    try:
        java = find_java()
    except StandaloneError as error:
        raise CannotBeHadError(str(error)) from error
    broker, web, keeper, bookie = islice(free_ports(), 4)
    with tempfile.TemporaryDirectory(prefix="old-pulsar-") as name:
        folder = Path(name)
        conf = folder / "standalone.conf"
        # Pulsar's defaults, but for what one process needs: topics are kept, and delays are exact.
        settings = BROKER_SETTINGS | own_settings(broker, web)
        if _numbers(version) < (2, 10):
            for key in _UNKNOWN_BEFORE_2_10:
                del settings[key]
        in_zookeeper = _numbers(version) < (2, 11)
        if in_zookeeper:
            settings |= {"zookeeperServers": f"127.0.0.1:{keeper}"}
            settings |= {"configurationStoreServers": f"127.0.0.1:{keeper}"}
        conf.write_text(format_conf(settings), "ascii")
        program = [
            *(str(java.executable), *java_options(java, "768m", "768m", fast_start=True)),
            *("-cp", f"{classes}/*", "org.apache.pulsar.PulsarStandaloneStarter"),
            *("--config", str(conf), "--num-bookies", "1", "--wipe-data"),
            *(
                ("--zookeeper-dir", str(folder / "zookeeper"), "--zookeeper-port", str(keeper))
                if in_zookeeper
                else ("--metadata-dir", str(folder / "metadata"))
            ),
            *("--bookkeeper-dir", str(folder / "bookies"), "--bookkeeper-port", str(bookie)),
            *("--no-functions-worker", "--no-stream-storage"),
        ]
        output = folder / "jvm.out"
        process = GuardedProcess.start(program, cwd=folder, lock=folder / "lock", output=output)
        admin_url = f"http://127.0.0.1:{web}"
        namespaces = (DEFAULT_NAMESPACE,)  # 2.7 has no pulsar/system
        try:
            wait_until(
                lambda: (
                    process.exit_code() is not None
                    or not why_not_ready(admin_url, namespaces=namespaces)
                ),
                _PATIENCE,
            )
            if problem := why_not_ready(admin_url, namespaces=namespaces):
                tail = output.read_text(errors="replace").splitlines()[-20:]
                print(*tail, sep="\n", file=sys.stderr)
                raise CannotBeHadError(f"it does not start on Java {java.version}: {problem}")
            addresses = {
                "PULSAR_SERVICE_URL": f"pulsar://127.0.0.1:{broker}",
                "PULSAR_ADMIN_URL": admin_url,
            }
            print(f"Pulsar {version} on Java {java.version}", flush=True)
            return subprocess.run(command, env=os.environ | addresses, check=False).returncode
        finally:
            process.stop()


def main(version: str, *command: str) -> int:
    """Run *command* on Pulsar *version*."""
    try:
        return run(version, list(command))
    except CannotBeHadError as error:
        print(f"skipped, because {error}")
        # Who runs this at a desk sees the line; in CI, nobody reads the log of a check that passes.
        return 1 if os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
