"""Whether processes share metrics. Separate, because prometheus_client is slow to import."""

from __future__ import annotations

import os
from typing import Final

#: prometheus_client's environment variable for the directory of shared values.
VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def is_on() -> bool:
    """Tell whether prometheus_client shares values between processes."""
    return bool(os.environ.get(VARIABLE))
