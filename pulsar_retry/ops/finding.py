"""One thing that a check-up has looked at."""

from __future__ import annotations

from typing import Literal

import attrs

Verdict = Literal["ok", "warning", "error", "unknown"]


@attrs.frozen
class CheckResult:
    """One thing that was looked at.

    Attributes:
        check: Its name.
        verdict: ``ok``, ``warning``, ``error``, or ``unknown`` where it could not be found out.
        text: What was found, and what to do about it.
    """

    check: str
    verdict: Verdict
    text: str
