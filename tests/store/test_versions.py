"""Versions: tags, notes, going back, clearing, and operations that are killed or meet each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from adaptree import compose
from adaptree.cli import main
from adaptree.errors import BadName, StoreError, TaskNotFound, UsageError, VersionTaken
from adaptree.hub.verify import verify
from adaptree.tasks.record import EVALUATED, NEEDS, ON, Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.tasks.versions import prune, rollback


def task(name: str = "reviews", fill: float = 1.0, **extra: object) -> Task:
    record = Record(
        name=name, kind="classify", labels=["a", "b"], method="houlsby(size=2)",
        base={"name": "b", "fingerprint": "f"}, metrics={"test": {"accuracy": fill / 10}}, extra=dict(extra),
    )  # fmt: skip
    return Task(record, {"head.bias": torch.full((8,), fill)})


def on_top(part: Task, name: str = "upper") -> Task:
    """A task that needs another one to run."""
    reference = part.record.reference
    upper = task(name, 9.0, **{ON: f"stack({reference})", NEEDS: {reference: part.record.digest}})
    return Task(upper.record, upper.tensors, {reference: part})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def three(store: Store) -> Store:
    """A store with three versions of a task."""
    for fill in (1.0, 2.0, 3.0):
        store.add(task(fill=fill))
    return store


# numbers


def test_a_number_that_is_asked_for_is_given_once_whoever_asks(store: Store) -> None:
    assert store.next_number("reviews") == 1
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda fill: _added(store, task(fill=fill), 1), (1.0, 2.0, 3.0, 4.0)))
    assert sorted(found) == [0, 0, 0, 1]
    assert store.next_number("reviews") == 2
    assert _added(store, task(), 2) == 2
    store.remove("reviews@2")
    assert _added(store, task(), 2) == 0, "a number is not used again"
    assert store.versions("reviews") == [1]


def _added(store: Store, some: Task, number: int) -> int:
    try:
        return store.add(some, number=number).record.version
    except VersionTaken:
        return 0


# tags


def test_a_tag_stands_wherever_a_version_does(three: Store) -> None:
    three.tag("reviews@2", "stable")
    assert three["reviews@stable"].record.reference == "reviews@2"
    assert three.path_of("reviews@stable") == three.path_of("reviews@2")
    assert "reviews@stable" in three
    assert "reviews@other" not in three
    assert three.marks("reviews@stable") == frozenset()
    assert three.tags("reviews") == {"stable": 2}
    assert repr(compose.parse("stack(lang/qu@stable, reviews@2)")) == "stack(lang/qu@stable, reviews@2)"


def test_a_tag_moves_and_the_notes_say_so(three: Store) -> None:
    three.tag("reviews@2", "stable")
    three.tag("reviews", "stable")
    three.tag("reviews", "stable")  # there already: nothing is noted
    assert three.tags("reviews") == {"stable": 3}
    (noted,) = three.notes("reviews@3")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00 tagged stable, which was version 2", noted)
    three.untag("reviews", "stable")
    assert three.tags("reviews") == {}
    assert three.notes("reviews@3")[1].endswith("no longer tagged stable")


@pytest.mark.parametrize("word", ["3", "Stable", "", "a b", "a" * 33, "-a", "../x", "ä"])
def test_a_tag_is_a_short_word(three: Store, word: str) -> None:
    with pytest.raises(BadName, match="cannot be a tag"):
        three.tag("reviews", word)
    assert three.tags("reviews") == {}


def test_an_unknown_tag_is_answered_with_near_ones(three: Store) -> None:
    with pytest.raises(TaskNotFound, match="no tag 'stabel' of task 'reviews': it has no tags"):
        three["reviews@stabel"]
    three.tag("reviews", "stable")
    with pytest.raises(TaskNotFound, match=r"there is stable.*Did you mean 'stable'.*adaptree history reviews"):
        three["reviews@stabel"]
    with pytest.raises(TaskNotFound, match=r"no task 'revews'.*Did you mean 'reviews'"):
        three["revews@stable"]
    with pytest.raises(TaskNotFound):
        three.untag("reviews", "other")


def test_a_tagged_version_is_not_removed_unawares(three: Store) -> None:
    three.tag("reviews@2", "stable")
    for reference in ("reviews", "reviews@2", "reviews@stable"):
        with pytest.raises(StoreError, match=r"'reviews@2' has the tag 'stable'.*--remove.*--force"):
            three.remove(reference)
    assert three.remove("reviews@1") == 1
    assert three.remove("reviews@stable", force=True) == 1
    assert three.tags("reviews") == {}
    assert three.versions("reviews") == [3]
    assert three.beside("reviews") == ["1.removed", "2.removed"]


def test_the_tags_of_a_task_go_with_it(three: Store) -> None:
    three.add(task("reviews/de"))  # so that the folder has to stay
    three.tag("reviews@3", "stable")
    three.remove("reviews", force=True)
    assert three.add(task()).record.version == 4
    assert three.tags("reviews") == {}


def test_a_tag_of_a_version_that_is_gone_is_no_tag(three: Store) -> None:
    three.write_beside("reviews", "old.tag", "7")
    three.write_beside("reviews", "odd.tag", "not a number")
    assert three.tags("reviews") == {}
    with pytest.raises(TaskNotFound):
        three["reviews@old"]


# notes


def test_notes_are_kept_beside_a_version(three: Store) -> None:
    before = {path: path.read_bytes() for path in three.path_of("reviews@2").iterdir()}
    three.note("reviews@2", "trained on\n the  cleaned file # 2")
    three.note("reviews@2", "goes out today")
    assert [note.partition(" ")[2] for note in three.notes("reviews@2")] == [
        "trained on the cleaned file # 2",
        "goes out today",
    ]
    assert three.notes("reviews@1") == []
    assert {path: path.read_bytes() for path in three.path_of("reviews@2").iterdir()} == before
    with pytest.raises(UsageError, match="empty"):
        three.note("reviews", " \n")


# going back


def test_rollback_is_a_new_version_with_the_old_weights_and_scores(three: Store) -> None:
    three.mark("reviews@1", EVALUATED)
    added = rollback(three, "reviews@1")
    old, new = three["reviews@1"].record, three["reviews"].record
    assert new == added.record
    assert (new.version, new.digest, new.metrics) == (4, old.digest, old.metrics)
    assert new.extra["rolled_back_from"] == "reviews@1"
    assert new.versions == old.versions
    assert new.machine == old.machine
    assert three.marks("reviews@4") == {EVALUATED}
    assert "rolled back to version 1" in three.notes("reviews@4")[0]
    assert (three.path_of("reviews@4") / "task.safetensors").read_bytes() == (
        three.path_of("reviews@1") / "task.safetensors"
    ).read_bytes()


def test_rollback_to_the_newest_is_refused(three: Store) -> None:
    with pytest.raises(UsageError, match="newest version of 'reviews' already"):
        rollback(three, "reviews")


def test_rollback_of_a_task_with_parts_keeps_them(three: Store) -> None:
    three.add(on_top(three["reviews@1"]))
    three.add(replace_fill(on_top(three["reviews@1"])))
    assert rollback(three, "upper@1").record.extra[NEEDS] == {"reviews@1": three["reviews@1"].record.digest}
    assert three.dependents("reviews@1") == ["upper@1", "upper@2", "upper@3"]
    assert list(three["upper"].parts) == ["reviews@1"]


def replace_fill(one: Task) -> Task:
    return Task(one.record, {"head.bias": torch.zeros(8)}, one.parts)


# clearing


def test_prune_keeps_the_newest_the_tagged_and_the_needed(store: Store) -> None:
    for fill in range(6):
        store.add(task(fill=float(fill)))
    store.add(task("other"))
    store.tag("reviews@1", "stable")
    store.add(on_top(store["reviews@2"]))
    found = {old.task: (old.removed, old.why) for old in prune(store, keep=2, dry_run=True)}
    assert found == {
        "reviews@1": (False, "tagged stable"),
        "reviews@2": (False, "part of upper@1"),
        "reviews@3": (True, ""),
        "reviews@4": (True, ""),
    }
    assert len(store.versions("reviews")) == 6
    done = prune(store, ["reviews"], keep=2)
    assert {old.task: (old.removed, old.why) for old in done} == found
    assert all(old.bytes > 500 for old in done)
    assert store.versions("reviews") == [1, 2, 5, 6]
    assert store.versions("other") == [1]
    assert [old.removed for old in prune(store, keep=2)] == [False, False]
    with pytest.raises(UsageError):
        prune(store, keep=0)
    with pytest.raises(TaskNotFound, match="Did you mean 'reviews'"):
        prune(store, ["review"])


def test_prune_removes_parts_of_old_versions_with_them(store: Store) -> None:
    for fill in (1.0, 2.0):
        part = store.add(task(fill=fill))
        store.add(on_top(part))
    assert {old.task: old.removed for old in prune(store, keep=1)} == {"reviews@1": True, "upper@1": True}
    assert (store.versions("reviews"), store.versions("upper")) == ([2], [2])
    store.tag("upper@2", "stable")
    store.add(task(fill=5.0))
    store.add(on_top(store["reviews@3"]))
    assert [old.why for old in prune(store, keep=1)] == ["part of upper@2", "tagged stable"]


# commands


def run(capsys: pytest.CaptureFixture[str], store: Store, *words: str, code: int = 0) -> tuple[str, str]:
    assert main([*words, "--store", str(store.path)]) == code
    said = capsys.readouterr()
    return said.out, said.err


def test_the_commands_do_what_they_say(three: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert "reviews@stable is reviews@2" in run(capsys, three, "tag", "reviews@2", "stable")[1]
    run(capsys, three, "note", "reviews@stable", "good enough")
    out, _ = run(capsys, three, "history", "reviews")
    line = next(line for line in out.splitlines() if "reviews@2" in line)
    assert "@stable" in line
    assert "good enough" in out
    rows = json.loads(run(capsys, three, "history", "reviews", "--format", "json")[0])
    assert [row["tags"] for row in rows] == [[], ["stable"], []]
    assert rows[1]["notes"][1].endswith("good enough")
    shown = run(capsys, three, "show", "reviews@stable")[0]
    assert "# reviews@2" in shown
    assert "- @stable" in shown
    assert "good enough" in shown
    record = json.loads(run(capsys, three, "show", "reviews@stable", "--format", "json")[0])
    assert record["tags"] == ["stable"]
    assert "has the weights and the scores of reviews@2" in run(capsys, three, "rollback", "reviews@stable")[0]
    result = json.loads(run(capsys, three, "rollback", "reviews@1", "--format", "json")[0])
    assert (result["version"], result["rolled_back_from"]) == (5, "reviews@1")
    assert "would be removed" in run(capsys, three, "prune", "--keep", "1", "--dry-run")[0]
    out, err = run(capsys, three, "prune", "--keep", "1")
    assert "kept: tagged stable" in out
    assert "3 versions removed" in err
    assert "has the tag 'stable'" in run(capsys, three, "remove", "reviews", code=1)[1]
    run(capsys, three, "tag", "reviews", "stable", "--remove")
    assert three.tags("reviews") == {}
    assert three.versions("reviews") == [2, 5]


def test_a_note_cannot_steer_the_terminal(three: Store, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, three, "note", "reviews", "red \x1b[31m letters | *bold* <b>")
    for words in (("history", "reviews"), ("show", "reviews")):
        assert "\x1b" not in run(capsys, three, *words)[0]


# killed, and at once

WORKER = [sys.executable, "-m", "tests.store.operations"]


def campaign(folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Kill processes in the middle of operations on one store; return what the script says about it."""
    done = subprocess.run(
        [*WORKER, "kill", str(folder), str(kills), str(seed)], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return dict(json.loads(done.stdout.splitlines()[-1]))


def killed(folder: Path, kills: int) -> None:
    found = campaign(folder, kills, seed=kills)
    assert found["kills"] == kills
    assert found["wrong"] == []
    assert found["completed"] > 0  # type: ignore[operator]
    assert verify(Store(folder)).ok


@pytest.mark.slow
def test_what_is_killed_leaves_exactly_what_was_completed(tmp_path: Path) -> None:
    killed(tmp_path / "store", 20)


@pytest.mark.campaign
def test_what_is_killed_a_hundred_times_leaves_exactly_what_was_completed(tmp_path: Path) -> None:
    killed(tmp_path / "store", 100)


def at_once(folder: Path, seconds: float) -> None:
    done = subprocess.run(
        [*WORKER, "together", str(folder), "8", str(seconds)], capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert min(found["operations"]) > 0
    assert verify(Store(folder)).ok


@pytest.mark.slow
def test_eight_processes_at_once_lose_nothing(tmp_path: Path) -> None:
    at_once(tmp_path / "store", 4)


@pytest.mark.campaign
def test_eight_processes_for_a_minute_lose_nothing(tmp_path: Path) -> None:
    at_once(tmp_path / "store", 60)


def slowly(change: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let something happen between the record and the tensors that are read next."""
    from adaptree.tasks import task as module

    real = module.read_file
    left = iter([True])

    def read(*args: object, **kwargs: object) -> bytes:
        if next(left, False):
            change()
        return real(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "read_file", read)


def test_a_task_that_is_replaced_while_it_is_read_is_read_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(task(fill=1.0))

    def change() -> None:
        store.remove("reviews")
        store.add(replace_record(task(fill=2.0)))

    slowly(change, monkeypatch)
    assert store["reviews@1"].tensors["head.bias"][0] == 2


def replace_record(one: Task) -> Task:
    return Task(replace(one.record, seed=7), one.tensors)


def test_the_newest_that_is_removed_while_it_is_read_gives_way_to_the_one_before(
    three: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly(lambda: three.remove("reviews@3"), monkeypatch)
    assert three["reviews"].record.version == 2
