"""How benchmarks report: a table at the end of each, also when output is captured."""

from __future__ import annotations

import pytest


@pytest.fixture
def report(benchmark, capsys, request):
    """Print what was measured, which is in the benchmark's `extra_info`."""
    yield
    with capsys.disabled():
        print(f"\n{request.node.name}")  # noqa: T201
        for name, result in benchmark.extra_info.items():
            print(f"  {name:44} {result}")  # noqa: T201
