"""A program ends well whose client had a token supplier, a Python function."""

from __future__ import annotations

import pytest

from support.ending import end_of

# Nothing is connected to: closing a client starts a thread of pulsar-client's in any case.
_CLIENT = (
    'pr.Client("pulsar://127.0.0.1:1", authentication=pulsar.AuthenticationToken(Supplier()), '
    "logger=QUIET)"
)
_ASYNCIO = f"""
async def main():
    async with {_CLIENT}:
        pass
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("imports", "body"),
    [
        pytest.param("import pulsar_retry as pr", f"{_CLIENT}.close()", id="closed"),
        pytest.param("import pulsar_retry as pr", f"with {_CLIENT}: pass", id="with"),
        pytest.param("import pulsar_retry as pr", _CLIENT, id="dropped"),
        pytest.param("import pulsar_retry as pr", f"global c\nc = {_CLIENT}", id="left open"),
        pytest.param(
            "import pulsar_retry as pr",
            f"global c\nc = [{_CLIENT} for _ in range(70)]",
            id="many left open",
        ),
        pytest.param("import asyncio, pulsar_retry.asyncio as pr", _ASYNCIO, id="asyncio"),
        pytest.param(
            "from pulsar_retry.replay.cluster import Cluster",
            "with Cluster('pulsar://127.0.0.1:1', token=Supplier()).client(check=False):\n    pass",
            id="cluster",
        ),
    ],
)
def test_a_token_supplier_aborts_no_program_at_its_end(imports: str, body: str):
    """The last client is never destroyed, so no thread does it while the interpreter ends."""
    assert end_of(imports, body) == (0, "")


def test_closed_clients_are_not_kept_without_end():
    """A program that opens one client after the other holds few of them."""
    body = f"for _ in range(100): {_CLIENT}.close()"
    code, said = end_of("import pulsar_retry as pr", body)
    assert code == 0
    assert len(said.split()) == 100 - 64
