"""Who uses this process."""

from __future__ import annotations

import getpass
import os
import platform


def operator_name() -> str:
    """Return the user and the host of this process, ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user id
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return f"{user}@{platform.node() or 'unknown'}"
