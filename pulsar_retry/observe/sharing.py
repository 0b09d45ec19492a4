"""Whether processes share their metrics. It takes prometheus_client, which is slow to import."""

from __future__ import annotations

import os
from typing import Final

#: prometheus_client's name for the directory of the values that are shared.
VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"


def is_on() -> bool:
    """Tell whether prometheus_client shares its values between processes."""
    return bool(os.environ.get(VARIABLE))


def share_counts() -> None:
    """Share what this process counts from now on, if that is wanted and has not begun."""
    if is_on():
        from pulsar_retry.observe import multiprocess  # noqa: PLC0415 - see above

        multiprocess.begin_copying()
