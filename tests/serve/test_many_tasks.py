"""Two thousand tasks behind one engine that has room for two hundred of them: every answer is its task's own."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from adaptree.tasks import task as task_module
from adaptree.tasks.store import Store
from tests.serve.serving import World, renamed, texts

TASKS, FIT, DIFFERENT, ASKED, AT_ONCE = 2000, 200, 61, 600, 60


@pytest.fixture
def store(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Thousands of tasks, of which the neighbours differ: a version's folder is a task under any name."""
    monkeypatch.setattr(task_module, "shown", lambda record: {})
    monkeypatch.setattr(os, "fsync", lambda file: None)
    found, like = Store(tmp_path), world.store["words"]
    for i in range(TASKS):
        if i < DIFFERENT:
            found.add(renamed(like, f"t{i}", i))
            continue
        version = found.tasks / f"t{i}" / "1"
        version.mkdir(parents=True)
        for file in (found.tasks / f"t{i % DIFFERENT}" / "1").iterdir():
            os.link(file, version / file.name)
    return found


def test_answers_of_two_thousand_tasks_with_room_for_two_hundred(world: World, store: Store) -> None:
    some = texts(5)
    alone = [world.base.bind(store[f"t{i}"]).predict(some) for i in range(DIFFERENT)]
    assert len({str(each[0].scores) for each in alone}) == DIFFERENT
    rng = random.Random(0)
    popular = [min(int(rng.paretovariate(0.5)) - 1, TASKS - 1) * 7919 % TASKS for _ in range(ASKED // 2)]  # Zipf's law
    asked = [*popular, *rng.choices(range(TASKS), k=ASKED - len(popular))]
    rng.shuffle(asked)
    world = World(world.folder, world.base, store)
    with world.engine(memory=FIT * store.record("t0").file_bytes) as engine:
        for start in range(0, ASKED, AT_ONCE):
            futures = [(i, rng.randrange(len(some))) for i in asked[start : start + AT_ONCE]]
            waiting = [engine.submit(f"t{i}", [some[text]]) for i, text in futures]
            for (i, text), future in zip(futures, waiting, strict=True):
                assert future.result(60)[0].scores == pytest.approx(alone[i % DIFFERENT][text].scores, abs=2e-5), i
            assert engine.shelf.bytes <= engine.shelf.memory
        assert len(engine.shelf) <= FIT + 20
        assert engine.stats()["evictions"] > 100
        assert engine.stats()["tasks_per_batch"] > 2
