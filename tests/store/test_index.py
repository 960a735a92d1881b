"""The index is a cache: what it shows is always what the folders hold, whatever happens to it."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests import postgres
from tests.store.test_local import task

from adaptree.errors import StoreError, UsageError
from adaptree.tasks import summary as module
from adaptree.tasks import unchanged
from adaptree.tasks.record import Record, checksum
from adaptree.tasks.store import Store


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ADAPTREE_INDEX", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    if reason := postgres.why_not():
        pytest.skip(reason)
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A store whose index is in a file, and one whose index is on a server that it shares with other tests."""
    url = request.getfixturevalue("database") if request.param == "postgresql" else None
    return Store(tmp_path / "store", index=url)


@pytest.fixture
def local(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def again(store: Store) -> Store:
    return Store(store.path, index=store.index._asked)


def file_of(store: Store) -> Path:
    assert store.index._file is not None
    return store.index._file


@pytest.fixture
def old_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let files be trusted by their times after a moment, and wait for it."""
    monkeypatch.setattr(unchanged, "YOUNG", 0.05)
    return lambda: time.sleep(0.1)


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks whose record is read from now on."""
    seen: list[str] = []
    real = module.read_record

    def spy(folder: Path, *, called: str) -> Record:
        seen.append(called)
        return real(folder, called=called)

    monkeypatch.setattr(module, "read_record", spy)
    return seen


def stamps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks whose files are hashed from now on."""
    hashed: list[str] = []
    real = Store._stamp

    def spy(self: Store, name: str, version: int, files: list[str]) -> str:
        hashed.append(name)
        return real(self, name, version, files)

    monkeypatch.setattr(Store, "_stamp", spy)
    return hashed


# what is read, and what is not


def test_list_reads_only_what_the_index_does_not_know(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        store.add(task(name))
    store.list()
    seen = reads(monkeypatch)
    store.list()
    assert seen == []
    store.add(task("d"))
    store.add(task("a"))
    os.utime(store.path_of("b") / "task.json", ns=(0, 0))  # another time, but the same bytes
    store.remove("c")
    assert [line.name for line in store.list()] == ["a", "b", "d"]
    assert sorted(seen) == ["a@2", "d@1"]
    assert sorted(store.index.rows()) == [("a", 1), ("a", 2), ("b", 1), ("d", 1)]
    store.remove("a@1")
    store.list()
    assert sorted(store.index.rows()) == [("a", 2), ("b", 1), ("d", 1)]


def test_a_row_comes_back_as_it_was_written(store: Store) -> None:
    store.add(task("a", labels=["naïve", "日本", 3], data={"name": "résumés.csv"}, trained_percent=0.1 + 0.2))
    store.add(task("b", metrics={}))
    fresh = store.rows(text=True)
    assert [row.summary for row in again(store).rows()] == [row.summary for row in fresh]
    assert [row.text for row in again(store).rows(text=True)] == [row.text for row in fresh]
    assert module.fields(fresh[0].text)["labels"] == "naïve, 日本, 3"


def test_files_that_are_old_enough_are_only_looked_at(
    store: Store, monkeypatch: pytest.MonkeyPatch, old_files: Callable[[], None]
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(unchanged, "YOUNG", 60.0)
        for name in "abc":
            store.add(task(name))
        store.list()
    old_files()
    hashed = stamps(monkeypatch)
    before = store.list()  # they were too young when they were read
    assert hashed == ["a", "b", "c"]
    assert again(store).list() == before
    assert hashed == ["a", "b", "c"]
    os.utime(store.path_of("b") / "task.json")
    assert store.list() == before
    assert hashed == ["a", "b", "c", "b"]


def changed(path: Path, how: str) -> None:
    """Reverse the method's letters, with size and time of modification as they were."""
    values, was = json.loads(path.read_text()), path.stat()
    values["method"] = values["method"][::-1]  # as long as it was
    values["checksum"] = checksum({key: value for key, value in values.items() if key != "checksum"})
    text = json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    if how == "edited":
        path.write_text(text)
    else:
        path.with_name("new").write_text(text)
        path.with_name("new").rename(path)
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (was.st_mtime_ns, was.st_size)


@pytest.mark.parametrize("age", ["young", "old"])
@pytest.mark.parametrize("how", ["edited", "replaced"])
def test_a_record_that_changed_is_noticed_though_its_time_and_size_are_the_same(
    store: Store, how: str, age: str, monkeypatch: pytest.MonkeyPatch, old_files: Callable[[], None]
) -> None:
    monkeypatch.setattr(unchanged, "YOUNG", 0.05 if age == "old" else 60.0)
    store.add(task("a"))
    store.add(task("b"))
    if age == "old":
        old_files()
    (before, other) = store.list()
    path = store.path_of("a") / "task.json"
    was = path.stat()
    changed(path, how)
    assert again(store).list() == [replace(before, method=before.method[::-1]), other]
    text = path.read_text()
    path.write_text(text[:-30] + "x" + text[-29:])
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert "task.json" in again(store).list()[0].problem


def test_fifty_changes_in_a_row_are_all_noticed(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "YOUNG", 0.02)
    local.add(task("a"))
    path = local.path_of("a") / "task.json"
    for i in range(50):
        shown = local.list()[0].method
        changed(path, "edited" if i % 2 else "replaced")
        assert local.list()[0].method == shown[::-1]
        time.sleep(0.03 * (i % 5 == 0))


def test_tags_and_notes_are_part_of_a_row(store: Store, old_files: Callable[[], None]) -> None:
    for _ in range(2):
        store.add(task("a"))
    store.add(task("b"))
    store.write_beside("a", "stable.tag", "1")
    old_files()
    assert [line.tags for line in store.list()] == [(), ()]
    store.write_beside("a", "live.tag", "2")
    store.append_beside("a", "2.notes", "2026-01-02T03:04:05+00:00 for the shop")
    row = store.rows(text=True)[0]
    assert row.summary.tags == ("live",)
    assert module.fields(row.text)["notes"] == "for the shop"
    (tagged,) = again(store).rows(tag="stable")
    assert (tagged.summary.version, tagged.summary.tags, tagged.summary.versions) == (1, ("stable",), 2)
    store.write_beside("a", "stable.tag", "2")
    assert [(row.summary.version, row.summary.tags) for row in store.rows(tag="stable")] == [(2, ("live", "stable"))]
    store.remove_beside("a", "stable.tag")
    assert store.rows(tag="stable") == []
    assert store.list()[0].tags == ("live",)


def test_a_task_that_another_process_removes_meanwhile_is_not_shown_as_damaged(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        local.add(task(name))
    real = Store._stamp

    def slow(self: Store, name: str, version: int, files: list[str]) -> str:
        if name == "a":
            shutil.rmtree(self.path / "tasks" / "a")
        return real(self, name, version, files)

    monkeypatch.setattr(Store, "_stamp", slow)
    assert [(line.name, line.problem) for line in local.list()] == [("b", "")]


def test_the_index_is_outside_the_store_and_an_old_one_inside_is_removed(local: Store, cache: Path) -> None:
    local.add(task("a"))
    (local.path / "index.sqlite").write_bytes(b"of an earlier version")
    local.list()
    assert {path.name for path in local.path.iterdir()} == {"tasks", "tmp"}
    assert [path.suffix for path in (cache / "index").iterdir()] == [".sqlite"]


def test_what_no_database_can_hold_is_listed_all_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(task("a", base={"name": "nul \0"}))
    store.add(task("b", parameters={"trained": 2**63 + 1}))
    store.add(task("c", base={"name": "half \ud800"}))
    store.add(task("d", labels=["x\0y", "\ud800"]))
    assert [line.trained for line in store.list()] == [12, 2**63 + 1, 12, 12]
    seen = reads(monkeypatch)
    assert [line.problem for line in store.list()] == [""] * 4
    assert {"a@1", "b@1", "c@1"} <= set(seen)


# damage


def sql(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript(script)


ROWS = "adaptree_index_rows_1"


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(b"not a database at all" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.write_bytes(path.read_bytes()[:4096]),
        lambda path: path.write_bytes(b""),
        Path.unlink,
        lambda path: sql(path, f"DROP TABLE {ROWS}"),
        lambda path: sql(path, f"DROP TABLE {ROWS}; CREATE TABLE {ROWS} (x)"),
        lambda path: sql(path, f"DROP TABLE {ROWS}; CREATE TABLE adaptree_index_rows_0 (x)"),
        lambda path: sql(path, f"UPDATE {ROWS} SET kind = 'other'"),
        lambda path: sql(path, f"UPDATE {ROWS} SET score = 'x', tags = NULL, version = 'y'"),
        lambda path: sql(path, f"UPDATE {ROWS} SET text = NULL, seen = x'ff', checksum = 7"),
        lambda path: sql(path, f"UPDATE {ROWS} SET text = CAST(x'ffff' AS TEXT), kind = CAST(x'ff' AS TEXT)"),
    ],
)
def test_a_broken_index_is_built_again(
    local: Store, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], object]
) -> None:
    for name in "ab":
        local.add(task(name))
    before = local.rows(text=True)
    harm(file_of(local))
    assert [row.summary for row in local.rows()] == [row.summary for row in before]
    harm(file_of(local))
    assert [row.text for row in local.rows(text=True)] == [row.text for row in before]
    local.rows(text=True)
    seen = reads(monkeypatch)
    assert local.list() == [row.summary for row in before]
    assert seen == []
    with closing(sqlite3.connect(file_of(local))) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert tables == {"adaptree_index_rows_1", "adaptree_index_vectors_1"}


