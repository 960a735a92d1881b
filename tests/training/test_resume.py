"""A run that is killed and resumed gives the very bits of one that was not."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.bases import tiny_base, words_csv

from adaptree import api
from adaptree.errors import AdaptreeError

SETTINGS = {"epochs": 3, "batch_size": 8, "lr": 3e-3, "method": "houlsby:8", "name": "words"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("world")
    return tiny_base(root / "base"), words_csv(root / "words.csv", 120)


def _train(
    base: Path, data: Path, store: Path, resume: bool, every: float, die_at: tuple[str, int] | None = None
) -> None:
    """In a process of its own: train, and save the weights' digest; `die_at` kills it within the n-th checkpoint."""
    import torch

    from adaptree import api
    from adaptree.models.loading import load_base
    from adaptree.tasks.store import Store
    from adaptree.training import checkpoint, loop

    torch.set_num_threads(1)
    loop.CHECKPOINT_SECONDS = every
    if die_at is not None:
        _die(checkpoint, *die_at)
    bound = api.train(data, base=load_base(base), store=Store(store), resume=resume, baselines=False, **SETTINGS)  # type: ignore[arg-type]
    digest = hashlib.sha256()
    for name, tensor in sorted(bound.task.weights.items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    scores = [{k: v for k, v in h.items() if k != "seconds"} for h in bound.task.record.history]
    (store / "done.json").write_text(
        json.dumps({"digest": digest.hexdigest(), "history": scores, "seconds": bound.task.record.seconds})
    )


def _die(module: Any, where: str, count: int) -> None:
    """SIGKILL ourselves at the n-th checkpoint: half way through the write, before the rename, or after it."""
    seen = 0
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(at: int) -> None:
        nonlocal seen
        real_fsync(at)
        seen += 1
        if where == "before the rename" and seen == 2 * count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if where == "half way" and seen == 2 * count - 1:
            os.truncate(f"/proc/self/fd/{at}", os.fstat(at).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def replace(self: Path, target: Path) -> Path:
        out = real_replace(self, target)
        if where == "after the rename" and target.name == module.FILE and seen >= 2 * count - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return out

    module.os.fsync = fsync
    Path.replace = replace  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def forks() -> Any:
    context = multiprocessing.get_context("forkserver")
    preload = ["adaptree.api", "adaptree.training.package", "transformers.models.bert.modeling_bert"]
    context.set_forkserver_preload(preload)
    return context


def _run(forks: Any, *args: Any, kill_after: float | None = None) -> int:
    """The exit code of a run; `kill_after` counts from the moment that it has written a checkpoint."""
    process = forks.Process(target=_train, args=args)
    began = time.time_ns()
    process.start()
    if kill_after is not None:
        file = args[2] / "runs" / "words" / "checkpoint.safetensors"
        while process.is_alive() and not (file.exists() and file.stat().st_mtime_ns > began):
            time.sleep(0.005)
    process.join(kill_after)
    if process.is_alive():
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    return int(process.exitcode)


@pytest.fixture(scope="module")
def uninterrupted(world: tuple[Path, Path], forks: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, float]:
    store = tmp_path_factory.mktemp("whole")
    assert _run(forks, *world, store, False, 1e9) == 0
    done = json.loads((store / "done.json").read_text())
    return done, done.pop("seconds")


@pytest.mark.slow
def test_twenty_kills_at_random_moments_leave_the_bits_of_an_uninterrupted_run(
    world: tuple[Path, Path], forks: Any, uninterrupted: tuple[Any, float], tmp_path: Path
) -> None:
    expected, seconds = uninterrupted
    rng = random.Random(7)
    kills = runs = 0
    while kills < 20:
        store = tmp_path / f"run-{runs}"
        store.mkdir()
        runs += 1
        while not (store / "done.json").exists():
            resume = (store / "runs" / "words" / "checkpoint.safetensors").exists()
            after = rng.uniform(0, 0.7 * seconds) if kills < 20 else None
            code = _run(forks, *world, store, resume, 0.0, kill_after=after)
            assert code in (0, -signal.SIGKILL)
            kills += code != 0
        assert _done(store) == expected
    assert runs < 20, "no run was killed twice"


def _done(store: Path) -> Any:
    done = json.loads((store / "done.json").read_text())
    del done["seconds"]
    return done


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", ["half way", *(pytest.param(f"{at} the rename", marks=pytest.mark.slow) for at in ("before", "after"))]
)
@pytest.mark.parametrize("count", [1, pytest.param(9, marks=pytest.mark.slow)])
def test_a_kill_within_a_checkpoint_loses_nothing(
    world: tuple[Path, Path], forks: Any, uninterrupted: tuple[Any, float], tmp_path: Path, where: str, count: int
) -> None:
    assert _run(forks, *world, tmp_path, False, 0.0, (where, count)) == -signal.SIGKILL
    there = (tmp_path / "runs" / "words" / "checkpoint.safetensors").exists()
    assert there == (count > 1 or where == "after the rename")
    assert _run(forks, *world, tmp_path, there, 1e9) == 0
    assert _done(tmp_path) == uninterrupted[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "houlsby(size=8, layers='9')"},
        {"on": "nobody"},
        {"pooling": "none"},
        {"search": 0},
        {"search": 2, "method": "tfidf"},
    ],
)
def test_a_run_that_is_refused_leaves_what_a_stopped_one_has_saved(
    wrong: dict[str, Any], world: tuple[Path, Path], tmp_path: Path
) -> None:
    base, data = world
    saved = tmp_path / "runs" / "words" / "checkpoint.safetensors"
    saved.parent.mkdir(parents=True)
    saved.write_bytes(b"of a run that was stopped")
    with pytest.raises(AdaptreeError):
        api.train(data, base=base, store=tmp_path, **{**SETTINGS, **wrong})  # type: ignore[arg-type]
    assert saved.read_bytes() == b"of a run that was stopped"


def test_a_checkpoint_is_written_without_a_copy_of_it_in_memory(tmp_path: Path) -> None:
    import torch

    from adaptree.training import checkpoint

    tensors = {f"w{i}": torch.randn(250_000) for i in range(20)}  # 20 MB
    tracemalloc.start()
    checkpoint.write(tmp_path, tensors, {"epoch": 1})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    found = checkpoint.read(tmp_path)
    assert found is not None
    assert all(torch.equal(found[0][name], t) for name, t in tensors.items())
