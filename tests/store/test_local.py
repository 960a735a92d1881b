from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adaptree.errors import BadName, StoreError, TaskCorrupt, TaskNotFound
from adaptree.tasks import folders
from adaptree.tasks.record import Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task


def task(name: str = "reviews", fill: float = 1.0, **changes: object) -> Task:
    values: dict[str, object] = {
        "kind": "classify", "labels": ["a", "b"], "method": "houlsby(size=2)", "base": {"name": "minilm"},
        "metrics": {"validation": {"accuracy": 0.8}, "test": {"accuracy": 0.9, "f1": 0.7}},
        "parameters": {"trained": 12}, "trained_percent": 0.5, **changes,
    }  # fmt: skip
    return Task(Record(name=name, **values), {"head.bias": torch.full((8,), fill)})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def leftovers(store: Store) -> list[Path]:
    return list((store.path / "tmp").iterdir()) if (store.path / "tmp").exists() else []


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ADAPTREE_STORE", raising=False)
    assert Store().path == tmp_path / ".adaptree"
    monkeypatch.setenv("ADAPTREE_STORE", str(tmp_path / "other"))
    assert Store().path == tmp_path / "other"
    assert Store("~/mine").path == tmp_path / "mine"


def test_an_absent_store_is_empty_and_stays_absent(store: Store) -> None:
    assert (list(store), len(store), store.list(), "x" in store) == ([], 0, [], False)
    assert not store.path.exists()


def test_an_added_task_comes_back_with_its_version(store: Store) -> None:
    added = store.add(task())
    assert added.record.reference == "reviews@1"
    found = store["reviews"]
    assert found.record == added.record
    assert torch.equal(found.tensors["head.bias"], torch.ones(8))
    assert store.path_of("reviews") == store.path / "tasks/reviews/1"
    assert "# reviews@1" in (store.path_of("reviews") / "README.md").read_text()
    assert leftovers(store) == []


def test_a_name_that_is_there_gets_a_new_version_and_the_old_stays(store: Store) -> None:
    store.add(task(fill=1))
    before = {path.name: path.read_bytes() for path in store.path_of("reviews@1").iterdir()}
    assert store.add(task(fill=2)).record.version == 2
    assert {path.name: path.read_bytes() for path in store.path_of("reviews@1").iterdir()} == before
    assert store["reviews@1"].tensors["head.bias"][0] == 1
    assert store.get("reviews").tensors["head.bias"][0] == 2
    assert [line.version for line in store.history("reviews")] == [1, 2]


def test_ten_versions_are_in_order_of_number(store: Store) -> None:
    for _ in range(11):
        store.add(task())
    assert store["reviews"].record.version == 11
    assert [line.version for line in store.history("reviews")] == list(range(1, 12))


def test_membership_iteration_and_length(store: Store) -> None:
    for name in ("b", "a", "lang/qu", "lang/sw"):
        store.add(task(name))
    store.add(task("lang/qu"))
    assert list(store) == store.names() == ["a", "b", "lang/qu", "lang/sw"]
    assert len(store) == 4
    assert "lang/qu@2" in store
    for absent in ("lang", "lang/qu@3", "no", "Bad Name", "a@stable", 7):
        assert absent not in store


def test_a_namespace_may_have_a_task_of_its_own_name(store: Store) -> None:
    for name in ("lang/qu", "lang", "lang"):
        store.add(task(name))
    assert store.names() == ["lang", "lang/qu"]
    assert store.remove("lang") == 2
    assert store.names() == ["lang/qu"]


def test_a_number_in_a_namespace_is_a_name_where_it_is_no_version(store: Store) -> None:
    assert store.add(task("survey/2")).record.reference == "survey/2@1"
    assert [store.add(task("survey")).record.version for _ in range(2)] == [1, 3]
    assert store.names() == ["survey", "survey/2"]
    with pytest.raises(StoreError, match="where version 1 of task 'survey' lies"):
        store.add(task("survey/1"))
    assert store.remove("survey") == 2
    assert store.names() == ["survey/2"]
    assert leftovers(store) == []


