"""A store behind a URL: what a local store promises holds there, too, against a real S3 server and in memory."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import s3
from tests.store import test_local as local
from tests.store import test_parts as parts
from tests.store import test_versions as versions
from tests.store.test_local import task

from adaptree.errors import StoreError, TaskCorrupt, TaskNotFound, Unreachable, UsageError
from adaptree.tasks import beside, cache_folder, objects, remote
from adaptree.tasks.objects import Objects
from adaptree.tasks.remote import RemoteStore
from adaptree.tasks.store import Store


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3.running() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def plain_server() -> Iterator[str]:
    with s3.running("--ignores-conditions") as endpoint:
        yield endpoint


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store on S3 that is empty."""
    s3.use(server, monkeypatch)
    return f"s3://{s3.BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture(params=["memory", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else request.getfixturevalue("bucket")
    return Store(url)


@pytest.fixture
def on_s3(bucket: str) -> RemoteStore:
    found = Store(bucket)
    assert isinstance(found, RemoteStore)
    return found


def keys(store: Store) -> list[str]:
    assert isinstance(store, RemoteStore)
    return sorted(store._objects.listing("tasks"))


# what holds for a local store

LAWS = [
    local.test_a_name_that_is_there_gets_a_new_version_and_the_old_stays,
    local.test_ten_versions_are_in_order_of_number,
    local.test_membership_iteration_and_length,
    local.test_a_namespace_may_have_a_task_of_its_own_name,
    local.test_a_missing_task_is_answered_with_near_names,
    local.test_a_task_of_another_kind_is_listed_too,
    local.test_remove_takes_one_version_or_all,
    versions.test_a_number_that_is_asked_for_is_given_once_whoever_asks,
    local.test_adding_one_name_at_once_gives_each_its_own_version,
    parts.test_a_task_comes_with_its_parts,
    parts.test_saved_outside_of_a_store_it_carries_them_along_and_brings_them_in,
    parts.test_a_part_is_not_removed_unawares,
    parts.test_another_task_in_the_place_of_a_part_is_not_taken_for_it,
    parts.test_a_task_whose_parts_are_nowhere_is_refused_whole,
    parts.test_a_version_that_a_later_one_of_its_name_is_made_of_stays,
    parts.test_parts_of_the_same_tensors_stay_two,
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("test_"))
def test_it_is_a_store_like_a_local_one(law: Callable[..., None], store: Store, tmp_path: Path) -> None:
    known = {"store": store, "tmp_path": tmp_path}
    law(**{name: known[name] for name in inspect.signature(law).parameters})


VERSIONS = [
    versions.test_a_tag_stands_wherever_a_version_does,
    versions.test_a_tag_moves_and_the_notes_say_so,
    versions.test_a_tagged_version_is_not_removed_unawares,
    versions.test_rollback_is_a_new_version_with_the_old_weights_and_scores,
    versions.test_rollback_of_a_task_with_parts_keeps_them,
]


@pytest.mark.parametrize("law", VERSIONS, ids=lambda law: law.__name__.removeprefix("test_"))
def test_versions_tags_and_notes_are_as_in_a_local_one(law: Callable[..., None], store: Store) -> None:
    for number in (1, 2, 3):
        store.add(versions.task(fill=number))
    law(store)


def test_where_a_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    monkeypatch.setenv("ADAPTREE_STORE", "memory://here/")
    assert isinstance(Store(), RemoteStore)
    assert (Store().location, repr(Store())) == ("memory://here", "Store('memory://here')")
    assert Store().path.parent == cache / "stores"
    assert Store("memory://there").path != Store().path
    assert Store("sftp://me:secret@host/tasks").location == "sftp://me@host/tasks"
    assert not isinstance(Store(tmp_path), RemoteStore)
    folder = Store((tmp_path / "a b").as_uri())
    assert (type(folder), folder.path) == (Store, tmp_path / "a b"), "the URL of a folder is that folder"


def test_a_file_becomes_an_object_and_a_file_again(store: Store, tmp_path: Path) -> None:
    assert isinstance(store, RemoteStore)
    file, again = tmp_path / "file", tmp_path / "again"
    file.write_bytes(os.urandom(100_000))
    store.objects.put_file("jobs/files/1", file)
    assert store.objects.get_file("jobs/files/1", again)
    assert again.read_bytes() == file.read_bytes()
    assert not store.objects.get_file("jobs/files/2", again)


