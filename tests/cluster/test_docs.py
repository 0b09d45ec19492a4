"""The code in docs/security.md runs as it is printed, on the cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pulsar
import pytest

from support.encrypting import key_files

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_a_block_runs(cluster, client, topic, tmp_path, block):
    """A block runs; only addresses, token, files, topic and an undefined client are replaced."""
    public, private = key_files(tmp_path)
    code = BLOCKS[block]
    for printed, ours in {
        "pulsar+ssl://pulsar.example.com:6651": cluster.it.service_url_tls,
        "https://pulsar.example.com:8443": cluster.it.admin_url_tls,
        '"TOKEN"': repr(cluster.it.token("admin")),
        '"ca.pem"': repr(str(cluster.certificates.authority)),
        '"public.pem"': repr(public),
        '"private.pem"': repr(private),
        '"orders"': repr(topic),
    }.items():
        code = code.replace(printed, ours)
    names = {"__name__": "documentation", "pulsar": pulsar, "client": client}
    exec(compile(code, "documentation", "exec"), names)


def test_there_is_code():
    """The pattern above still finds blocks."""
    assert len(BLOCKS) >= 2
