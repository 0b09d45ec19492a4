"""Whether processes share their metrics. It takes prometheus_client, which is slow to import."""

from __future__ import annotations

import os
from typing import Final

#: prometheus_client's name for the directory of the values that are shared.
VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def is_on() -> bool:
    """Tell whether prometheus_client shares its values between processes."""
    return bool(os.environ.get(VARIABLE))
