"""The result of one check."""

from __future__ import annotations

from typing import Literal

import attrs

Verdict = Literal["ok", "warning", "error", "unknown"]


@attrs.frozen
class CheckResult:
    """The result of one check.

    Attributes:
        check: The name of the check.
        verdict: ``ok``, ``warning``, ``error``, or ``unknown`` if it could not be checked.
        text: What was found, and what to do about it.
    """

    check: str
    verdict: Verdict
    text: str
