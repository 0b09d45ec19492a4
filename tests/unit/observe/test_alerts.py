"""Alerts fire when they should, and are quiet when not, by Prometheus' own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "docker" / "monitoring"
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
#: The address of that page.
SITE = "https://pulsar-retry.readthedocs.io/en/stable/operating.html"


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


def alerts_with_runbooks() -> dict[str, str]:
    """Return the addresses of what alerts link to."""
    found = {}
    on_page = "".join(re.findall(r"^```yaml\n(groups:.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    for text in ((MONITORING / "alerts.yaml").read_text(encoding="utf-8"), on_page):
        for group in yaml.safe_load(text)["groups"]:
            for rule in group["rules"]:
                found[rule["alert"]] = rule["annotations"]["runbook_url"]
    return found


@pytest.mark.parametrize(("name", "url"), alerts_with_runbooks().items())
def test_each_alert_links_to_the_section_that_mends_it(name: str, url: str) -> None:
    """The section is there, and it names the alert and what to look at, such as a command."""
    page, _, anchor = url.partition("#")
    assert SITE == page
    parts = re.split(r"^#{2,3} (.+)$", PAGE, flags=re.MULTILINE)
    titles = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in parts[1::2]]
    section = parts[2::2][titles.index(anchor)]
    assert name in section
    assert set(re.findall(r"`([^`]+)`", section)) - alerts_with_runbooks().keys()
