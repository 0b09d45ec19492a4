"""The lock file: complete, in step with pom.xml, and readable."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import pytest

from pulsar_retry.errors import StandaloneError
from pulsar_retry.standalone.jars.lock import (
    Jar,
    current_platform,
    format_lock,
    jars_for,
    load_lock,
    parse_lock,
)

PLATFORMS = ("linux-x86_64", "linux-aarch64", "macos-x86_64", "macos-aarch64")
PACKAGE = resources.files("pulsar_retry.standalone.jars")


def lock_text() -> str:
    """Return the packaged lock file."""
    return (PACKAGE / "jars.lock").read_text(encoding="ascii")


def test_lock_was_made_from_this_pom() -> None:
    """A changed pom.xml without a new lock file is noticed."""
    digest = hashlib.sha256((PACKAGE / "pom.xml").read_bytes()).hexdigest()
    assert f"# pom.xml {digest}\n" in lock_text()


def test_lock_is_as_the_tool_writes_it() -> None:
    """Reading and writing gives the same bytes: sorted, one jar a line, nothing by hand."""
    digest = hashlib.sha256((PACKAGE / "pom.xml").read_bytes()).hexdigest()
    assert format_lock(load_lock(), digest) == lock_text()


def test_every_line_is_complete() -> None:
    """Each jar has a platform that we run on, a size and a whole SHA-256."""
    for jar in load_lock():
        assert jar.platform in {"any", "linux", "macos", *PLATFORMS}
        assert jar.size > 0
        assert re.fullmatch("[0-9a-f]{64}", jar.sha256)


def test_no_jar_stands_twice() -> None:
    """One version of each artifact: two on the class path would be a matter of luck."""
    artifacts = [re.sub(r"^([^:]+:[^:]+):[^:]+", r"\1", jar.coordinates) for jar in load_lock()]
    assert len(artifacts) == len(set(artifacts))


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_platform_gets_its_own_native_libraries(platform: str) -> None:
    """RocksDB is there for every platform, and nothing of another platform comes along."""
    jars = jars_for(platform)
    assert sum("rocksdbjni" in jar.coordinates for jar in jars) == 1
    foreign = {"linux", "macos", *PLATFORMS} - {platform, platform.partition("-")[0]}
    assert not [jar for jar in jars if jar.platform in foreign]


@pytest.mark.parametrize("family", ["com.fasterxml.jackson", "io.netty:", "io.opentelemetry:"])
def test_families_are_of_one_version(family: str) -> None:
    """What has a BOM is not mixed: a mix of OpenTelemetry versions does not start."""
    versions = {
        jar.coordinates.split(":")[2].removesuffix("-alpha")
        for jar in load_lock()
        if jar.coordinates.startswith(family) and "tcnative" not in jar.coordinates
    }
    own_pace = {"1.41.1"}  # io.opentelemetry.semconv is another family
    assert len(versions - own_pace) == 1


def test_path_follows_the_maven_layout() -> None:
    """A path is derived from coordinates, with and without a classifier."""
    plain = Jar("io.netty:netty-common:4.1", "any", 1, "0" * 64)
    native = Jar("org.rocksdb:rocksdbjni:7.10.2:osx", "macos", 1, "0" * 64)
    assert str(plain.path) == "io/netty/netty-common/4.1/netty-common-4.1.jar"
    assert str(native.path) == "org/rocksdb/rocksdbjni/7.10.2/rocksdbjni-7.10.2-osx.jar"


def test_malformed_line_is_named() -> None:
    """A damaged lock file says where."""
    with pytest.raises(StandaloneError, match=r"line 2: cannot read 'one two'"):
        list(parse_lock("# fine\none two\n"))


def test_unsupported_platform_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no native library the error names the way out."""
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(StandaloneError, match="PULSAR_SERVICE_URL"):
        current_platform()
