"""The extension module; everything else of the package is in setup.cfg.

Without a compiler, or on another platform than Linux, the package is installed without the module,
and hands letters off in Python.
"""

import os
import sys
import sysconfig

from setuptools import Extension, setup

HANDOFF = Extension(
    "pulsar_retry.native._handoff",
    ["pulsar_retry/native/handoff.cpp"],
    language="c++",
    extra_compile_args=["-std=c++17", "-O2", "-fvisibility=hidden"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    libraries=["dl"],
    py_limited_api=True,
    optional=True,
)

# A Python without its global lock has no stable ABI. PULSAR_RETRY_PURE=1 makes the wheel for all
# other platforms.
CAN = sys.platform == "linux" and not sysconfig.get_config_var("Py_GIL_DISABLED")
if CAN and os.environ.get("PULSAR_RETRY_PURE") != "1":
    setup(ext_modules=[HANDOFF], options={"bdist_wheel": {"py_limited_api": "cp311"}})
else:
    setup()
