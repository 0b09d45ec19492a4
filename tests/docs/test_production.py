"""The worker and the tests that docs/production.md prints, as a reader saves them."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pulsar
import pytest

from support.waiting import eventually

PAGE = (Path(__file__).parents[2] / "docs" / "production.md").read_text(encoding="utf-8")
SAVED_AS = re.compile(
    r"[Ss]ave this as `([\w.]+)`:\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL
)
PROGRAMS = dict(SAVED_AS.findall(PAGE))


class Payments(http.server.BaseHTTPRequestHandler):
    """The service, which answers what its server says."""

    def do_POST(self) -> None:
        """Take a payment."""
        paid = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server: Any = self.server
        if server.status == 200:
            server.paid.add(paid["order"])
        self.send_response(server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def service():
    """Give the service."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Payments)
    server.status, server.paid = 200, set()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def asked(url: str) -> int:
    """Return the status of a page; 0: nobody listens yet."""
    try:
        with urllib.request.urlopen(url) as page:
            return int(page.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def test_the_worker(broker, client, admin, service, tmp_path):
    """It waits in an outage, and says so; then it pays everything, and ends at a SIGTERM."""
    topic, port = f"orders-{uuid.uuid4().hex[:8]}", free_port()
    program = PROGRAMS["worker.py"].replace('"orders"', repr(topic)).replace("9464", str(port))
    (tmp_path / "worker.py").write_text(program, encoding="utf-8")
    environment = os.environ | {
        "PULSAR_SERVICE_URL": broker.service_url,
        "PAYMENTS_URL": f"http://127.0.0.1:{service.server_port}/payments",
    }
    service.status = 503
    with subprocess.Popen(
        [sys.executable, "worker.py"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as worker:
        try:
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: asked(f"{url}/readyz") == 200)
            producer = pulsar.Client.create_producer(client, topic)
            for number in range(30):
                producer.send(b'{"order": "%d", "cents": 4200}' % number)
            eventually(lambda: asked(f"{url}/readyz") == 503)
            assert asked(f"{url}/livez") == 200
            service.status = 200
            eventually(lambda: service.paid == {str(number) for number in range(30)})
            eventually(lambda: asked(f"{url}/readyz") == 200)
            worker.terminate()
            printed, _ = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 0
    assert "Report(mode='drain', acknowledged=30, " in printed
    assert "dead_lettered=0" in printed


def test_the_printed_tests_pass(tmp_path):
    """In a project of its own, with the fixtures that come with the package."""
    for name, program in PROGRAMS.items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "pytest_pulsar_retry", "--rootdir=."],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "5 passed" in done.stdout, done.stdout + done.stderr
