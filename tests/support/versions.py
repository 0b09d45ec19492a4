"""Tests of what only a newer Pulsar can do."""

from __future__ import annotations

import os

import pytest

#: `tools/old_pulsar.py` runs 2.7.2 to 3.2.0.
NOT_ON_AN_OLD_PULSAR = pytest.mark.skipif(
    os.environ.get("OLD_PULSAR", "").startswith("2."),
    reason="skipped, because Pulsar 2 counts what a closed consumer had as redelivered",
)
