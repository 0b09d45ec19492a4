"""What the console remembers, in one SQLite file."""

from __future__ import annotations

import contextlib
import sqlite3
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from pulsar_retry.admin.position import Position
from pulsar_retry.console.filtering import Query
from pulsar_retry.console.store.database import MEMORY, Database, default_path
from pulsar_retry.console.store.history import BUCKET, History
from pulsar_retry.console.store.letters import IndexedLetter, LetterIndex
from pulsar_retry.console.store.records import Records
from pulsar_retry.errors import ConfigError
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Range

DLQ = "persistent://public/default/orders-billing-DLQ"
NOW = 1_800_000_000.0


@pytest.fixture(params=["file", "memory"])
def database(request, tmp_path):
    """Give a store."""
    path = tmp_path / "console.db" if request.param == "file" else MEMORY
    with contextlib.closing(Database(path)) as database:
        yield database


def letter(entry: int, reason: str = "odd", part: int = -1, at: float = NOW) -> IndexedLetter:
    """Return a letter."""
    return IndexedLetter(
        position=Position(7, entry, part),
        reason=reason,
        error="ValueError",
        fingerprint="f",
        message=f"number {entry}",
        at=at,
        published=at,
        attempt=3,
        redrives=0,
        key=f"k{entry % 2}",
    )


def filled(database: Database, count: int) -> LetterIndex:
    """Return an index with letters, of which every second one is odd."""
    index = LetterIndex(database)
    letters = [letter(each, "odd" if each % 2 else "even") for each in range(count)]
    index.add(DLQ, letters, letters)
    index.follow(DLQ, EntryPlace(7, count - 1), is_whole=True, done=count, total=count)
    return index


def where(text: str = ""):
    """Return a filter."""
    return Query.typed(text).where()


def test_pages_follow_each_other_forwards_and_backwards(database) -> None:
    """No letter is left out, and none comes twice; also with a filter, and over partitions."""
    index = filled(database, 25)
    index.add(DLQ, [letter(3, "odd", part=0)], [])
    seen, after = [], None
    while page := index.page(DLQ, where("reason=odd"), most=5, after=after):
        seen += page
        after = page[-1].position
    assert [*range(1, 25, 2), 3] == [each.position.entry for each in seen]
    back = index.page(DLQ, where("reason=odd"), most=5, before=seen[10].position)
    assert seen[5:10] == back


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 10),
        ("reason=odd", 5),
        ("reason=odd reason=even", 10),
        ("reason=odd key=k1", 5),
        ("key=k0 attempt=3", 5),
        ("attempt=4", 0),
        ("id=7:3 id=7:4:-1 id=9:9", 2),
        ("since=2027-01-15T08:00:00Z", 10),
        ("until=2027-01-15T08:00:00Z", 0),
        ("error=ValueError fingerprint=f", 10),
        ("fingerprint=x", 0),
    ],
)
def test_the_index_counts_as_the_filter_does(database, text, count) -> None:
    """Letters, pages and groups agree."""
    index = filled(database, 10)
    assert count == index.count(DLQ, where(text))
    assert count == len(index.page(DLQ, where(text), most=100))
    assert count == sum(each.count for each in index.groups(DLQ, where(text)))
    assert 0 == index.count(DLQ + "x", where(text))


def test_what_is_acknowledged_leaves_the_index(database) -> None:
    """Up to the mark, and in ranges after it; what arrived stays counted."""
    index = filled(database, 10)
    index.drop(DLQ, -1, AckState(EntryPlace(7, 2)), [Range(7, 5, 6)])
    left = index.page(DLQ, where(), most=100)
    assert [3, 4, 7, 8, 9] == [each.position.entry for each in left]
    assert [10] == History(database).arrivals([DLQ], NOW - 100, NOW + 100, 1)
    index.remove(DLQ)
    assert (0, None) == (index.count(DLQ, where()), index.reached(DLQ))


def test_arrivals_by_time_and_by_group(database) -> None:
    """Since any time, too."""
    index, history = LetterIndex(database), History(database)
    times = [NOW + BUCKET * each for each in (0, 0, 1, 3)]
    letters = [letter(n, "new" if n == 3 else "old", at=at) for n, at in enumerate(times)]
    index.add(DLQ, letters, letters)
    assert [2, 1, 0, 1] == history.arrivals([DLQ], NOW, NOW + 4 * BUCKET, 4)
    assert [0] == history.arrivals([], NOW, NOW + 4 * BUCKET, 1)
    assert [("old", 3), ("new", 1)] == [
        (each.reason, each.count) for each in history.top([DLQ], NOW, NOW + 4 * BUCKET, 9)
    ]
    (new,) = history.top([DLQ], NOW + 2 * BUCKET, NOW + 9 * BUCKET, 9)
    assert ("new", NOW + 3 * BUCKET) == (new.reason, new.first_seen)


