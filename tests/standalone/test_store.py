"""The downloader, against a Maven repository on loopback."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import threading
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pulsar_retry.errors import ConfigError, StandaloneError
from pulsar_retry.standalone.jars.lock import Jar
from pulsar_retry.standalone.jars.store import MIRROR_VARIABLE, JarStore, default_cache

if TYPE_CHECKING:
    from conftest import Repository

CONTENT = random.Random(7).randbytes(300_000)


def store_of(repository: Repository, cache: Path, progress: Any = None) -> JarStore:
    """Return a store that fetches from *repository* and waits next to nothing between tries."""
    return JarStore(cache, mirror=repository.url, progress=progress, backoff=0.001)


def part_of(store: JarStore, jar: Jar) -> Path:
    """Return the file that a download of *jar* is written to."""
    path = store.path(jar)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f"{path.name}.part")


def test_fetches_all_and_reports_it(repository: Repository, cache: Path) -> None:
    """Many jars come in parallel, and ten lines say how far it is."""
    jars = [repository.add(CONTENT[: 1000 * n], f"jar-{n}") for n in range(1, 41)]
    lines: list[str] = []
    paths = store_of(repository, cache, lines.append).ensure(jars)
    assert [path.stat().st_size for path in paths] == [jar.size for jar in jars]
    assert "downloading Pulsar: 40 files of 1 MB" == lines[0]
    assert 2 <= len(lines) <= 11
    assert "downloading Pulsar: 1 of 1 MB" == lines[-1]


def test_downloads_run_at_the_same_time(repository: Repository, cache: Path) -> None:
    """Four answers that wait for each other can only come if four are asked for at once."""
    together = threading.Barrier(4, timeout=60)
    repository.before_answer = together.wait
    store_of(repository, cache).ensure([repository.add(CONTENT, f"jar-{n}") for n in range(4)])


def test_second_time_asks_for_nothing(repository: Repository, cache: Path) -> None:
    """What is cached is not fetched."""
    jar = repository.add(CONTENT)
    store_of(repository, cache).ensure([jar])
    repository.asked.clear()
    store_of(repository, cache).ensure([jar])
    assert repository.asked == []


@pytest.mark.parametrize("left", [CONTENT[:100_000], CONTENT, b"x" * 5000])
def test_what_an_earlier_process_left_is_replaced(
    repository: Repository, cache: Path, left: bytes
) -> None:
    """It was killed, and nobody knows what it has written."""
    jar = repository.add(CONTENT)
    store = store_of(repository, cache)
    part_of(store, jar).write_bytes(left)
    (path,) = store.ensure([jar])
    assert path.read_bytes() == CONTENT
    assert not part_of(store, jar).exists()


def test_a_truncated_body_is_fetched_again(repository: Repository, cache: Path) -> None:
    """A connection can break off."""
    jar = repository.add(CONTENT)
    repository.cut_bodies = [70_000, 10]
    (path,) = store_of(repository, cache).ensure([jar])
    assert path.read_bytes() == CONTENT
    assert len(repository.asked) == 3


def test_transient_statuses_are_tried_again(repository: Repository, cache: Path) -> None:
    """A busy server is asked again."""
    jar = repository.add(CONTENT)
    repository.failures = [HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS]
    (path,) = store_of(repository, cache).ensure([jar])
    assert path.read_bytes() == CONTENT


def test_gives_up_in_the_end_and_says_how_often_it_tried(
    repository: Repository, cache: Path
) -> None:
    """A server that stays broken is named with its status."""
    jar = repository.add(CONTENT)
    repository.failures = [HTTPStatus.BAD_GATEWAY] * 100
    with pytest.raises(
        StandaloneError, match=r"HTTP 502 Bad Gateway \(tried 5 times\).*HTTPS_PROXY"
    ):
        store_of(repository, cache).ensure([jar])


def test_missing_file_is_final_and_names_url_and_remedy(
    repository: Repository, cache: Path
) -> None:
    """A 404 is not tried again; the message has the file, the URL, the status and what to do."""
    jar = repository.add(CONTENT)
    repository.files.clear()
    with pytest.raises(StandaloneError) as caught:
        store_of(repository, cache).ensure([jar])
    for part in ("thing-1.0.jar", f"{repository.url}/{jar.path}", "HTTP 404", MIRROR_VARIABLE):
        assert part in str(caught.value)
    assert len(repository.asked) == 1


def test_wrong_checksum_is_final(repository: Repository, cache: Path) -> None:
    """Other bytes of the right number are refused, and nothing of them stays."""
    jar = repository.add(CONTENT)
    repository.files[f"/{jar.path}"] = b"x" * jar.size
    store = store_of(repository, cache)
    with pytest.raises(StandaloneError, match=r"SHA-256 is .*, the lock file says"):
        store.ensure([jar])
    assert not store.path(jar).exists()
    assert part_of(store, jar).stat().st_size == 0


def test_another_size_is_refused(repository: Repository, cache: Path) -> None:
    """As the log-in page of a proxy has it."""
    jar = repository.add(CONTENT)
    repository.files[f"/{jar.path}"] = b"<html>log in</html>"
    with pytest.raises(StandaloneError, match=r"after 19 of 300000 bytes"):
        store_of(repository, cache).ensure([jar])


def test_one_failure_ends_the_others(repository: Repository, cache: Path) -> None:
    """The first failure is raised without waiting for the other two hundred files."""
    jars = [repository.add(CONTENT, f"jar-{n}") for n in range(200)]
    repository.files.clear()
    with pytest.raises(StandaloneError, match="HTTP 404"):
        store_of(repository, cache).ensure(jars)
    assert len(repository.asked) < len(jars)


def test_nobody_there_is_told_clearly(repository: Repository, cache: Path) -> None:
    """A refused connection says so."""
    jar = repository.add(CONTENT)
    store = JarStore(cache, mirror="http://127.0.0.1:1", backoff=0.001)
    with pytest.raises(StandaloneError, match=r"refused.*check the network"):
        store.ensure([jar])


def test_file_of_the_wrong_size_is_fetched_again(repository: Repository, cache: Path) -> None:
    """The look at each start finds a jar that was cut off."""
    jar = repository.add(CONTENT)
    store = store_of(repository, cache)
    (path,) = store.ensure([jar])
    path.write_bytes(CONTENT[:-1])
    store.ensure([jar])
    assert path.read_bytes() == CONTENT


def test_mirror_from_the_environment(
    repository: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable names the repository; a slash at its end is fine."""
    jar = repository.add(CONTENT)
    monkeypatch.setenv(MIRROR_VARIABLE, f"{repository.url}/")
    JarStore(cache).ensure([jar])
    assert repository.asked == [f"/{jar.path}"]


