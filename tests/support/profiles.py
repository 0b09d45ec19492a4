"""Hypothesis's profiles: ``--hypothesis-profile dev|ci|nightly``. A pytest plugin."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# On a loaded machine a deadline fails what is right.
settings.register_profile("dev", deadline=None)
# A change is to fail for what it does, not for the examples that came up: those are for dev and
# nightly, which find new ones.
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.register_profile(
    "nightly",
    settings.get_profile("dev"),
    max_examples=100_000,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
