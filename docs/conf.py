"""How Sphinx builds these pages: `tox run -e site`. Nothing that it makes is committed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

HERE = Path(__file__).parent
# Of this repository, whatever is installed.
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "spark"), str(HERE / "_ext")]

from pulsar_retry import __version__  # noqa: E402 - found by the path above

project = "pulsar-retry"
author = "The pulsar-retry developers"
project_copyright = "The pulsar-retry developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_help",
]
exclude_patterns = ["_build"]
html_theme = "furo"
pygments_dark_style = "github-dark"  # the theme's own underlines names, as if they were links
html_title = f"pulsar-retry {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]

# Anchors as GitHub makes them, so that links to headings work there, too.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# Docstrings are Google's, with `names` in single backticks: links where there is such an object.
default_role = "py:obj"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
add_module_names = False

# `tox run -e links` asks the Internet; links within these pages are checked at each build.
linkcheck_anchors = False
linkcheck_timeout = 20
linkcheck_workers = 4
linkcheck_ignore = [r"http://(localhost|127\.0\.0\.1)"]


#: Patterns of what `repr` makes of defaults, and how each is shown.
_DEFAULTS = {
    r"<(\w+\.\w+): [^<>]+>": r"\1",
    r"<(?:\w+\.)*(\w+) object(?: at 0x\w+)?>": r"\1()",
    r"<built-in function (time|monotonic)>": r"time.\1",
    r"<function _\w+(?: at 0x\w+)?>": "...",
    r"<class '_?([\w.]+)'>": r"\1",
}


def _readable_defaults(
    _app: Sphinx, _kind: str, _name: str, _object: Any, _options: Any, text: str, returns: str
) -> tuple[str, str] | None:
    """Show a default as users write it: enums by name, objects by their class.

    Otherwise the signature could not be parsed, and would be shown without lines and links.
    """
    if text is None:
        return None
    for written, shown in _DEFAULTS.items():
        text = re.sub(written, shown, text)
    return text, returns


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("autodoc-process-signature", _readable_defaults)