def test_an_absent_store_is_empty_and_stays_absent(store: Store) -> None:
    assert (list(store), len(store), store.list(), "x" in store) == ([], 0, [], False)
    assert keys(store) == []


def test_a_version_is_one_object_and_a_copy_of_its_record(store: Store) -> None:
    added = store.add(task())
    assert keys(store) == ["reviews/1.adaptree", "reviews/1.json"]
    found = store["reviews"]
    assert found.record == added.record == store.record("reviews")
    assert torch.equal(found.tensors["head.bias"], torch.ones(8))
    assert "# reviews@1" in (store.path_of("reviews") / "README.md").read_text()


def test_list_shows_the_newest_of_each_without_their_tensors(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b", "a", "a"):
        store.add(task(name, settings={"metric": "f1"}))
    read: list[str] = []
    real = Objects.read
    monkeypatch.setattr(Objects, "read", lambda self, key: (read.append(key), real(self, key))[1])
    fresh = Store(store.location)
    first, second = fresh.list()
    assert (first.name, first.version, first.versions, first.metric, first.score) == ("a", 2, 2, "f1", 0.7)
    assert (second.name, second.kind, second.problem) == ("b", "classify", "")
    assert sorted(read) == ["tasks/a/2.json", "tasks/b/1.json"]
    assert Store(store.location).list() == [first, second]
    assert len(read) == 2, "nothing is read twice"
    assert [line.version for line in store.history("a")] == [1, 2]


def test_a_number_is_never_used_again(store: Store) -> None:
    for _ in range(2):
        store.add(task())
    store.remove("reviews@2")
    assert store.add(task()).record.version == 3
    store.remove("reviews")
    assert "reviews" not in store
    assert store.names() == []
    assert keys(store) == ["reviews/1.removed", "reviews/2.removed", "reviews/3.removed"]
    assert store.add(task()).record.version == 4


def test_any_name_with_a_number_is_a_name(store: Store) -> None:
    store.add(task("survey"))
    assert store.add(task("survey/1")).record.reference == "survey/1@1"
    assert store.names() == ["survey", "survey/1"]


def test_a_number_that_another_process_took_meanwhile_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, real, raced = Store(store.location), Objects.create, iter([True, True])

    def slow(self: Objects, key: str, data: bytes) -> bool:
        if next(raced, False):
            with monkeypatch.context() as context:
                context.setattr(Objects, "create", real)
                other.add(task(fill=9))
        return real(self, key, data)

    monkeypatch.setattr(Objects, "create", slow)
    assert store.add(task(fill=1)).record.version == 3
    assert [store[f"reviews@{v}"].tensors["head.bias"][0].item() for v in (1, 2, 3)] == [9, 9, 1]
    assert '"version": 3' in (store.path_of("reviews@3") / "task.json").read_text()


def test_a_number_that_was_added_and_removed_meanwhile_is_passed_over(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, real = Store(store.location), Objects.create

    def slow(self: Objects, key: str, data: bytes) -> bool:
        monkeypatch.setattr(Objects, "create", real)
        other.add(task(fill=9))
        other.remove("reviews")
        return real(self, key, data)

    monkeypatch.setattr(Objects, "create", slow)
    assert store.add(task(fill=1)).record.version == 2
    assert store.versions("reviews") == [2]
    assert store["reviews"].tensors["head.bias"][0] == 1


def test_of_two_that_remove_a_version_one_did(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(task())
    other, real = Store(store.location), Objects.create

    def slow(self: Objects, key: str, data: bytes) -> bool:
        monkeypatch.setattr(Objects, "create", real)
        assert other.remove("reviews@1") == 1
        return real(self, key, data)

    monkeypatch.setattr(Objects, "create", slow)
    with pytest.raises(TaskNotFound):
        store.remove("reviews@1")


def test_a_version_whose_removal_was_cut_short_is_gone_and_swept_later(store: Store) -> None:
    assert isinstance(store, RemoteStore)
    for _ in range(2):
        store.add(task())
    store._objects.create("tasks/reviews/1.removed", b"")  # as far as a killed process came
    assert store.versions("reviews") == [2]
    with pytest.raises(TaskNotFound):
        store["reviews@1"]
    store.remove("reviews@2")
    assert keys(store) == ["reviews/1.removed", "reviews/2.removed"]


# the small files


def test_the_small_files_beside_a_version(store: Store) -> None:
    store.add(task())
    for line in ("first", "second", "third"):
        store.append_beside("reviews", "1.notes", line)
    assert beside.lines(store.read_beside("reviews", "1.notes")) == ["first", "second", "third"]
    store.write_beside("reviews", "1.notes", "all")
    store.append_beside("reviews", "1.notes", "more")
    store.write_beside("reviews", "stable.tag", "1")
    assert store.read_beside("reviews", "1.notes") == f"{beside.seal('all')}\n{beside.seal('more')}\n"
    assert store.beside("reviews") == ["1.notes", "stable.tag"]
    store.remove_beside("reviews", "1.notes")
    store.remove_beside("reviews", "2.notes")
    assert store.beside("reviews") == ["stable.tag"]
    assert store.read_beside("reviews", "1.notes") == ""
    store.mark("reviews", "evaluated")
    assert store.marks("reviews@1") == {"evaluated"}


def test_what_is_beside_a_version_goes_with_it(store: Store) -> None:
    for _ in range(2):
        store.add(task())
    store.mark("reviews@1", "a")
    store.mark("reviews@2", "b")
    store.write_beside("reviews", "stable.tag", "1")
    store.remove("reviews@2")
    assert store.beside("reviews") == ["1.marks", "2.removed", "stable.tag"]
    store.remove("reviews", force=True)
    assert store.beside("reviews") == ["1.removed", "2.removed"]


# the copies on this machine


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects that are read from now on."""
    seen: list[str] = []
    real = Objects.read
    monkeypatch.setattr(Objects, "read", lambda self, key: (seen.append(key), real(self, key))[1])
    return seen


def test_a_version_is_fetched_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(task())
    seen = count_reads(monkeypatch)
    for _ in range(3):
        assert Store(store.location)["reviews"].record.version == 1
    assert seen == ["tasks/reviews/1.adaptree"]


def test_a_removed_version_is_not_served_from_a_copy(store: Store) -> None:
    store.add(task())
    store["reviews"]
    Store(store.location).remove("reviews")
    with pytest.raises(TaskNotFound):
        store["reviews@1"]


def test_a_version_of_the_same_number_in_a_store_made_anew_is_not_taken_for_a_copy(store: Store) -> None:
    assert isinstance(store, RemoteStore)
    store.add(task(fill=1))
    store["reviews"]
    for key in keys(store):
        store._objects.delete(f"tasks/{key}")
    store.add(task(fill=2))
    assert store["reviews@1"].tensors["head.bias"][0] == 2
    assert store.record("reviews@1").digest == store["reviews@1"].record.digest


def test_a_damaged_copy_is_fetched_again(store: Store) -> None:
    store.add(task())
    for file in ("task.safetensors", "task.json"):
        path = store.path_of("reviews") / file
        path.write_bytes(path.read_bytes()[:-3] + b"xyz")
        assert store["reviews"].tensors["head.bias"][0] == 1
    store.record("reviews")
    for path in (store.path / "copies").glob("*/task.json"):
        path.write_text("{")
    assert store.record("reviews").version == 1


def test_copies_that_were_not_used_for_long_make_room(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        store.add(task(name))
    one = sum(path.stat().st_size for path in store.path_of("a").rglob("*"))
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", str(int(3.6 * one)))
    monkeypatch.setattr(remote, "IN_USE", -1)
    for age, name in enumerate("abc"):
        store.get(name)
        os.utime(store.path_of(name).parents[1], (time.time() - 1000 + age,) * 2)
    os.utime(store.path_of("a").parents[1])
    store.add(task("d"))
    seen = count_reads(monkeypatch)
    Store(store.location).get("d")
    kept = [store.path_of(name) and len(seen) for name in "acdb"]
    assert kept == [1, 1, 1, 2], "b, the least recently used, has gone"


def test_a_copy_that_is_in_use_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPTREE_CACHE_BYTES", "1")
    for name in "ab":
        store.add(task(name))
    first = store.path_of("a")
    store.path_of("b")
    assert first.is_dir()
    assert cache_folder.most_bytes() == 1


# damage


@pytest.mark.parametrize("harm", ["cut", "flipped", "other", "empty"])
def test_a_damaged_object_is_named(store: Store, harm: str) -> None:
    assert isinstance(store, RemoteStore)
    for name in ("a", "b"):
        store.add(task(name))
    key = "tasks/a/1.adaptree"
    data = store._objects.read(key) or b""
    middle = len(data) // 2
    harmed = {
        "cut": data[:-40],
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "other": store._objects.read("tasks/b/1.adaptree") or b"",
        "empty": b"",
    }[harm]
    store._objects.put(key, harmed)
    with pytest.raises(TaskCorrupt, match=rf"task 'a@1' is damaged: {store.location}/{key}.*adaptree remove a@1"):
        store["a"]
    if harm == "empty":
        assert "1.adaptree" in store.list()[0].problem
    assert store["b"].record.name == "b"
    assert store.remove("a@1") == 1
    assert store.names() == ["b"]


@pytest.mark.parametrize("harm", [None, b"{", b""])
def test_the_copy_of_a_record_is_written_again_if_it_is_missing_or_damaged(store: Store, harm: bytes | None) -> None:
    assert isinstance(store, RemoteStore)
    added = store.add(task())
    key = "tasks/reviews/1.json"
    good = store._objects.read(key)
    if harm is None:
        store._objects.delete(key)  # the process that added the version was killed before it wrote it
    else:
        store._objects.put(key, harm)
    assert store.list()[0].problem == ""
    assert store.record("reviews") == added.record
    assert store._objects.read(key) == good


# servers without conditional writes


def test_conditional_writes_are_used_only_where_the_server_has_them(
    bucket: str, plain_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Objects(bucket)._has_conditional_writes
    s3.use(plain_server, monkeypatch)
    plain = Objects(f"s3://{s3.BUCKET}/{uuid.uuid4().hex}")
    assert not plain._has_conditional_writes
    assert (plain.create("a", b"1"), plain.create("a", b"2"), plain.read("a")) == (True, False, b"1")
    assert not Objects("memory://x")._has_conditional_writes


@pytest.mark.parametrize("where", ["memory", "plain"])
def test_with_a_lock_of_many_that_create_an_object_one_does(
    where: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    if where == "plain":
        s3.use(request.getfixturevalue("plain_server"), monkeypatch)
        url = f"s3://{s3.BUCKET}/{uuid.uuid4().hex}"
    made: list[tuple[int, bool]] = []

    def work(number: int) -> None:
        made.append((number, Objects(url).create("a/b", str(number).encode())))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, created in made if created]
    assert len(winners) == 1
    assert Objects(url).read("a/b") == str(winners[0]).encode()
    assert Objects(url).listing("locks") == Objects(url).listing("tmp") == {}


def test_the_lock_of_a_dead_process_counts_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Objects(f"memory://{uuid.uuid4().hex}")
    one.put(f"locks/a/{time.time() - 2 * objects.LEASE:.0f}-dead", b"")
    assert one.create("a", b"1")
    one.put(f"locks/b/{time.time() + objects.LEASE:.0f}-alive", b"")
    monkeypatch.setattr(objects, "LEASE", 0.5)
    with pytest.raises(StoreError, match=r"others keep memory://.*/b locked"):
        one.create("b", b"1")
    assert one.read("b") is None


# when it does not work


def test_a_bucket_that_is_not_there_is_not_made(bucket: str) -> None:
    wrong = Store("s3://no-such-bucket/tasks")
    write = partial(wrong.write_beside, "a", "stable.tag", "1")
    for ask in (wrong.list, lambda: wrong["a"], lambda: wrong.add(task()), write, wrong.list):
        with pytest.raises(Unreachable, match=r"the bucket of s3://no-such-bucket/tasks does not exist\.  Create it"):
            ask()


def test_a_key_that_is_refused(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.REFUSED)
    s3.forget()
    with pytest.raises(Unreachable, match=r"refuses access: .*  Check the credentials"):
        Store(bucket).list()
    with pytest.raises(Unreachable, match="refuses access"):
        Store(bucket).add(task())


def test_no_credentials(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    s3.forget()
    with pytest.raises(Unreachable, match=r"there are no credentials for s3://.*AWS_PROFILE"):
        Store(bucket).list()
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    s3.forget()
    with pytest.raises(Unreachable, match=r"profile \(nobody\)"):
        Store(bucket).list()


@contextlib.contextmanager
def listening(answers: bool) -> Iterator[str]:
    """A port where nobody answers: it is closed, or takes connections and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        where = f"http://127.0.0.1:{server.getsockname()[1]}"
        if answers:
            yield where
    if not answers:
        yield where


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True], ids=["closed", "silent"])
def test_a_server_that_does_not_answer_is_given_up_soon(
    bucket: str, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    monkeypatch.setattr(objects, "READ", 1)
    Store(bucket).add(task())
    Store(bucket)["reviews"]
    with listening(silent) as endpoint:
        s3.use(endpoint, monkeypatch)
        began = time.monotonic()
        with pytest.raises(Unreachable, match=rf"{bucket} cannot be reached: [^?]*\.  Check the network") as error:
            Store(bucket)["reviews"]  # though there is a copy
        assert str(error.value).count('"') % 2 == 0
        assert time.monotonic() - began < 30


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    url = f"memory://{uuid.uuid4().hex}"
    for name in ("reviews", "lang/qu"):
        Store(url).add(task(name))
    ls = MemoryFileSystem.ls
    for broken in ("tasks", "lang"):

        def failing(self: Any, path: str, *rest: Any, broken: str = broken, **options: Any) -> Any:
            if path.endswith(broken):
                raise OSError("the line is dead")
            return ls(self, path, *rest, **options)

        monkeypatch.setattr(MemoryFileSystem, "ls", failing)
        with pytest.raises(Unreachable, match="the line is dead"):
            Store(url).list()


def test_a_web_server_that_is_not_there_is_said() -> None:
    pytest.importorskip("aiohttp")
    with listening(False) as endpoint, pytest.raises(Unreachable, match="cannot be reached"):
        Store(f"{endpoint}/tasks").list()


def test_a_protocol_without_its_package_or_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"'carrier://pigeon' cannot be a store.*s3://BUCKET/PREFIX"):
        Store("carrier://pigeon").list()
    import fsspec.registry

    def missing(protocol: str) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "get_filesystem_class", missing)
    with pytest.raises(StoreError, match=r"needs a package that is not installed\.  pip install 'adaptree\[s3\]'"):
        Store("s3://bucket/tasks").list()


