"""pulsar-client's own log in a Python logger."""

from __future__ import annotations

import pytest

from support.ending import end_of

_LOGGED = """
import logging
logging.basicConfig(format="%(name)s %(levelname)s %(message)s", stream=sys.stdout, level="{level}")
import pulsar_retry as pr
"""
_FAILS = """
client = pr.Client(
    "pulsar://127.0.0.1:1", operation_timeout_seconds=1, logger=logging.getLogger("pulsar-client")
)
try:
    client.get_topic_partitions("orders")
except pulsar.PulsarException:
    pass
"""


def test_pulsar_client_s_lines_go_to_a_python_logger():
    """With their level and without pulsar-client's own prefix; those of the end, too."""
    code, said = end_of(_LOGGED.format(level="INFO"), f"{_FAILS}\nclient.close()")

    assert code == 0
    lines = said.splitlines()
    assert any(each.startswith("pulsar-client ERROR ") for each in lines)
    assert any("Closing Pulsar client" in each for each in lines)
    assert all(each.startswith("pulsar-client ") for each in lines)


def test_without_a_logger_they_go_to_the_one_called_pulsar():
    """And not to the console, where nobody has asked for them."""
    fails = _FAILS.replace(', logger=logging.getLogger("pulsar-client")', "")
    code, said = end_of(_LOGGED.format(level="INFO"), f"{fails}\nclient.close()")

    assert code == 0
    assert any(each.startswith("pulsar ERROR ") for each in said.splitlines())
    assert all(each.startswith("pulsar ") for each in said.splitlines())


def test_lines_below_the_logger_s_level_are_not_written():
    """They would cost something, and be thrown away."""
    code, said = end_of(_LOGGED.format(level="ERROR"), _FAILS)

    assert code == 0
    assert "INFO" not in said
    assert "pulsar-client ERROR " in said


@pytest.mark.parametrize("end", ["client.close()", "global kept\nkept = client", "del client"])
def test_a_python_logger_aborts_no_program_at_its_end(end: str):
    """pulsar-client's threads never call Python, so the interpreter's end cannot kill them."""
    code, said = end_of(_LOGGED.format(level="DEBUG"), _FAILS + end)

    assert code == 0
    assert "Python" not in said
