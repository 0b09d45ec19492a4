"""Alerts fire when they should, and are quiet when not, by Prometheus' own tool."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

MONITORING = Path(__file__).parents[3] / "docker" / "monitoring"


def promtool(*arguments: str) -> None:
    """Run it where the rules are; it must succeed."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("skipped, because there is no promtool here (Debian's package: prometheus)")
    done = subprocess.run(
        [tool, *arguments],
        cwd=MONITORING,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    assert 0 == done.returncode, done.stdout


def test_prometheus_takes_the_rules() -> None:
    """And the templates of their texts."""
    promtool("check", "rules", "alerts.yaml")


def test_alerts_fire_when_they_should() -> None:
    """On series that are given, and not on healthy ones."""
    promtool("test", "rules", "alerts.test.yaml")


def test_every_alert_is_tested() -> None:
    """Both ways."""
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text(encoding="utf-8"))
    tests = yaml.safe_load((MONITORING / "alerts.test.yaml").read_text(encoding="utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    wanted = {f"{alert} {what}" for alert in alerts for what in ("fires", "is quiet")}
    assert wanted == {each["name"] for each in tests["tests"]}
