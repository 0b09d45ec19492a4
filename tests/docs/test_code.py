"""The Python code in the documentation runs as it is printed."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: What needs a Spark runs in tests/spark/versions/test_guide.py, what needs TLS or several brokers
#: in tests/cluster/test_docs.py; two pages whose programs belong together have their own tests.
ELSEWHERE = {
    ROOT / "docs" / name
    for name in ("quickstart.md", "production.md", "security.md", "spark.md", "spark-recipes.md")
}
PAGES = sorted(set((ROOT / "docs").rglob("*.md")) - ELSEWHERE)
BLOCKS = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}-{number}")
    for path in (ROOT / "README.md", *PAGES)
    for number, block in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")), 1)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(broker, block):
    """Each block stands alone; only the broker's address and the topic are the test's."""
    code = block.replace("pulsar://localhost:6650", broker.service_url)
    code = code.replace("http://localhost:8080", broker.admin_url)
    code = code.replace('"orders"', repr(f"orders-{uuid.uuid4().hex}"))

    program = compile(code, "documentation", "exec", dont_inherit=True)
    exec(program, {"__name__": "documentation"})


def test_there_is_code_in_the_readme():
    """The pattern above still finds what it is for."""
    assert any(str(block.id).startswith("README") for block in BLOCKS)
