"""jemalloc, which can replace the memory allocator of a program that starts."""

from __future__ import annotations

from ctypes.util import find_library

#: The variables of the environment for it. Empty: it is not installed (Debian's `libjemalloc2`).
JEMALLOC = {"LD_PRELOAD": found} if (found := find_library("jemalloc")) else {}
