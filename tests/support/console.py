"""The console as a command, which tests ask by HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import httpx2

from support.waiting import eventually

RUN = (sys.executable, "-m", "pulsar_retry")


class Served:
    """The command, in a process of its own."""

    def __init__(self, broker: Any, namespace: str, *options: str) -> None:
        command = [*RUN, "console", "--port", "0", "--every", "1", "--json"]
        self.process = subprocess.Popen(
            [*command, "--namespace", namespace, *options],
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ
            | {"PULSAR_SERVICE_URL": broker.service_url, "PULSAR_ADMIN_URL": broker.admin_url},
        )
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["url"]
        self.client = httpx2.Client(base_url=self.url, timeout=90, trust_env=False)

    def stop(self) -> int:
        """End it, and return its exit code."""
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        with self.process:
            return self.process.wait(60)

    def kill(self) -> None:
        """End it as a crash does."""
        self.client.close()
        with self.process:
            self.process.kill()

    def get(self, path: str, **parameters: Any) -> str:
        """Return a page."""
        answer = self.client.get(path, params=parameters or None)
        assert 200 == answer.status_code, answer.text
        return answer.text

    def shows(self, text: str, path: str, **parameters: Any) -> str:
        """Return a page as soon as it contains a pattern; the console follows topics by itself."""
        eventually(lambda: re.search(text, self.get(path, **parameters)) is not None)
        return self.get(path, **parameters)

    def post(self, path: str, **form: Any) -> httpx2.Response:
        """Send a form, as one of its pages does."""
        return self.client.post(path, data=form, headers={"origin": self.url.rstrip("/")})

    def ended(self, answer: httpx2.Response) -> str:
        """Return the page of the job that a form has begun, when it has ended.

        What becomes of its letters is not watched.
        """
        assert 303 == answer.status_code, answer.text
        path = answer.headers["location"]
        running = 'kind (running|cancelling)"(?![^§]*What becomes of them)'
        eventually(lambda: not re.search(running, self.get(path)))
        self.post("/cancel", id=path.partition("id=")[2])
        eventually(lambda: not re.search('kind (running|cancelling)"', self.get(path)))
        return self.get(path)

    def look(self, **form: Any) -> tuple[str, str]:
        """Do a dry run, and return its id and its page."""
        looked = self.post("/look", **form)
        page = self.ended(looked)
        return looked.headers["location"].partition("id=")[2], page

    def act(self, **form: Any) -> str:
        """Do a dry run, confirm it, and return the path of the job."""
        plan, _ = self.look(**form)
        confirmed = self.post("/confirm", plan=plan)
        assert 303 == confirmed.status_code, confirmed.text
        return str(confirmed.headers["location"])

    def done(self, **form: Any) -> str:
        """Do a dry run, confirm it, and return the job's page when it has ended."""
        plan, _ = self.look(**form)
        return self.ended(self.post("/confirm", plan=plan))
