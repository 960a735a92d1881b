"""Tasks that are made of others: the store keeps them together, and says so before one is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptree.errors import StoreError, TaskCorrupt, TaskNotFound
from adaptree.tasks.record import FUSES, NEEDS, ON, Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task


def simple(name: str, value: float = 1.0, **extra: Any) -> Task:
    record = Record(name=name, kind="classify", method="pfeiffer", base={"name": "b", "fingerprint": "f"}, extra=extra)
    return Task(record, {"w": torch.full((2,), value)})


def made_of(name: str, *parts: Task) -> Task:
    """A fused task of these."""
    extra = {
        FUSES: f"fuse({', '.join(part.record.reference for part in parts)})",
        ON: f"stack({parts[0].record.reference})",
        NEEDS: {part.record.reference: part.record.digest for part in parts},
    }
    whole = simple(name, 9.0, **extra)
    return Task(whole.record, whole.tensors, {part.record.reference: part for part in parts})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_a_task_comes_with_its_parts(store: Store) -> None:
    a, b = store.add(simple("a")), store.add(simple("b", 2.0))
    store.add(made_of("fused", a, b))
    found = store["fused"]
    assert list(found.parts) == ["a@1", "b@1"]
    assert torch.equal(found.parts["b@1"].tensors["w"], torch.full((2,), 2.0))


def test_saved_outside_of_a_store_it_carries_them_along_and_brings_them_in(store: Store, tmp_path: Path) -> None:
    a, b = store.add(simple("a")), store.add(simple("b", 2.0))
    store.add(made_of("fused", a, b))
    store["fused"].save(tmp_path / "out")
    other = Store(tmp_path / "other")
    other.add(simple("a", 7.0))  # another task of that name
    kept = other.add(simple("b", 2.0))  # the very same
    loaded = Task.load(tmp_path / "out")
    assert list(loaded.parts) == ["a@1", "b@1"]
    added = other.add(loaded)
    assert added.record.extra[FUSES] == "fuse(fused-a@1, b@1)"
    assert added.record.extra[ON] == "stack(fused-a@1)"
    assert other["fused"].parts["fused-a@1"].record.digest == a.record.digest
    assert other["a"].record.digest != a.record.digest, "who asks for 'a' here gets what was 'a' here"
    assert other["fused"].parts["b@1"].record.digest == kept.record.digest == b.record.digest
    assert [s.version for s in other.history("b")] == [1], "what is there already is not added again"


def test_a_part_is_not_removed_unawares(store: Store) -> None:
    a, b = store.add(simple("a")), store.add(simple("b"))
    store.add(simple("a", 5.0))
    store.add(made_of("fused", a, b))
    for reference in ("a", "a@1"):
        with pytest.raises(StoreError, match=r"is part of fused@1.*--force"):
            store.remove(reference)
    assert store.remove("a@2") == 1
    assert store.remove("a", force=True) == 1
    with pytest.raises(TaskNotFound, match="'fused@1' is made of 'a@1', which is not in the store any more"):
        store["fused"]
    store.remove("fused")
    assert store.remove("b") == 1


def test_another_task_in_the_place_of_a_part_is_not_taken_for_it(store: Store) -> None:
    a, b = store.add(simple("a")), store.add(simple("b"))
    store.add(made_of("fused", a, b))
    store.remove("a", force=True)
    store.add(simple("a", 3.0))
    with pytest.raises(TaskNotFound, match="made of 'a@1'"):
        store["fused"]


def test_a_task_whose_parts_are_nowhere_is_refused_whole(store: Store) -> None:
    a, b = (replace(simple(n).record, version=1, digest="d") for n in "ab")
    whole = made_of("fused", Task(a, {}), Task(b, {}))
    with pytest.raises(StoreError, match="neither with it nor in the store"):
        store.add(Task(whole.record, whole.tensors))
    assert len(store) == 0


def test_a_version_that_a_later_one_of_its_name_is_made_of_stays(store: Store) -> None:
    a, b = store.add(simple("a")), store.add(simple("b", 2.0))
    store.add(made_of("a", a, b))
    with pytest.raises(StoreError, match=r"'a@1' is part of a@2"):
        store.remove("a@1")
    assert store.remove("a") == 2, "all of its name go together"


def test_a_part_that_is_put_back_is_found_whatever_number_it_gets_and_stays(store: Store, tmp_path: Path) -> None:
    a, b = store.add(simple("a")), store.add(simple("b", 2.0))
    store.add(made_of("fused", a, b))
    store.remove("a", force=True)
    assert "a" not in store
    assert store.add(simple("a", 7.0)).record.version == 2, "the number is that of the part that is missed"
    with pytest.raises(TaskNotFound, match="made of 'a@1', which is not in the store any more"):
        store["fused"]
    assert store.add(a).record.version == 3
    found = store["fused"]
    assert torch.equal(found.parts["a@1"].tensors["w"], a.tensors["w"])
    assert store.dependents("a@3") == ["fused@1"]
    assert store.dependents("a@2") == []
    with pytest.raises(StoreError, match="part of fused@1"):
        store.remove("a")
    found.save(tmp_path / "out")
    assert list(Task.load(tmp_path / "out").parts) == ["a@1", "b@1"]


def test_parts_of_the_same_tensors_stay_two(store: Store, tmp_path: Path) -> None:
    """Two versions of a task may be the very same: trained again with the same seed, for instance."""
    one, two = store.add(simple("a")), store.add(simple("a"))
    store.add(made_of("fused", one, two))
    store["fused"].save(tmp_path / "out")
    other = Store(tmp_path / "other")
    assert other.add(Task.load(tmp_path / "out")).record.extra[FUSES] == "fuse(a@1, a@2)"
    assert list(other["fused"].parts) == ["a@1", "a@2"]


def test_a_damaged_part_says_so(store: Store) -> None:
    a, b = store.add(simple("a")), store.add(simple("b", 2.0))
    store.add(made_of("fused", a, b))
    (store.path_of("a@1") / "task.json").write_text("{")
    with pytest.raises(TaskCorrupt, match="task 'a@1' is damaged"):
        store["fused"]


def test_a_damaged_version_of_a_part_is_in_nobody_s_way(store: Store, tmp_path: Path) -> None:
    a, b = store.add(simple("a")), store.add(simple("b", 2.0))
    store.add(made_of("fused", a, b))
    store["fused"].save(tmp_path / "out")
    other = Store(tmp_path / "other")
    other.add(simple("a", 7.0))
    (other.path_of("a@1") / "task.json").write_text("{")
    assert other.add(Task.load(tmp_path / "out")).record.extra[FUSES] == "fuse(fused-a@1, b@1)"
    assert other.remove("a@1") == 1
