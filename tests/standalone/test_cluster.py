"""The configuration of the cluster in containers; tests/cluster tests what a cluster does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_containers_have_the_configuration_of_the_processes() -> None:
    """The files of docker/cluster are those that tools/cluster_conf.py writes."""
    spec = importlib.util.spec_from_file_location("conf", ROOT / "tools" / "cluster_conf.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    for name, text in tool.files().items():
        assert text == (ROOT / "docker" / "cluster" / name).read_text(encoding="ascii"), name
