"""The lock files: complete, in step with pom.xml, and readable."""

from __future__ import annotations

import hashlib
from importlib import resources

import pytest

from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.standalone.jars.lock import (
    RELEASES,
    VERSION_VARIABLE,
    Jar,
    Release,
    current_platform,
    find_release,
    jars_for,
)

PLATFORMS = ("linux-x86_64", "linux-aarch64", "macos-x86_64", "macos-aarch64")
PACKAGE = resources.files("pulsar_retry.standalone.jars")


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> Release:
    """Give each release in turn."""
    return RELEASES[request.param]


def lock_text(release: Release) -> str:
    """Return the packaged lock file."""
    return (PACKAGE / release.lock_name).read_text(encoding="ascii")


def test_lock_was_made_from_this_pom(release: Release) -> None:
    """A changed pom.xml without a new lock file is noticed."""
    digest = hashlib.sha256((PACKAGE / "pom.xml").read_bytes()).hexdigest()
    assert f"# pom.xml {digest}\n" in lock_text(release)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_platform_gets_its_own_native_libraries(release: Release, platform: str) -> None:
    """RocksDB is there for every platform, and nothing of another platform comes along."""
    jars = jars_for(release, platform)
    assert sum("rocksdbjni" in jar.coordinates for jar in jars) == 1
    foreign = {"linux", "macos", *PLATFORMS} - {platform, platform.partition("-")[0]}
    assert not [jar for jar in jars if jar.platform in foreign]


def test_the_release_comes_from_the_caller_the_environment_or_is_4_2(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An argument wins over the variable, which wins over the default."""
    monkeypatch.delenv(VERSION_VARIABLE, raising=False)
    assert find_release().version == "4.2"
    monkeypatch.setenv(VERSION_VARIABLE, "4.0")
    assert find_release().version == "4.0"
    assert find_release("4.2").version == "4.2"
    monkeypatch.setenv(VERSION_VARIABLE, "")
    assert find_release().version == "4.2"


def test_an_unknown_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what was given, where, and what is accepted."""
    with pytest.raises(ConfigError, match=r"version='5.0'.*'4.0' or '4.2'"):
        find_release("5.0")
    monkeypatch.setenv(VERSION_VARIABLE, "4.1")
    with pytest.raises(ConfigError, match=f"{VERSION_VARIABLE}='4.1'.*'4.0' or '4.2'"):
        find_release()


def test_path_follows_the_maven_layout() -> None:
    """A path is derived from coordinates, with and without a classifier."""
    plain = Jar("io.netty:netty-common:4.1", "any", 1, "0" * 64)
    native = Jar("org.rocksdb:rocksdbjni:7.10.2:osx", "macos", 1, "0" * 64)
    assert str(plain.path) == "io/netty/netty-common/4.1/netty-common-4.1.jar"
    assert str(native.path) == "org/rocksdb/rocksdbjni/7.10.2/rocksdbjni-7.10.2-osx.jar"


def test_unsupported_platform_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no native library the error names the way out."""
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(StandaloneError, match="PULSAR_SERVICE_URL"):
        current_platform()