def test_a_cache_that_cannot_be_written_is_named(store: Store, cache: Path) -> None:
    store.add(task())
    shutil.rmtree(cache)
    cache.write_text("a file")
    with pytest.raises(StoreError, match=f"cannot write {cache}"):
        store["reviews"]


# several processes, and killed ones


def crowd(endpoint: str, tmp_path: Path, what: str, *words: object, url: str = "") -> dict[str, int]:
    url = url or f"s3://{s3.BUCKET}/{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "tests.store.crowd", what, url, *map(str, words)]
    environment = {**os.environ, **s3.settings(endpoint), "ADAPTREE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    print(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "seconds", [pytest.param(1, id="short"), pytest.param(60, marks=pytest.mark.campaign, id="long")]
)
@pytest.mark.parametrize("which", ["server", "plain_server"])
def test_eight_processes_at_once_lose_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, which: str, seconds: int
) -> None:
    found = crowd(request.getfixturevalue(which), tmp_path, "together", 8, seconds)
    assert found["added"] > 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "rounds"),
    [
        ("server", 4), ("plain_server", 4), ("folder", 8),
        *(pytest.param(which, rounds, marks=pytest.mark.campaign)
          for which, rounds in (("server", 100), ("plain_server", 25), ("folder", 100))),
    ],
)  # fmt: skip
def test_processes_killed_while_they_add_push_roll_back_and_remove_leave_what_was_completed(
    request: pytest.FixtureRequest, tmp_path: Path, which: str, rounds: int
) -> None:
    folder = which == "folder"
    endpoint, url = ("", str(tmp_path / "store")) if folder else (request.getfixturevalue(which), "")
    found = crowd(endpoint, tmp_path, "killed", rounds, tmp_path / "source", url=url)
    assert found["rounds"] == rounds
