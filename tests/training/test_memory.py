"""A run that needs more memory than there is says which options help, and loses nothing that was finished."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.bases import FILLER, tiny_base, words_csv

import adaptree as at
from adaptree.cli import main
from adaptree.errors import TrainingError, out_of_memory
from adaptree.models.base import Base
from adaptree.training import checkpoint, loop, package

OPTIONS: dict[str, Any] = {"method": "houlsby:4", "epochs": 2, "batch_size": 8, "baselines": False}
OF_TORCH = (
    "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "3221225472 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv", 60)


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, at_step: int) -> None:
    real, calls = loop.forward, []

    def forward(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == at_step:
            raise error
        return real(*args, **more)

    monkeypatch.setattr(loop, "forward", forward)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError(OF_TORCH), torch.OutOfMemoryError("CUDA out of memory.")]
)
def test_a_step_without_memory_names_the_options_and_keeps_the_steps_before(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with monkeypatch.context() as patch:
        failing(patch, error, at_step=4)
        with pytest.raises(TrainingError, match="not enough memory") as caught:
            at.train(data, base=base, store=tmp_path, **OPTIONS)
    line = str(caught.value)
    for option in ("--accumulate 2", "--most-tokens 512", "--max-length", "--batch-size 4", "--fast", "--layers top:2"):
        assert option in line
    assert "all that was trained (3 steps) is kept" in line
    assert "--resume --accumulate 2" in line
    assert "\n" not in line
    events: list[dict[str, Any]] = []
    tuned = at.train(data, base=base, store=tmp_path, resume=True, accumulate=2, on_event=events.append, **OPTIONS)
    assert next(event["step"] for event in events if event["event"] == "step") == 4
    assert len(tuned.task.record.history) == 2


def test_without_a_store_there_is_nothing_to_resume(base: Base, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, MemoryError(), at_step=4)
    with pytest.raises(TrainingError, match="not enough memory") as caught:
        at.train(data, base=base, **OPTIONS)
    assert "--resume" not in str(caught.value)


def test_the_first_step_leaves_nothing_to_resume(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, MemoryError(), at_step=1)
    with pytest.raises(TrainingError) as caught:
        at.train(data, base=base, store=tmp_path, **OPTIONS)
    assert "--resume" not in str(caught.value)


def test_scoring_without_memory_keeps_all_that_was_trained(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = at.train(data, base=base, **OPTIONS).task

    def fail(*args: Any, **more: Any) -> Any:
        raise np._core._exceptions._ArrayMemoryError((1 << 40,), np.dtype("f8"))

    with monkeypatch.context() as patch:
        patch.setattr(package, "_examples", fail)
        with pytest.raises(TrainingError, match=r"all that was trained \(2 epochs\) is kept"):
            at.train(data, base=base, store=tmp_path, **OPTIONS)
    resumed = at.train(data, base=base, store=tmp_path, resume=True, **OPTIONS).task
    assert all(torch.equal(tensor, resumed.tensors[name]) for name, tensor in whole.tensors.items())


def test_a_step_that_fails_half_way_is_not_kept(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, *args: Any, **more: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(torch.optim.AdamW, "step", fail)
    with pytest.raises(TrainingError, match="not enough memory"):
        at.train(data, base=base, store=tmp_path, **OPTIONS)
    assert checkpoint.kept(tmp_path / "runs" / "task") == ""


def test_a_prediction_without_memory_is_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        raise RuntimeError(OF_TORCH)

    monkeypatch.setattr("adaptree.models.opening.open_task", fail)
    assert main(["predict", "words", "a text", "--store", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("✘ there is not enough memory.  Close other programs, or")


def test_other_errors_of_torch_are_not_taken_for_it() -> None:
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def _in_little_memory(base: Path, data: Path, store: Path, log: Path) -> None:
    """In a process of its own: train small batches, then, with 100 MB more and no further, one that needs far more."""
    import resource

    torch.set_num_threads(1)
    loaded = at.load_base(base)
    options = {**OPTIONS, "base": loaded, "epochs": 1, "max_steps": 2}
    at.train(data, **options)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + 100_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        at.train(data, **{**options, "batch_size": 2000, "store": store})
    except TrainingError as error:
        log.write_text(str(error))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc and RLIMIT_AS")
def test_a_process_that_may_have_no_more_memory_says_what_helps(tmp_path: Path) -> None:
    data, log = tmp_path / "long.csv", tmp_path / "log"
    lines = [f"{' '.join(FILLER * 4)} {i},{'xy'[i % 2]}" for i in range(2500)]
    data.write_text("\n".join(["text,label", *lines]) + "\n")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["adaptree.api", "adaptree.training.package", "transformers.models.bert"])
    args = (tiny_base(tmp_path / "base"), data, tmp_path / "store", log)
    process = context.Process(target=_in_little_memory, args=args)
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert log.read_text().startswith("there is not enough memory for this run.  What helps: --accumulate 2 or")
