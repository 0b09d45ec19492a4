"""The quickstart, followed step by step as a reader would; only the install is taken as done."""

from __future__ import annotations

import operator
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest

from support.logged import entries

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAVED_AS = re.compile(
    r"^Save this as `([\w.]+)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL
)
PATIENCE = 120  # seconds


class Worker:
    """A `python worker.py` in the reader's first terminal."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[str] = []
        self._folder = folder
        self._more = threading.Condition()
        with (folder / "log").open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(folder / "worker.py")],
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            for line in printed:
                with self._more:
                    self.lines.append(line.rstrip())
                    self._more.notify()

    def prints(self, *expected: str) -> None:
        """Wait for the lines that the page shows; those of one message come in its order."""
        with self._more:
            enough = self._more.wait_for(lambda: len(self.lines) >= len(expected), PATIENCE)
        of_one = operator.itemgetter(slice(4))  # handlers of several messages run at a time
        assert sorted(self.lines, key=of_one) == sorted(expected, key=of_one), enough

    def logged(self) -> list[str]:
        """Return what it has logged, one text for each failure."""
        logged = (self._folder / "log").read_text(encoding="utf-8")
        return entries(logged, self._folder, "/home/you", "orders")

    def interrupt(self) -> str:
        """Press Ctrl-C, and return the last line that is printed then."""
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(PATIENCE) == 0
        with self._more:
            assert self._more.wait_for(lambda: self.lines[-1].startswith("Report("), PATIENCE)
        return self.lines[-1]

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def terminal(broker, tmp_path):
    """Give what types a command of the page, with the test's broker and topic in its place."""
    topic = f"orders-{uuid.uuid4().hex[:8]}"
    environment = os.environ | {
        "PULSAR_SERVICE_URL": broker.service_url,
        "PULSAR_ADMIN_URL": broker.admin_url,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    for name, printed in SAVED_AS.findall(PAGE):
        program = printed.replace('"orders"', repr(topic))
        program = program.replace("pulsar://localhost:6650", broker.service_url)
        (tmp_path / name).write_text(program, encoding="utf-8")

    def run(command: str) -> str:
        assert command in PAGE
        words = shlex.split(command.replace("orders", topic))
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            check=False,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.replace(topic, "orders")

    return run


def expected(number: int) -> list[str]:
    """Return the lines of the page's output block of this number."""
    blocks = [text for kind, text in BLOCK.findall(PAGE) if kind == "text"]
    return blocks[number].splitlines()


def test_the_quickstart(terminal, tmp_path):
    """Retries, a dead letter with its reason, a mended worker, and the letter is back."""
    worker = Worker(tmp_path)
    try:
        worker.prints("waiting for orders")
        terminal("python send.py")
        worker.prints(*expected(0))
        report = worker.interrupt()
        assert worker.logged() == re.split(r"\n(?=a message)", "\n".join(expected(1)))[::-1]
        assert report.startswith(re.findall(r"`(Report\(.*?), …", PAGE)[0])
    finally:
        worker.kill()

    assert "orders-billing-DLQ" in terminal("pulsar-retry dlq ls")
    shown = terminal("pulsar-retry dlq show orders-billing-DLQ").splitlines()
    for line, printed in zip(expected(2), shown, strict=False):
        assert set(line.split()) <= set(printed.split())

    program = (tmp_path / "worker.py").read_text(encoding="utf-8")
    refusal = '    if order.price < 0:\n        raise ValueError("a negative price")\n'
    assert refusal in program
    (tmp_path / "worker.py").write_text(program.replace(refusal, ""), encoding="utf-8")
    mended = Worker(tmp_path)
    try:
        mended.prints("waiting for orders")
        terminal("pulsar-retry redrive orders-billing-DLQ --yes")
        mended.prints(*expected(3))
        mended.interrupt()
        assert mended.logged() == []
    finally:
        mended.kill()
    assert "orders-billing-DLQ" not in terminal("pulsar-retry dlq ls")