def test_mirror_may_be_a_folder(repository: Repository, cache: Path, tmp_path: Path) -> None:
    """A `file:` URL works, also to begin again where a part is, and a missing file is named."""
    jar = repository.add(CONTENT)
    source = tmp_path / "m2" / jar.path
    source.parent.mkdir(parents=True)
    source.write_bytes(CONTENT)
    store = JarStore(cache, mirror=(tmp_path / "m2").as_uri())
    part_of(store, jar).write_bytes(CONTENT[:10])
    (path,) = store.ensure([jar])
    assert path.read_bytes() == CONTENT
    with pytest.raises(StandaloneError, match="No such file"):
        store.ensure([repository.add(b"1", "absent")])


def test_bad_mirror_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no URL of a repository is named before anything is opened."""
    with pytest.raises(ConfigError, match="mirror='ftp://x'"):
        JarStore(mirror="ftp://x")
    monkeypatch.setenv(MIRROR_VARIABLE, "example")
    with pytest.raises(ConfigError, match=f"{MIRROR_VARIABLE}='example'"):
        JarStore()


def test_folder_that_cannot_be_written_is_named(repository: Repository, tmp_path: Path) -> None:
    """A file where the folder should be: the message names the path and the variable to set."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(StandaloneError, match=r"could not write .*cache.*XDG_CACHE_HOME"):
        store_of(repository, tmp_path / "cache").ensure([repository.add(CONTENT)])


def test_cache_follows_the_xdg_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An absolute XDG_CACHE_HOME counts, a relative one does not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "pulsar-retry"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache() == Path.home() / ".cache" / "pulsar-retry"


def test_two_processes_at_once_fetch_each_file_once(repository: Repository, cache: Path) -> None:
    """Processes that start together share the work, and both end with all the files."""
    jars = [repository.add(CONTENT, f"jar-{n}") for n in range(20)]
    arguments = [repository.url, str(cache), pickle.dumps(jars).hex()]
    command = [sys.executable, "-c", FETCH_IN_CHILD, *arguments]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert sorted(repository.asked) == sorted(repository.files)
    assert not list(cache.rglob("*.part"))
    assert {path.read_bytes() for path in cache.rglob("*.jar")} == {CONTENT}


FETCH_IN_CHILD = """
import pickle, sys
from pathlib import Path
from pulsar_retry.standalone.jars.store import JarStore

url, cache, jars = sys.argv[1:]
JarStore(Path(cache), mirror=url).ensure(pickle.loads(bytes.fromhex(jars)))
"""
