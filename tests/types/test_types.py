"""What a user's type checker says. It reads the installed package: run it with `tox -e types`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

PROGRAM = (Path(__file__).parent / "program.py").read_text(encoding="utf-8")

#: What is replaced in the program, and by what. Each is one mistake.
MISTAKES = (
    ('workers="processes"', 'workers="proceses"'),
    ('redelivery="letters"', 'redelivery="letter"'),
    ('jitter="full"', 'jitter="ful"'),
    ('naming="tdmq-2.9.2"', 'naming="tdmq-2.9"'),
    ('mode="drain"', 'mode="drained"'),
    ("enable_retry=True,\n        naming", "enable_retries=True,\n        naming"),
    ('"billing", enable_retry=True)', '"billing", enable_retries=True)'),
    ("pulsar.InitialPosition.Earliest", "pulsar.InitialPosition.Earlyest"),
    ("pulsar.ConsumerType.Shared", '"Shared"'),
    ("def handle(message: pulsar.Message)", "def handle(message: bytes)"),
    # Handlers with two payloads, with none, and with more than a payload and its message.
    ("def charge(payment: Payment)", "def charge(payment: Payment, other: int)"),
    ("def charge(payment: Payment)", "def charge()"),
    ("message: pulsar.Message) -> object:", "message: pulsar.Message, more: int) -> object:"),
    (
        "async def charge_later(payment: Payment, message: pulsar.Message)",
        "async def charge_later(payment: Payment, message: bytes)",
    ),
    ("payment.price + 1", "payment.price + payment"),
    ("timeout_millis=1000", 'timeout_millis="1s"'),
    ("return message.data()\n", "return message.data\n"),
    ("consumer.acknowledge(each.message_id())", "consumer.acknowledge(each.topic_name())"),
    ("io_threads=2", "io_thread=2"),
    ("admin_url=", "admin="),
    ("order.number)", "len(order.number))"),
    ("process_span(message)", "process_span(message.data())"),
    ("subscriber.result().acknowledged", "subscriber.result().acked"),
    ('audience="us", email="push@example.com"', 'audience="us"'),
    ("await consumer.negative_acknowledge", "consumer.negative_acknowledge"),
)

#: Where the stubs knowingly differ from pulsar-client.
ALLOWED = r"""
# A field of a record is its value in an instance, which pulsar-client does without descriptors.
pulsar\.schema\.definition\.Field\.__(get|set)__
# Handles that only pulsar-client uses have no types.
_pulsar\.\w+\.__getattr__
# Without fastavro or protobuf, these classes are others.
pulsar\.schema\.schema_(avro\.Avro|protobuf\.ProtobufNative)Schema\.(__init__|decode|encode|encode_dict)
"""


CHECKERS = {
    "mypy": ("mypy", "--strict", "."),
    "pyright": ("basedpyright", "--pythonpath", sys.executable),
}


@pytest.fixture(scope="module", autouse=True)
def installed() -> Path:
    """Return where the package and its stubs are installed."""
    files = distribution("pulsar-retry").files or ()
    if not (stubs := [each for each in files if "pulsar-stubs" in each.parts]):
        pytest.skip("an editable installation has no stubs")
    return Path(str(stubs[0].locate())).parents[1]


def said_by(folder: Path, *command: str) -> str:
    """Run a module of Python in *folder*, outside of the project and of its settings."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module", params=CHECKERS)
def errors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the errors of the program and of its copies, each of which has one mistake."""
    folder = tmp_path_factory.mktemp("user")
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    for number, (right, wrong) in enumerate(MISTAKES):
        assert right in PROGRAM
        text = PROGRAM.replace(right, wrong)
        (folder / f"mistake_{number}.py").write_text(text, encoding="utf-8")
    said = said_by(folder, *CHECKERS[request.param])
    assert re.search(r"Found \d+ errors in|^\d+ errors, ", said, re.MULTILINE), said
    return [line for line in said.splitlines() if " error" in line and ".py:" in line]


def test_a_typed_program_has_no_errors(errors: list[str]) -> None:
    """With the strictest settings, and without a setting for this package."""
    assert [line for line in errors if "program.py" in line] == []


def test_mistakes_are_errors(errors: list[str]) -> None:
    """A checker finds each of them."""
    found = {line.partition(".py")[0].rpartition("mistake_")[2] for line in errors}
    assert [each for n, each in enumerate(MISTAKES) if str(n) not in found] == []


def test_stubs_are_as_the_installed_pulsar_client(tmp_path: Path, installed: Path) -> None:
    """Names, signatures and defaults, as stubtest compares them."""
    (tmp_path / "allowed").write_text(ALLOWED, encoding="utf-8")
    options = ("--allowlist", "allowed", "--ignore-unused-allowlist", "--concise")
    assert (installed / "pulsar-stubs" / "__init__.pyi").is_file()
    said = said_by(tmp_path, "mypy.stubtest", "pulsar", *options)
    said += said_by(tmp_path, "mypy.stubtest", "_pulsar", "--ignore-missing-stub", *options)
    assert not said