def test_arrivals_are_kept_for_a_time(database) -> None:
    """The groups of what is forgotten go too, if no letter of them is left."""
    index, history = filled(database, 10), History(database, keep=1000)
    index.remove(DLQ)
    history.forget(NOW + 500)
    assert [10] == history.arrivals([DLQ], NOW - 100, NOW + 100, 1)
    history.forget(NOW + 2000)
    assert [0] == history.arrivals([DLQ], NOW - 100, NOW + 100, 1)


def test_a_restart_remembers_everything_and_says_what_was_interrupted(tmp_path) -> None:
    """The letters, the jobs, the actions; a job that was running is marked."""
    path = tmp_path / "folder" / "console.db"
    with contextlib.closing(Database(path)) as database:
        filled(database, 3)
        records = Records(database)
        facts = {"began": NOW, "verb": "redrive", "source": DLQ, "dry_run": False}
        for state in ("running", "cancelling", "done"):
            records.save_job({**facts, "id": state, "state": state})
        records.save_job({**facts, "id": "plan", "dry_run": True, "state": "done"})
        records.add("ada", "redrive", DLQ)
    with contextlib.closing(Database(path)) as database:
        records = Records(database)
        assert 2 == records.interrupt()
        states = {each["id"]: each["state"] for each in records.jobs(most=9)}
        assert {"running": "interrupted", "cancelling": "interrupted", "done": "done"} == states
        assert "ada" == records.actions(9)[0].by
        assert 3 == LetterIndex(database).count(DLQ, where())
        assert EntryPlace(7, 2) == LetterIndex(database).reached(DLQ)
        records.forget()
        assert records.job("plan") is not None


def test_a_store_is_of_one_console_and_of_its_owner(tmp_path) -> None:
    """Two would mark each other's jobs; texts of errors are not for others."""
    path = tmp_path / "console.db"
    with contextlib.closing(Database(path)):
        with pytest.raises(ConfigError, match="another console uses it"):
            Database(path)
        if sys.platform != "win32":
            assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    Database(path).close()


def test_a_store_of_a_later_release_is_refused(tmp_path) -> None:
    """Nothing of it is changed, and the later release can use it."""
    path = tmp_path / "console.db"
    with contextlib.closing(sqlite3.connect(path)) as later:
        later.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="later release"):
        Database(path)
    with contextlib.closing(sqlite3.connect(f"{path}.lock", timeout=0)) as lock:
        lock.execute("BEGIN EXCLUSIVE")


@pytest.mark.parametrize("name", ["", "no-file\x00"])
def test_a_store_that_cannot_be_opened_is_said(tmp_path, name) -> None:
    """A folder, for example."""
    with pytest.raises((ConfigError, ValueError)):
        Database(tmp_path / name if name == "" else name)


def test_the_usual_file_has_the_name_of_the_cluster(tmp_path) -> None:
    """Two clusters have two files."""
    environment = {"XDG_STATE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    one = default_path("pulsar+ssl://a.example:6651,b.example:6651", environment)
    assert tmp_path / "pulsar-retry" / "console-a.example-6651-b.example-6651.db" == one
    relative = default_path("pulsar://h", {"XDG_STATE_HOME": "x"})
    assert Path.home() in relative.parents


def test_a_user_without_a_home_needs_no_store(monkeypatch) -> None:
    """As in a container whose user id has no name; the console then remembers nothing."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(ConfigError, match="home"):
        default_path("pulsar://h", {})


def test_actions_are_kept_in_order_and_are_bounded(database) -> None:
    """The oldest go first."""
    records = Records(database)
    before = time.time()
    for number in range(3):
        records.add("ada", f"act {number}")
    assert ["act 2", "act 1"] == [each.verb for each in records.actions(2)]
    assert records.actions(1)[0].at >= before


def test_threads_that_have_ended_keep_no_file_open(tmp_path) -> None:
    """A server's threads come and go; the connections of those that read in turn are one."""
    with contextlib.closing(Database(tmp_path / "console.db")) as database:

        def read() -> None:
            with database.reading() as reader:
                assert (1,) == tuple(reader.execute("SELECT 1").fetchone())

        for _ in range(20):
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
        assert len(database._open) <= 3
