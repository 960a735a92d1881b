"""The same training in parts, in less precision, and by several processes that Accelerate starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree.errors import UsageError
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.tasks.store import Store

TEXTS = ["the lion and a plum", "new saw near the bear today", "apple", "drill drill"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("world")
    return tiny_base(root / "tiny", layers=3), words_csv(root / "words.csv")


@pytest.fixture(scope="module")
def base(world: tuple[Path, Path]) -> Base:
    return load_base(world[0])


def trained(base: Base, data: Path, **more: Any) -> at.Task:
    how = {"method": "houlsby:8", "epochs": 2, "lr": 5e-3, "batch_size": 16, "baselines": False}
    return at.train(data, base=base, **(how | more)).task


def furthest(one: at.Task, other: at.Task) -> float:
    assert set(one.weights) == set(other.weights)
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)


@pytest.mark.parametrize("method", ["houlsby:8", "bitfit", "full", "pal:12"])
def test_a_batch_in_parts_takes_the_same_steps(base: Base, world: tuple[Path, Path], method: str) -> None:
    lr = 1e-4 if method == "full" else 5e-3
    whole = base.bind(trained(base, world[1], method=method, lr=lr)).logits(TEXTS)
    for parts in (2, 3, 99):
        found = base.bind(trained(base, world[1], method=method, lr=lr, accumulate=parts)).logits(TEXTS)
        # Not weight by weight: Adam makes whole steps of gradients that are mere rounding, a key's bias's for one.
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-3)


def test_parts_of_at_most_so_many_tokens_take_the_same_steps(base: Base, world: tuple[Path, Path]) -> None:
    whole = base.bind(trained(base, world[1], method="houlsby:8")).logits(TEXTS)
    sizes: list[int] = []
    real = base.hidden

    def hidden(rows: Any, hooked: Any = None) -> Any:
        if torch.is_grad_enabled():
            sizes.append(sum(len(row.ids) for row in rows))
        return real(rows, hooked)

    base.hidden = hidden  # type: ignore[method-assign]
    try:
        found = base.bind(trained(base, world[1], method="houlsby:8", most_tokens=40)).logits(TEXTS)
    finally:
        del base.hidden
    torch.testing.assert_close(found, whole, rtol=0, atol=1e-3)
    assert 20 < max(sizes) <= 40


def test_steps_in_bf16_come_near_and_answers_stay_in_fp32(base: Base, world: tuple[Path, Path]) -> None:
    whole, half = trained(base, world[1]), trained(base, world[1], precision="bf16")
    assert 0 < furthest(whole, half) < 0.05
    assert all(tensor.dtype == torch.float32 for tensor in half.weights.values())
    scored = at.api.evaluate(base.bind(half), world[1])["metrics"]["test"]
    assert scored["accuracy"] == pytest.approx(
        at.api.evaluate(base.bind(whole), world[1])["metrics"]["test"]["accuracy"], abs=0.1
    )


@pytest.mark.parametrize(("setting", "value"), [("precision", "bf15"), ("precision", "fp8"), ("accumulate", 0)])
def test_what_cannot_be_is_refused(base: Base, world: tuple[Path, Path], setting: str, value: Any) -> None:
    with pytest.raises(UsageError, match=setting):
        trained(base, world[1], **{setting: value})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("houlsby:8", []),
        ("houlsby(size=8, layers=top:1)", []),
        ("lora(rank=2, layers=top:1)", ["--search", 3]),
    ],
)
def test_two_processes_train_the_task_that_one_does(
    base: Base, world: tuple[Path, Path], tmp_path: Path, method: str, more: list[Any]
) -> None:
    pytest.importorskip("accelerate")
    folder, data = world
    options = ["--name", "words", "--base", folder, "--method", method, "--epochs", 2, "--lr", 5e-3, "--threads", 1]
    # With --cpu the launcher starts one process only; told of several devices it starts as many.
    launch = "accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    command: list[Any] = [sys.executable, "-m", *launch.split(), "--dynamo_backend", "no", "-m", "adaptree", "train"]
    command += [data, *options, "--batch-size", 16, "--store", tmp_path / "two", "--device", "cpu", *more]
    environment = {**os.environ, "ADAPTREE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-800:]
    assert done.stdout.count("words@1") == 1, "one process speaks"
    assert "words@2" not in done.stdout
    two = Store(tmp_path / "two")["words"]
    assert two.record.settings["processes"] == 2
    if more:
        assert len(two.record.extra["search"]) == 3
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        one = trained(base, data, method=method)
    finally:
        torch.set_num_threads(threads)
    assert furthest(one, two) < 2e-4
    assert two.record.metrics == one.record.metrics
