"""Files to which other processes append lines."""

from __future__ import annotations

from support.appended import whole_lines


def test_whole_lines(tmp_path):
    """A line is left out until its end has been written."""
    path = tmp_path / "ledger"
    assert [] == whole_lines(path)
    for text, lines in (("sent 1", []), ("2\nse", ["sent 12"]), ("nt 3\n", ["sent 12", "sent 3"])):
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
        assert lines == whole_lines(path)
