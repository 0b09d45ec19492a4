"""The function that `--transform` names."""

from __future__ import annotations

import json
import sys

from pulsar_retry.cli._common.editing import _function


def test_a_file_takes_the_place_of_no_module(tmp_path) -> None:
    """Whatever its name is; its own modules beside it can be imported."""
    (tmp_path / "helping_fixes.py").write_text("NOTE = 'x'\n")
    path = tmp_path / "json.py"
    path.write_text("import helping_fixes\n\ndef fix(letter):\n    return helping_fixes.NOTE\n")
    assert "x" == _function(f"{path}:fix")(None)
    assert json is sys.modules["json"]
