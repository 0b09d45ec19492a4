"""Hypothesis's profiles: ``--hypothesis-profile dev|ci|deep|nightly``. A pytest plugin."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# On a loaded machine, a deadline makes correct tests fail.
settings.register_profile("dev", deadline=None, max_examples=25)
# In CI, a change should fail because of what it does, not because of new random examples. The other
# profiles find new ones: deep runs each night, and nightly takes hours.
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.register_profile("deep", deadline=None, max_examples=400, print_blob=True)
settings.register_profile(
    "nightly",
    settings.get_profile("dev"),
    max_examples=100_000,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
