"""Plant small errors in `policy` and `wire`, one at a time, and name those that no test finds.

mutmut makes the errors, which it calls mutants; pyproject.toml has its settings. The run ends with
1 if a mutant survives that tests/unit/harmless.toml does not list with a reason, or if that file
lists one that is found or no longer there. `--resume` goes on where a run was ended. Other
arguments are names of mutants, also with wildcards: only these run again, with the tests of now.
`mutmut browse` shows them all.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

HARMLESS = Path("tests/unit/harmless.toml")
#: The results of a mutant that is found. A segmentation fault is one that a check has to prevent.
FOUND = {"killed", "timeout", "segfault"}


class Mutant(NamedTuple):
    """A mutant, by what does not change with its number."""

    function: str
    was: str
    becomes: str


def mutmut(*arguments: str) -> str:
    """Return what a command of mutmut prints."""
    done = subprocess.run(["mutmut", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout[-5000:]}{done.stderr}mutmut {arguments[0]} failed")
    return done.stdout


def survivors(fine: set[str]) -> dict[Mutant, str]:
    """Return the mutants whose result is not fine, and their results."""
    lines = [line.strip().rpartition(": ") for line in mutmut("results").splitlines()]
    return {mutant(name): f"{name}: {result}" for name, _, result in lines if result not in fine}


def mutant(name: str) -> Mutant:
    """Look a mutant up."""
    module, _, function = name.partition("__mutmut_")[0].rpartition(".")
    changed = [line for line in mutmut("show", name).splitlines() if line[:3] not in {"---", "+++"}]
    was, becomes = (
        " ".join(line[1:].strip() for line in changed if line.startswith(sign)) for sign in "-+"
    )
    # x_function, or xǁClassǁmethod
    return Mutant(f"{module}.{function[2:].replace('ǁ', '.')}", was, becomes)


def listed() -> set[Mutant]:
    """Return the harmless mutants."""
    groups = tomllib.loads(HARMLESS.read_text("utf-8"))["mutants"]
    return {
        Mutant(group["of"], group["was"], becomes)
        for group in groups
        for becomes in group["becomes"]
    }


def main() -> int:
    """Run mutmut, and compare what survives with the list."""
    names = [each for each in sys.argv[1:] if each != "--resume"]
    if not sys.argv[1:]:
        shutil.rmtree("mutants", ignore_errors=True)  # results of other tests
    print(*re.findall(r".* mutations/second", mutmut("run", *names)))
    # A mutant that was not run is one that no test finds, unless only others were asked for.
    found, harmless = survivors(FOUND | ({"not checked"} if names else set())), listed()
    for each, result in found.items():
        if each not in harmless:
            print(f"no test finds {result}\n  - {each.was}\n  + {each.becomes}")
    stale = set() if names else harmless - found.keys()
    for each in stale:
        print(f"{HARMLESS} lists a mutant that is found or not there: {each}")
    return 1 if stale or found.keys() - harmless else 0


if __name__ == "__main__":
    sys.exit(main())