def test_a_missing_task_is_answered_with_near_names(store: Store) -> None:
    store.add(task())
    with pytest.raises(TaskNotFound, match=r"no task 'revews' in the store\.  Did you mean 'reviews'\?  .*list"):
        store["revews"]
    with pytest.raises(TaskNotFound, match=r"no version 3 of task 'reviews': there is 1\.  adaptree history reviews"):
        store["reviews@3"]
    for ask in (store.history, store.remove, store.path_of):
        with pytest.raises(TaskNotFound, match="adaptree list"):
            ask("zzz")
    with pytest.raises(BadName):
        store.add(task("No Good"))


def test_list_shows_the_newest_of_each_with_its_price(store: Store) -> None:
    store.add(task("b"))
    store.add(task("a", settings={"metric": "f1"}))
    store.add(task("a", settings={"metric": "f1"}))
    first, second = store.list()
    assert (first.name, first.version, first.versions, first.metric, first.score) == ("a", 2, 2, "f1", 0.7)
    assert (second.name, second.metric, second.score, second.trained) == ("b", "accuracy", 0.9, 12)
    assert (second.kind, second.method, second.base) == ("classify", "houlsby(size=2)", "minilm")
    assert second.bytes == (store.path_of("b") / "task.safetensors").stat().st_size
    assert second.created
    assert Store(store.path).list() == [first, second]  # now from the index


def test_a_task_of_another_kind_is_listed_too(store: Store) -> None:
    store.add(task("x", kind="attached", metrics={}))
    assert (store.list()[0].metric, store.list()[0].score, store.list()[0].problem) == ("", None, "")


@pytest.mark.parametrize("where", ["", "tasks", "sub/store"])
def test_a_file_in_the_place_of_a_store_is_named(tmp_path: Path, where: str) -> None:
    file = tmp_path / "store.csv"
    if where == "tasks":
        file.mkdir()
        (file / "tasks").write_text("no folder")
    else:
        file.write_text("text,label\n")
    wrong = Store(file / where if where.startswith("sub") else file)
    name = re.escape(str(file / "tasks" if where == "tasks" else file))
    for read in (wrong.list, wrong.names, lambda: len(wrong), lambda: wrong["a"]):
        with pytest.raises(StoreError, match=f"'{name}' is a file, not a store.*--store DIR"):
            read()


def test_folders_that_are_no_tasks_are_passed_over(store: Store) -> None:
    store.add(task("a"))
    (store.path / "tasks/.DS_Store").write_text("x")
    (store.path / "tasks/Not A Name/1").mkdir(parents=True)
    (store.path / "tasks/empty").mkdir()
    (store.path / "tasks/a/notes").mkdir()
    assert store.names() == ["a"]
    assert store.add(task("empty")).record.version == 1


def test_a_task_copied_by_hand_goes_by_its_new_name(store: Store) -> None:
    store.add(task("a"))
    shutil.copytree(store.path / "tasks/a", store.path / "tasks/b")
    assert store["b"].record.reference == "b@1"
    assert [line.name for line in store.list()] == ["a", "b"]


# damage


def test_a_damaged_task_is_listed_with_its_problem_and_the_others_work(store: Store) -> None:
    for name in ("cut", "gone", "json", "well"):
        store.add(task(name))
    store.list()
    weights = store.path_of("cut") / "task.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    (store.path_of("gone") / "task.safetensors").unlink()
    (store.path_of("json") / "task.json").write_text("{")
    found = {line.name: line.problem for line in store.list()}
    assert "task.safetensors: " in found["cut"]
    assert "missing" in found["gone"]
    assert "broken JSON" in found["json"]
    assert found["well"] == ""
    assert store.history("json")[0].problem
    assert store["well"].record.name == "well"
    for name in ("cut", "gone", "json"):
        with pytest.raises(TaskCorrupt, match=f"task '{name}@1' is damaged.*adaptree remove {name}@1"):
            store[name]
        assert store.remove(f"{name}@1") == 1
    assert store.names() == ["well"]


def test_a_damaged_version_leaves_the_earlier_one(store: Store) -> None:
    store.add(task())
    store.add(task())
    (store.path_of("reviews@2") / "task.json").unlink()
    with pytest.raises(TaskCorrupt, match="reviews@2"):
        store["reviews"]
    assert store["reviews@1"].record.version == 1
    assert store.add(task()).record.version == 3


def test_a_newer_format_is_a_problem_of_that_task_alone(store: Store) -> None:
    store.add(task("a"))
    path = store.path_of("a") / "task.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    assert "format 2" in store.list()[0].problem


# removal


