"""Searches schedules for one that fails: ``python -m support.simulation.search FIRST COUNT``.

It prints the first seed that fails, its scenario after shrinking (unless ``--as-it-is`` follows),
and what does not hold. The exit code is 1 then, and 0 if nothing was found.
"""

from __future__ import annotations

import os
import sys

from support.simulation.running import find, shrunk
from support.simulation.scenario import scenario


def report(seed: int, why: str) -> str:
    """Return what a person needs to repeat a failure."""
    small = shrunk(scenario(seed))
    return (
        f"schedule {seed}: {why}\nshrunk: {small}\n  {find(small)}\n"
        f"repeat: python -m support.simulation.search {seed} 1"
    )


def main() -> int:
    """Search; return the exit code."""
    first, count = map(int, sys.argv[1:3])
    for seed in range(first, first + count):
        if (why := find(scenario(seed))) is not None:
            shrinks = "--as-it-is" not in sys.argv
            print(report(seed, why) if shrinks else f"schedule {seed}: {why}")
            return 1
    print(f"{count} schedules, and each keeps what is promised")
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A schedule that fails can leave threads that wait in virtual time for ever.
    os._exit(code)
