"""Hypothesis's profiles: ``--hypothesis-profile dev|ci|nightly``. A pytest plugin."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# On a loaded machine, a deadline makes correct tests fail.
settings.register_profile("dev", deadline=None)
# In CI, a change should fail because of what it does, not because of new random examples. The
# profiles dev and nightly find new ones.
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.register_profile(
    "nightly",
    settings.get_profile("dev"),
    max_examples=100_000,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
