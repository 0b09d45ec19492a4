"""The packages, the extension modules and the description; everything else is in setup.cfg.

Without a compiler, or on another platform than Linux, the package is installed without the modules,
and does their work in Python.
"""

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py

REPOSITORY = "pulsar-retry/pulsar-retry"


def extension(name: str, source: str) -> Extension:
    """Return an optional extension module of `pulsar_retry.native`."""
    return Extension(
        f"pulsar_retry.native.{name}",
        [f"pulsar_retry/native/{source}"],
        depends=sorted(map(str, Path("pulsar_retry/native").glob("*.hpp"))),
        language="c++",
        # -g0: debugging information names the folder of the build, so that no two would be equal.
        extra_compile_args=["-std=c++17", "-O2", "-fvisibility=hidden", "-g0"],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        libraries=["dl"],
        py_limited_api=True,
        optional=True,
    )


def description() -> str:
    """Return README.md with absolute links: package indexes show it without the other files."""
    here = Path(__file__).parent
    version = (here / "pulsar_retry" / "_version.py").read_text(encoding="utf-8").split('"')[-2]
    text = (here / "README.md").read_text(encoding="utf-8")
    raw = f"https://raw.githubusercontent.com/{REPOSITORY}/v{version}"
    text = re.sub(r"(!\[[^]]*\]\()(?![a-z]+:|#)", rf"\1{raw}/", text)
    shown = f"https://github.com/{REPOSITORY}/blob/v{version}"
    return re.sub(r"((?<!!)\[[^]]*\]\()(?![a-z]+:|#)", rf"\1{shown}/", text)


class BuildPython(build_py):
    """Builds from the sources alone: setuptools would also package files of an earlier build."""

    def run(self) -> None:
        """Remove what an earlier build has left, then build."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


# The stubs are the types of pulsar-client, which ships none (docs/decisions.md).
STUBS = ["_pulsar-stubs", "pulsar-stubs", "pulsar-stubs.functions", "pulsar-stubs.schema"]
PACKAGES = [
    *find_packages(include=["pulsar_retry", "pulsar_retry.*"]),
    *find_packages("spark"),
    *STUBS,
]

# A Python without its global lock has no stable ABI. PULSAR_RETRY_PURE=1 makes the wheel for all
# other platforms.
NATIVE: dict[str, Any] = {}
CAN = sys.platform == "linux" and not sysconfig.get_config_var("Py_GIL_DISABLED")
if CAN and os.environ.get("PULSAR_RETRY_PURE") != "1":
    NATIVE = {
        "ext_modules": [extension("_handoff", "handoff.cpp"), extension("_rows", "rows.cpp")],
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}},
    }
setup(
    packages=PACKAGES,
    cmdclass={"build_py": BuildPython},
    long_description=description(),
    **NATIVE,
)
