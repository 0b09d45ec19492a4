"""Make the files of a release from the last commit, and check them as a user would meet them.

`python tools/release.py FOLDER` writes the source distribution and the wheel without extension
modules to FOLDER; cibuildwheel makes the others. Everything is built twice, in different folders
and some seconds apart, and has to be equal. Then the source distribution is installed in a new
environment, where it builds its extension modules.

`python tools/release.py --notes TAG` prints the part of the changelog about this version.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: What must be in the source distribution, besides the package.
_SHIPPED = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md", "tox.ini"),
    *("docs/index.md", "examples/README.md", "tests/conftest.py", "tools/release.py"),
    *(str(each.relative_to(ROOT)) for each in ROOT.glob("pulsar_retry/native/*.[ch]pp")),
)

#: A link or a picture that a package index could not show.
_RELATIVE = re.compile(r"\]\((?![a-z]+:|#)[^)]*\)")

_TRY = """
import pulsar_retry, pulsar_retry_spark, pulsar_retry.testing
from pulsar_retry.native.loading import native, native_rows
assert pulsar_retry.Client
assert pulsar_retry.__file__.startswith({prefix!r}), pulsar_retry.__file__
found = [native(), native_rows()]
assert all(each.module for each in found), found
"""


def notes(tag: str) -> str:
    """Return what the changelog says about the version of *tag*, such as ``v0.2.0``.

    Raises:
        SystemExit: it is not the version of the package, or the changelog has no dated part of it,
            or the hosted CI runs in a repository to which the package's addresses do not lead.
    """
    _check_repository(os.environ.get("GITHUB_REPOSITORY"))
    version = tag.removeprefix("v")
    if version != _version():
        sys.exit(f"error: {tag} is tagged, but pulsar_retry/_version.py says {_version()}")
    part = part_about(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    if part is None:
        sys.exit(f"error: CHANGELOG.md has no part '## [{version}] - YYYY-MM-DD'")
    return part


def part_about(version: str, changelog: str) -> str | None:
    """Return the dated part of *changelog* about *version*, without its heading, or None."""
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |^\[Unreleased\]: )"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    return None if found is None else found[1].strip() + "\n"


def main(folder: Path) -> None:
    """Build, compare and check; the files that are to be published are in *folder* then."""
    environ = {**os.environ, "SOURCE_DATE_EPOCH": _epoch()}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        first, second = (Path(temporary) / name for name in ("first", "the-second"))
        built = [_build(each, environ) for each in (first, second)]
        if not _equal(*built):
            sys.exit("error: two builds of one commit differ")
        paths = [str(path) for path in built[0]]
        _run(sys.executable, "-m", "twine", "check", "--strict", *paths)
        wheels = [path for path in paths if path.endswith(".whl")]
        _run(sys.executable, "-m", "check_wheel_contents", *wheels)
        sdist, pure, _ = built[0]
        _check_sdist(sdist)
        _install(sdist, Path(temporary) / "environment")
        for path in (sdist, pure):
            (folder / path.name).write_bytes(path.read_bytes())
            print(f"to publish: {folder / path.name}")


def _check_repository(name: str | None) -> None:
    """End the program if package indexes would send users to another repository than *name*."""
    addresses = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    if name and f"Homepage = https://github.com/{name}\n" not in addresses:
        sys.exit(f"error: the addresses in setup.cfg and setup.py are not those of {name}")


def _version() -> str:
    return (ROOT / "pulsar_retry" / "_version.py").read_text(encoding="utf-8").split('"')[-2]


def _epoch() -> str:
    """Return when the last commit was made: the time of every file of the release."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return given or _run("git", "log", "-1", "--format=%ct", output=True).strip()


def _build(folder: Path, environ: dict[str, str]) -> tuple[Path, Path, Path]:
    """Build the last commit; return the source distribution and both kinds of wheel."""
    source, made = folder / "source", folder / "dist"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(source, filter="data")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made))
    _run(*build, "--sdist", cwd=source, environ=environ)
    (sdist,) = made.glob("*.tar.gz")
    _normalise(sdist, int(environ["SOURCE_DATE_EPOCH"]))
    with tarfile.open(sdist) as tar:
        tar.extractall(folder, filter="data")
    (unpacked,) = folder.glob("pulsar_retry-*")
    _run(*build, "--wheel", cwd=unpacked, environ={**environ, "PULSAR_RETRY_PURE": "1"})
    (pure,) = made.glob("*-none-any.whl")
    _run(*build, "--wheel", cwd=unpacked, environ=environ)
    (native,) = set(made.glob("*.whl")) - {pure}
    return sdist, pure, native


def _normalise(sdist: Path, epoch: int) -> None:
    """Take out of *sdist* who made it and when: setuptools does this for wheels only."""
    content = io.BytesIO()
    with (
        tarfile.open(sdist) as old,
        tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda each: each.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(content.getvalue(), mtime=epoch))


def _equal(first: tuple[Path, ...], second: tuple[Path, ...]) -> bool:
    """Print the hashes of two builds; tell whether they are equal."""
    hashes = [[_hash(path) for path in each] for each in (first, second)]
    for path, one, other in zip(first, *hashes, strict=True):
        print(f"{one}  {path.name}" if one == other else f"{one} != {other}  {path.name}")
    return hashes[0] == hashes[1]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check_sdist(sdist: Path) -> None:
    """End the program if something is missing, or if the description has links to nowhere."""
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        (description,) = (each for each in tar if re.fullmatch(r"[^/]+/PKG-INFO", each.name))
        file = tar.extractfile(description)
        text = file.read().decode() if file else ""
    if missing := set(_SHIPPED) - names:
        sys.exit(f"error: {sdist.name} lacks {sorted(missing)}")
    if relative := _RELATIVE.findall(text):
        sys.exit(f"error: the description on package indexes has relative links: {relative}")


def _install(sdist: Path, folder: Path) -> None:
    """Install *sdist* in a new environment, and import it there."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    _run(python, "-m", "pip", "install", "--quiet", str(sdist))
    _run(python, "-I", "-c", _TRY.format(prefix=str(folder)), cwd=folder)


def _run(
    *command: str, cwd: Path = ROOT, environ: dict[str, str] | None = None, output: bool = False
) -> str:
    """Run a command, and show what it prints if it fails; return it if *output* is asked for."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=None if output else subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}error: {' '.join(command)} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    if sys.argv[1:2] == ["--notes"]:
        print(notes(sys.argv[2]), end="")
    else:
        main(Path(sys.argv[1]).resolve())