def test_remove_takes_one_version_or_all(store: Store) -> None:
    for _ in range(3):
        store.add(task())
    assert store.remove("reviews@2") == 1
    assert [line.version for line in store.history("reviews")] == [1, 3]
    with pytest.raises(TaskNotFound):
        store.remove("reviews@2")
    assert store.remove("reviews") == 2
    assert "reviews" not in store
    assert not (store.path / "tasks/reviews").exists()
    assert leftovers(store) == []


def test_the_number_of_a_removed_version_is_not_given_again(store: Store) -> None:
    store.add(task())
    store.add(task())
    store.remove("reviews@2")
    assert store.add(task()).record.version == 3
    store.remove("reviews@1")
    store.remove("reviews@3")
    assert "reviews" not in store
    assert store.add(task()).record.version == 1


# writing when it is hard


def test_adding_one_name_at_once_gives_each_its_own_version(store: Store) -> None:
    versions: list[int] = []

    def work() -> None:
        for _ in range(5):
            versions.append(store.add(task()).record.version)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(1, 31))
    assert all(store[f"reviews@{version}"].record.version == version for version in versions)
    assert leftovers(store) == []


def test_a_number_that_another_process_took_meanwhile_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Store(store.path)
    real = Task.write
    raced = iter([True, True])

    def slow(self: Task, folder: Path) -> Task:
        written = real(self, folder)
        if next(raced, False):
            with monkeypatch.context() as context:
                context.setattr(Task, "write", real)
                other.add(task(fill=9))
        return written

    monkeypatch.setattr(Task, "write", slow)
    assert store.add(task(fill=1)).record.version == 3
    assert [store[f"reviews@{v}"].tensors["head.bias"][0].item() for v in (1, 2, 3)] == [9, 9, 1]
    assert '"version": 3' in (store.path_of("reviews@3") / "task.json").read_text()
    assert leftovers(store) == []


def test_a_task_removed_while_another_version_comes_in(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(task(fill=1))
    real = Task.write

    def slow(self: Task, folder: Path) -> Task:
        store.remove("reviews")
        return real(self, folder)

    monkeypatch.setattr(Task, "write", slow)
    assert store.add(task(fill=2)).record.version == 2
    assert store["reviews@2"].tensors["head.bias"][0] == 2


@pytest.mark.parametrize(
    ("code", "todo"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EROFS, "writable"),
        (errno.EACCES, "writable"),
        (errno.EIO, "--store DIR"),
    ],
)
@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_a_store_that_cannot_be_written_says_so_and_keeps_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, todo: str, call: str
) -> None:
    store.add(task("kept"))

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as context:
        context.setattr(os, call, refuse)
        with pytest.raises(StoreError, match=f"{os.strerror(code)}.*{todo}"):
            store.add(task("lost"))
    assert store.names() == ["kept"]
    assert leftovers(store) == []
    assert store.add(task("lost")).record.version == 1


def test_a_store_under_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot write"):
        Store(tmp_path / "file").add(task())
    with pytest.raises(StoreError, match="is a file, not a store"):
        Store(tmp_path / "file").list()


def test_what_a_killed_process_left_is_swept_after_a_day(store: Store) -> None:
    store.add(task())
    old, young = store.path / "tmp/add-old", store.path / "tmp/add-young"
    for folder in (old, young):
        (folder / "1").mkdir(parents=True)
    os.utime(old, (time.time() - 2 * folders.DAY,) * 2)
    store.add(task())
    assert leftovers(store) == [young]
    assert store.names() == ["reviews"]


# scale


def fill(store: Store, first: int, count: int) -> None:
    one = task()
    for number in range(first, first + count):
        store.add(Task(replace(one.record, name=f"task-{number}"), one.tensors))


@pytest.mark.slow
def test_a_thousand_tasks_slow_nothing_down(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # a thousand additions would wait for the disk
    listed: list[object] = []
    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (listed.append(path), real(path))[1])
    fill(store, 0, 10)
    early = len(listed)
    fill(store, 10, 980)
    listed.clear()
    fill(store, 990, 10)
    assert len(listed) == early  # an addition looks at as many folders as when there were few
    for _ in ("without an index", "with one"):
        assert len(Store(store.path).list()) == 1000
    listed.clear()
    assert store["task-500"].record.version == 1
    assert len(listed) <= 2  # its own folder, whatever the others' number
