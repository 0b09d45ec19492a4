"""Run pulsar-client's own tests with this package's clients in place of its own.

`python tools/upstream_tests.py` takes the tests of the installed pulsar-client from its public
repository, because no source distribution is published. `python tools/upstream_tests.py FOLDER`
takes them from a folder of a clone. Where they cannot be had, the script says "skipped, because …",
and ends with 0; with CI in the environment it ends with 1.

The tests run on a `Standalone` with the accounts, rights and certificates that they expect. A test
that fails is run again with pulsar-client's own client. Only if it passes there, it is a defect of
this package, and the script fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree as ET

import pulsar
import urllib3

from pulsar_retry.standalone import Standalone
from pulsar_retry.standalone.ports import free_ports

_REPOSITORY = "https://github.com/apache/pulsar-client-python"

#: The files that such a broker cannot serve.
_LEFT_OUT = {
    "auto_cluster_failover_test.py": "it starts two brokers in containers",
    "oauth2_test.py": "it needs an account at an identity provider on the Internet",
}

_PROGRAM = """
import sys
import pulsar.asyncio
import pytest
if sys.argv[1] == "ours":
    import pulsar_retry.asyncio
    pulsar.Client, pulsar.asyncio.Client = pulsar_retry.Client, pulsar_retry.asyncio.Client
sys.exit(pytest.main(sys.argv[2:]))
"""

#: Seconds that one test may take, and that all of them may take.
_PATIENCE, _MOST = 300, 3600

_AUTHENTICATION = "org.apache.pulsar.broker.authentication.AuthenticationProvider"


class CannotBeHadError(Exception):
    """The tests are not to be had here."""


def fetch(folder: Path) -> Path:
    """Clone the tests of the installed pulsar-client into *folder*, and return their folder."""
    if shutil.which("git") is None:
        raise CannotBeHadError("there is no git on PATH")
    tag = f"v{pulsar.__version__}"
    command = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, _REPOSITORY, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        line = next(iter(done.stderr.strip().splitlines()), "git failed")
        raise CannotBeHadError(f"git cannot clone {tag} of {_REPOSITORY}: {line}")
    return folder / "tests"


def broker_of(tests: Path, tls_port: int) -> Standalone:
    """Return a broker that is not started, and is set up for *tests*."""
    certificates = tests / "test-conf"
    return Standalone(
        auth=True,
        settings={
            # Certificates are of localhost.
            "advertisedAddress": "localhost",
            "brokerServicePortTls": tls_port,
            "tlsCertificateFilePath": str(certificates / "broker-cert.pem"),
            "tlsKeyFilePath": str(certificates / "broker-key.pem"),
            "tlsTrustCertsFilePath": str(certificates / "cacert.pem"),
            "authenticationProviders": ",".join(
                f"{_AUTHENTICATION}{each}" for each in ("Tls", "Token", "Basic")
            ),
            "anonymousUserRole": "anonymous",
            "superUserRoles": "localhost,superUser,admin",
            "topicLevelPoliciesEnabled": False,
            "maxMessageSize": 1_024_000,
        },
        java_options=[f"-Dpulsar.auth.basic.conf={certificates / '.htpasswd'}"],
    )


def set_up(broker: Standalone) -> None:
    """Create the tenants, namespaces and rights that the tests expect."""
    authorization = {"Authorization": f"Bearer {broker.admin_token}"}

    def call(method: str, path: str, content: object) -> None:
        url = f"{broker.admin_url}/admin/v2/{path}"
        answer = urllib3.request(method, url, json=content, headers=authorization)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise RuntimeError(f"{method} {url}: {answer.status} {answer.data!r}")

    clusters = {"allowedClusters": ["standalone"]}
    call("POST", "tenants/public", clusters | {"adminRoles": ["anonymous"]})
    call("PUT", "tenants/private", clusters | {"adminRoles": []})
    for namespace in ("public/default-2", "private/auth"):
        call("PUT", f"namespaces/{namespace}", {"replication_clusters": ["standalone"]})
    for namespace, role in (
        ("public/default", "anonymous"),
        ("public/default-2", "anonymous"),
        ("private/auth", "token-principal"),
    ):
        call("POST", f"namespaces/{namespace}/permissions/{role}", ["produce", "consume"])


def failures(whose: str, tests: Path, names: list[str]) -> tuple[int, list[str]]:
    """Run tests with the client that is *ours* or *theirs*; return their number, and who failed."""
    report = tests / f"{whose}.xml"
    options = ["-q", "-p", "no:cacheprovider", "--timeout", str(_PATIENCE)]
    options += ["--timeout-method", "signal", "--junitxml", str(report)]
    command = [sys.executable, "-c", _PROGRAM, whose, *options, *names]
    subprocess.run(command, cwd=tests, check=False, timeout=_MOST)
    cases = list(ET.parse(report).iter("testcase"))
    failed = []
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            module, _, kind = case.attrib["classname"].rpartition(".")
            failed.append(f"{module}.py::{kind}::{case.attrib['name']}")
    return len(cases), failed


def run(source: Path | None) -> int:
    """Run the tests of *source*, or else of the repository; return the exit code."""
    with tempfile.TemporaryDirectory(prefix="upstream-") as name:
        folder = Path(name)
        tests = folder / "copy"
        shutil.copytree(source or fetch(folder / "clone"), tests)
        tls_port, *_ = islice(free_ports(), 1)
        with broker_of(tests, tls_port) as broker:
            set_up(broker)
            (tests / ".test-token.txt").write_text(broker.token("token-principal"), "ascii")
            ports = {
                "localhost:6650": broker.service_url.removeprefix("pulsar://"),
                "localhost:8080": broker.admin_url.removeprefix("http://"),
                "localhost:6651": f"localhost:{tls_port}",
            }
            names = []
            for path in sorted(tests.glob("*_test.py")):
                text = path.read_text("utf-8")
                for theirs, ours in ports.items():
                    text = text.replace(theirs, ours)
                path.write_text(text, "utf-8")
                if path.name not in _LEFT_OUT:
                    names.append(path.name)
            for file, reason in _LEFT_OUT.items():
                print(f"left out, because {reason}: {file}")
            count, failed = failures("ours", tests, names)
            theirs_too = failures("theirs", tests, failed)[1] if failed else []
    for each in theirs_too:
        print(f"fails with pulsar-client's client, too: {each}")
    defects = [each for each in failed if each not in theirs_too]
    for each in defects:
        print(f"passes with pulsar-client's client only: {each}")
    print(f"{count - len(failed)} of {count} tests of pulsar-client {pulsar.__version__} pass")
    return 1 if defects or not count else 0


def main(*folders: str) -> int:
    """Run the tests in the folder that is named, or else of the repository."""
    try:
        return run(Path(*folders).resolve() if folders else None)
    except CannotBeHadError as error:
        print(f"skipped, because {error}")
        # Who runs this at a desk sees the line; in CI, nobody reads the log of a check that passes.
        return 1 if os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