def test_no_flipped_bit_of_the_index_is_ever_shown(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unchanged, "YOUNG", 0.0)  # rows are trusted, so that what they hold is what is shown
    for name in "abcdef":
        local.add(task(name))
    time.sleep(0.05)
    before = [(row.summary, row.text) for row in local.rows(text=True)]
    whole = file_of(local).read_bytes()
    draw = random.Random(0)
    for _ in range(150):
        harmed = bytearray(whole)
        harmed[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        file_of(local).write_bytes(harmed)
        assert [(row.summary, row.text) for row in local.rows(text=True)] == before


@pytest.mark.parametrize("mode", ["EXCLUSIVE", "IMMEDIATE"])
def test_an_index_that_another_process_holds_is_done_without(local: Store, mode: str) -> None:
    local.add(task("a"))
    local.list()
    local.add(task("b"))
    with closing(sqlite3.connect(file_of(local), isolation_level=None)) as other:
        other.execute(f"BEGIN {mode}")
        assert [line.name for line in local.list()] == ["a", "b"]
    assert sorted(local.index.rows()) == [("a", 1)]
    local.list()
    assert sorted(local.index.rows()) == [("a", 1), ("b", 1)]


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be made read-only")
@pytest.mark.parametrize("there", [False, True], ids=["new", "filled"])
def test_a_cache_that_cannot_be_written_is_done_without(local: Store, cache: Path, there: bool) -> None:
    local.add(task("a"))
    cache.mkdir(exist_ok=True)
    if there:
        local.list()
        local.add(task("b"))
        cache = cache / "index"
    if os.geteuid() == 0:  # who may write everywhere, but not below a file
        shutil.rmtree(cache)
        cache.write_text("no folder")
    else:
        cache.chmod(0o500)
    try:
        assert [line.name for line in local.list()] == (["a", "b"] if there else ["a"])
    finally:
        cache.chmod(0o700)


# together


WORK = """
import sys, random
sys.path.insert(0, sys.argv[4])
from tests.store.test_local import task
from adaptree.reports import figures
from adaptree.tasks.store import Store
figures.figures = lambda record: {}
store, me = Store(sys.argv[1], index=sys.argv[2] or None), sys.argv[3]
for i in range(6):
    store.add(task(f"own-{me}-{i}"))
    shared = store.add(task("shared"))
    lines = {line.name: line for line in store.list()}
    assert not [line.problem for line in lines.values() if line.problem], lines
    assert lines["shared"].version >= shared.record.version
    assert {f"own-{me}-{j}" for j in range(1, i + 1)} <= set(lines)
    store.remove(f"own-{me}-0") if i == 0 else None
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, pytest.param(8, marks=pytest.mark.campaign)])
def test_processes_list_and_add_at_once_and_none_fails_or_misses_anything(store: Store, processes: int) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-W", "error", "-c", WORK, str(store.path), store.index._asked]
    workers = [
        subprocess.Popen([*command, str(number), root], stderr=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    for worker in workers:
        _, complaint = worker.communicate(timeout=300)
        assert worker.returncode == 0, complaint
    found = {line.name: line for line in store.list()}
    assert len(found) == processes * 5 + 1
    assert (found["shared"].version, found["shared"].versions) == (processes * 6, processes * 6)
    assert not [line for line in found.values() if line.problem]
    store.index.clear()
    assert {line.name: line for line in again(store).list()} == found


# PostgreSQL


def test_stores_that_share_a_database_do_not_see_each_other(tmp_path: Path, database: str) -> None:
    one, two = (Store(tmp_path / name, index=database) for name in ("one", "two"))
    one.add(task("a"))
    two.add(task("b"))
    for _ in range(2):
        assert [line.name for line in one.list()] == ["a"]
        assert [line.name for line in two.list()] == ["b"]
    assert (list(one.index.rows()), list(two.index.rows())) == ([("a", 1)], [("b", 1)])


def test_the_index_may_come_from_the_environment(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    monkeypatch.setenv("ADAPTREE_INDEX", database)
    store = Store(tmp_path / "store")
    store.add(task("a"))
    store.list()
    assert list(Store(tmp_path / "store", index=database).index.rows()) == [("a", 1)]
    assert not cache.exists()


def test_tables_that_are_gone_or_of_another_form_are_made_again(tmp_path: Path, database: str) -> None:
    import psycopg

    store = Store(tmp_path / "store", index=database)
    store.add(task("a"))
    before = store.list()
    for harm in (f"DROP TABLE {ROWS}", f"ALTER TABLE {ROWS} DROP COLUMN kind", f"UPDATE {ROWS} SET kind = 'other'"):
        with psycopg.connect(database) as db:
            db.execute(harm)  # type: ignore[call-overload]
        assert store.list() == before
        assert [row.summary for row in store.index.rows().values()] == before


def test_a_server_that_is_not_there_is_said_in_one_line_without_the_password(local: Store) -> None:
    local.add(task("a"))
    store = Store(local.path, index="postgresql://me:secret@127.0.0.1:9/db")
    with pytest.raises(StoreError, match=r"the index postgresql://me:\*\*\*@127.0.0.1:9/db cannot be used: .*refused"):
        store.list()
    with pytest.raises(StoreError, match="Start or correct it") as error:
        store.list()
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_user_who_may_not_write_is_told_so(tmp_path: Path, database: str) -> None:
    import psycopg

    with psycopg.connect(database, autocommit=True) as db:
        db.execute("CREATE ROLE guest LOGIN")
    store = Store(tmp_path / "store", index=database.replace("tester", "guest"))
    store.add(task("a"))
    with pytest.raises(StoreError, match="permission denied"):
        store.list()


@pytest.mark.parametrize("address", ["mysql://localhost/db", "sqlite:///mine.db", "postgresql", "/some/where"])
def test_another_database_is_refused(local: Store, address: str) -> None:
    local.add(task("a"))
    with pytest.raises(UsageError, match="postgresql://USER@HOST/DATABASE"):
        Store(local.path, index=address).list()


def test_the_package_that_is_missing_is_named(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    local.add(task("a"))
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'adaptree\[postgres\]'"):
        Store(local.path, index="postgresql://localhost/db").list()


# speed


@pytest.mark.slow
def test_a_listing_is_linear_in_the_tasks_and_adding_does_not_depend_on_them(
    local: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged, "YOUNG", 0.0)
    first = local.path_of(local.add(task("a")).record.reference)
    spent: dict[int, tuple[float, float]] = {}
    for count in (500, 4000):
        for i in range(len(local), count):
            shutil.copytree(first, local.path / "tasks" / f"copy-{i}" / "1")
        time.sleep(0.05)
        assert len(local.list()) == count
        began = time.process_time()
        local.list()
        listed = time.process_time()
        local.add(task(f"new-{count}"))
        spent[count] = listed - began, time.process_time() - listed
        local.remove(f"new-{count}")
    assert spent[4000][0] < 2.5 * 8 * spent[500][0]
    assert spent[4000][1] < 5 * spent[500][1]


KILLED = """
import os, random, signal, sys, time
from adaptree.tasks.store import Store

path, index, count = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
rng, truth = random.Random(0), [f"task-{number}" for number in range(6)]
for number in range(count):
    child = os.fork()
    if not child:
        while True:  # write the whole index again and again
            Store(path, index=index).index.clear()
            assert [row.name for row in Store(path, index=index).list()] == truth
    time.sleep(rng.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for _ in range(2):  # as it was left, and as it then is
        assert [row.name for row in Store(path, index=index).list()] == truth, number
assert "torch" not in sys.modules
print("survived", count)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.campaign)])
def test_a_kill_while_the_index_is_written_leaves_a_store_that_lists_all(store: Store, kills: int) -> None:
    for number in range(6):
        one = task()
        store.add(type(one)(replace(one.record, name=f"task-{number}"), one.tensors))
    words = [sys.executable, "-c", KILLED, str(store.path), store.index._asked, str(kills)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["survived", str(kills)], done.stderr[-2000:]
