"""Consoles on the test's broker, and a browser."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterator

import pytest

from support.browser import Browser, find_chromium
from support.console import Served

#: The checker of accessibility, a package of npm.
AXE = "axe-core@4.14.1"


@pytest.fixture(scope="module")
def namespace(admin) -> Iterator[str]:
    """Give a namespace to all tests of a module, for a console takes seconds to start."""
    name = f"public/{uuid.uuid4().hex}"
    admin.create_namespace(name)
    admin.delete_unused(name, after=600)  # later than the module ends
    yield name
    with contextlib.suppress(OSError):
        admin.delete_namespace(name)


@pytest.fixture(scope="module")
def console(broker, namespace) -> Iterator[Served]:
    """Give a console of that namespace; it ends well when it is told to."""
    served = Served(broker, namespace)
    yield served
    assert 0 == served.stop()


@pytest.fixture(scope="module")
def chromium() -> str:
    """Return where Chromium is."""
    found = find_chromium()
    if found is None:
        pytest.skip("skipped, because there is no Chromium here (Debian's package: chromium)")
    return found


@pytest.fixture
def browser(chromium) -> Iterator[Browser]:
    """Give a browser, which has nothing to complain of."""
    with Browser(chromium) as browser:
        yield browser
        assert [] == browser.problems


@pytest.fixture(scope="session")
def axe(tmp_path_factory) -> Callable[[Browser], list[str]]:
    """Return a function that tells what axe finds on a page."""
    folder = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("skipped, because there is no npm here, which axe-core comes from")
    packed = subprocess.run(
        [npm, "pack", "--silent", AXE], cwd=folder, capture_output=True, check=False, timeout=120
    )
    if packed.returncode:
        pytest.skip(f"skipped, because {AXE} cannot be had: {packed.stderr.decode()[-200:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        text = script.read().decode()

    def found(browser: Browser) -> list[str]:
        browser.evaluate(text + ";0")
        run = (
            "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
        )
        faults = (
            "found.violations.flatMap(v => v.nodes.map(n => v.id + ' ' + n.target + ' ' + n.html))"
        )
        result: list[str] = browser.evaluate(f"{run}.then(found => {faults})")
        return result

    return found
