"""What a server holds depends on what is in memory now, and not on how many tasks, versions and names came and went."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import adaptree as at
from adaptree.models.bank import Group
from adaptree.serve import server
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
        """Ask for each task by its name, by a version and in a composition; replace it, and remove it now and then."""
        for _ in range(rounds):
            for i in range(TASKS):
                name = f"t{i}"
                self.add(i)
                engine.refresh(name)
                first, newest = (self.store.versions(name)[at] for at in (0, -1))
                for asked in (name, f"{name}@{newest}", f"{name}@{first}", f"drop({name}@{newest}, layers='0')"):
                    engine.predict(asked, self.text)
                if i % 3 == 2:
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


@pytest.mark.slow
def test_versions_and_names_that_come_and_go_leave_nothing_behind(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "shown", lambda record: {})  # cards take longer than all the rest
    monkeypatch.setattr(os, "fsync", lambda file: None)  # and so does the disk
    churn = Churn(world, tmp_path)
    churn.add(0)
    size = churn.store.record("t0").file_bytes
    with Engine(world.base, churn.store, memory=ROOM * size) as engine:
        engine.shelf.fresh = 60.0  # no looks in the background, which would come at any moment
        churn.run(engine, 2)
        before = held(engine)
        churn.run(engine, 10)
        after = held(engine)
        assert engine.stats()["loads"] > 120
        assert engine.stats()["evictions"] > 30
    # What is in memory at the two moments is not quite the same: a little more is no leak, something for each load is.
    few = {"objects": 3000, "tensors": 150, "tensors' bytes": 2 * size}
    grown = {
        name: (before.get(name, 0), now) for name, now in after.items() if now > before.get(name, 0) + few.get(name, 20)
    }
    assert grown == {}


def test_memory_goes_back_to_the_system_after_so_many_bytes_were_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    size = world.store.record("words").file_bytes
    monkeypatch.setattr(shelf_module, "GIVE_BACK", 3 * size)
    monkeypatch.setattr(shelf_module, "give_back", lambda: given.append(1))
    with world.engine() as engine:
        for _ in range(12):
            engine.refresh("words")
            engine.predict("words", ["lion"])
        assert engine.stats()["loads"] == 12
    assert len(given) == 4


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc keeps what is freed")
def test_what_was_freed_in_the_midst_of_the_heap_is_given_back() -> None:
    pieces = [torch.ones(16_000 // 4) for _ in range(6000)]  # 96 MB, each too small for a mapping of its own
    pieces = pieces[::100]  # those that stay keep the heap from shrinking
    before = _resident()
    give_back()
    assert _resident() < before - 48e6, "half of it, at the least"
    assert all(float(each.sum()) == 4000 for each in pieces)


def _resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def test_the_collector_of_a_server_leaves_alone_what_was_there_before_the_first_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(server.Server, "run", lambda self, sockets: frozen.append(gc.get_freeze_count()))
    settings = server.ServeSettings(
        store=str(world.store.path), base=world.base.location, threads=1, log="", jobs=False, port=0
    )
    try:
        with server.bind(settings.host, 0) as listening:
            server.run(settings, settings.check(), listening, lambda: frozen.append(gc.get_freeze_count()))
    finally:
        gc.unfreeze()
    assert len(frozen) == 2
    assert min(frozen) > len(gc.get_objects()) / 2
