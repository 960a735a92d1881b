"""What a server holds depends on what is in memory now, and not on how many tasks, versions and names came and went."""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import adaptree as at
from adaptree.models.bank import Group
from adaptree.serve import shelf as shelf_module
from adaptree.serve.engine import Engine
from adaptree.serve.heap import give_back
from adaptree.tasks import task as task_module
from adaptree.tasks.store import Store
from tests.serve.serving import World, renamed, texts

ROOM = 5
TASKS = 6


class Churn:
    """Tasks that are asked for, replaced and removed, in an engine that has room for a few."""

    def __init__(self, world: World, folder: Path) -> None:
        self.store = Store(folder)
        self.like = [world.store[name] for name in ("words", "number", "tags")]
        self.text, self.seed = texts(1, most=5), 0

    def add(self, i: int) -> None:
        self.seed += 1
        self.store.add(renamed(self.like[i % len(self.like)], f"t{i}", self.seed))

    def run(self, engine: Engine, rounds: int) -> None:
        """Ask for each task by its name, each of its versions, a tag and a composition; replace it, or remove it."""
        for _ in range(rounds):
            for i in range(TASKS):
                name = f"t{i}"
                self.add(i)
                newest = self.store.versions(name)[-1]
                self.store.set_tag(f"{name}@{newest}", "live")
                engine.refresh(name)
                for asked in (name, f"{name}@{newest}", f"{name}@live", f"drop({name}@{newest}, layers='0')"):
                    engine.predict(asked, self.text)
                if i % 3 == 2:
                    self.store.remove_tag(name, "live")
                    self.store.remove(name)
                    engine.refresh(name)
                    with pytest.raises(at.AdaptreeError):
                        engine.predict(name, self.text)


def held(engine: Engine) -> dict[str, int]:
    """How many things the engine keeps, and how many tensors and their bytes there are in this process."""
    until = time.monotonic() + 20
    while engine.shelf._checking or engine.shelf._loading:  # a look at a name, in the background
        assert time.monotonic() < until
        time.sleep(0.01)
    gc.collect()
    parts = {"shelf": engine.shelf, "bank": engine.shelf.bank, "batcher": engine.batcher, "engine": engine}
    kept = {
        f"{part}.{name}": len(value)
        for part, owner in parts.items()
        for name, value in vars(owner).items()
        if isinstance(value, dict | set | list) and not isinstance(value, Counter)
    }
    for key, group in engine.shelf.bank._groups.items():
        if isinstance(group, Group):
            kept |= {f"{key} slots": group.stack._used, f"{key} plans": len(group.plans)}
    tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    kept["tensors"], kept["tensors' bytes"] = len(tensors), sum(storages.values())
    kept["objects"] = len(gc.get_objects())
    return kept


def test_hundreds_of_versions_and_names_leave_nothing_behind(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "shown", lambda record: {})  # cards take longer than all the rest
    churn = Churn(world, tmp_path)
    churn.add(0)
    with Engine(world.base, churn.store, memory=ROOM * churn.store.record("t0").file_bytes) as engine:
        engine.shelf.fresh = 60.0  # no looks in the background, which would come at any moment
        churn.run(engine, 2)
        before = held(engine)
        churn.run(engine, 15)
        after = held(engine)
        assert engine.stats()["loads"] > 300
        assert engine.stats()["evictions"] > 100
    # What is in memory at the two moments is not quite the same: a few more of it are no leak, one for each load is.
    grown = {name: (before.get(name, 0), now) for name, now in after.items() if now > before.get(name, 0) + 100}
    grown.pop("objects", None)
    assert grown == {}
    assert after["shelf._meaning"] <= 4 * len(engine.shelf), "only names of what is in memory are kept"
    assert after["objects"] < before["objects"] + 3000
