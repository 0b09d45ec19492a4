"""`LocalCluster`: its configuration, that of docker/compose.yaml, and its end with its parent.

What the cluster does is tested in tests/cluster.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.brokers import cluster_config as conf
from support.waiting import eventually

ROOT = Path(__file__).parents[2]
PROGRAM = """
from support.brokers.local_cluster import LocalCluster
with LocalCluster():
    print("ready", flush=True)
    input()
"""


def mib(*texts: str) -> int:
    """Return the sum of sizes as for -Xmx, all in MiB."""
    return sum(int(re.sub("m$", "", text)) for text in texts)


def limits(programs: list[conf.Program]) -> int:
    """Return what they may take together, in MiB."""
    return mib(*(size for each in programs for size in (each.heap, each.direct_memory)))


def test_it_is_bounded() -> None:
    """Heaps and direct memory of all processes are 2.5 GiB at most."""
    whole = [conf.METADATA, conf.BOOKIE, conf.BOOKIE, conf.BROKER, conf.BROKER]
    assert limits(whole) <= 2560


def test_the_containers_have_the_configuration_of_the_processes() -> None:
    """The files of docker/cluster are those that tools/cluster_conf.py writes."""
    spec = importlib.util.spec_from_file_location("conf", ROOT / "tools" / "cluster_conf.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for name, text in tool.files().items():
        assert text == (ROOT / "docker" / "cluster" / name).read_text(encoding="ascii"), name


@pytest.mark.parametrize(
    ("service", "variable", "program"),
    [
        ("metadata", "PULSAR_MEM", conf.METADATA),
        ("bookie-1", "BOOKIE_MEM", conf.BOOKIE),
        ("bookie-2", "BOOKIE_MEM", conf.BOOKIE),
        ("broker-1", "PULSAR_MEM", conf.BROKER),
        ("broker-2", "PULSAR_MEM", conf.BROKER),
    ],
)
def test_the_containers_are_those_of_the_processes(
    service: str, variable: str, program: conf.Program
) -> None:
    """Each has the same memory, and a configuration file that is there."""
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    it = compose["services"][service]
    expected = f"-Xmx{program.heap} -XX:MaxDirectMemorySize={program.direct_memory}"
    assert it["environment"][variable].startswith(expected)
    [file] = [text for name, text in it["environment"].items() if name.endswith("_CONF")]
    assert (ROOT / "docker" / "cluster" / f"{service}.conf").name == Path(file).name
    assert "service:network" == it["network_mode"]


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """Whenever the parent is killed: no process and no folder stay behind."""
    # The processes of a cluster are told their folder, in which nothing else runs.
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=environment,
    )
    try:
        eventually(lambda: len(locks(tmp_path)) >= 1)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert parent.stdin is not None
        parent.stdin.close()
    eventually(lambda: not list(tmp_path.iterdir()))


def locks(folder: Path) -> list[Path]:
    """Return the locks of processes that were started."""
    return [path for path in folder.glob("pulsar-cluster-*/*/lock") if path.stat().st_size]
