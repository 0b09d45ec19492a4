"""Run a command while the extension modules of this package are under a sanitizer of GCC.

`python tools/sanitized.py address pytest tests/unit/native` builds the package with
AddressSanitizer into a temporary folder, starts a standalone Pulsar, whose JVM is not under the
sanitizer, and runs the command with both; the exit code is the command's, or 1 if the sanitizer has
found something. `thread` is ThreadSanitizer, and `undefined` is UndefinedBehaviorSanitizer. The
interpreter and pulsar-client's library are not built with the sanitizer: it sees what this package
does, and what the C library is called with.

Where GCC or its sanitizer cannot be had, the script says "skipped, because …", and ends with 0;
with CI in the environment it ends with 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from pulsar_retry.standalone import Standalone

#: The library and the options of each sanitizer. Python does not free everything at its exit.
_SANITIZERS = {
    "address": ("asan", "ASAN_OPTIONS", "detect_leaks=0"),
    "thread": ("tsan", "TSAN_OPTIONS", "report_signal_unsafe=0:ignore_noninstrumented_modules=1"),
    "undefined": ("ubsan", "UBSAN_OPTIONS", "print_stacktrace=1"),
}
_REPOSITORY = Path(__file__).parent.parent


def library_of(name: str) -> Path | None:
    """Return the path of GCC's library with that name; None if there is none."""
    if shutil.which("g++") is None:
        return None
    command = ["g++", f"-print-file-name={name}"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return path.resolve() if path.is_absolute() else None


def build(sanitizer: str, folder: Path) -> None:
    """Copy the package to *folder*, and build its extension modules there."""
    package = folder / "pulsar_retry"
    shutil.copytree(
        _REPOSITORY / "pulsar_retry", package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for module in ("handoff", "rows"):
        subprocess.run(
            [
                *("g++", "-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden"),
                *(f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer"),
                *("-DPy_LIMITED_API=0x030B0000", f"-I{sysconfig.get_path('include')}"),
                str(package / "native" / f"{module}.cpp"),
                *("-o", str(package / "native" / f"_{module}.abi3.so"), "-ldl"),
            ],
            check=True,
        )


def main(sanitizer: str, *command: str) -> int:
    """Run *command* with *sanitizer*."""
    name, variable, options = _SANITIZERS[sanitizer]
    # The second one, which the interpreter loads late, is looked for at the start.
    libraries = library_of(f"lib{name}.so"), library_of("libstdc++.so.6")
    if None in libraries:
        print(f"skipped, because g++ or its lib{name} is not installed")
        return 1 if os.environ.get("CI") else 0
    with tempfile.TemporaryDirectory() as work, Standalone() as broker:
        folder = Path(work)
        build(sanitizer, folder)
        found = folder / "found"
        path = [str(folder), str(_REPOSITORY / "tests")]
        environment = {
            "LD_PRELOAD": " ".join(map(str, libraries)),
            variable: f"{options}:log_path={found}",
            "PULSAR_ADMIN_URL": broker.admin_url,
            "PULSAR_SERVICE_URL": broker.service_url,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONSAFEPATH": "1",  # else the folder with the sources would be before the build
        }
        code = subprocess.run(command, env=os.environ | environment, check=False).returncode
        reports = sorted(folder.glob("found.*"))
        for report in reports:
            print(report.read_text(errors="replace"))
        return code or int(bool(reports))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
