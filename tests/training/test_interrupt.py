"""Ctrl-C: what is under way ends first, and no press is lost where one run follows another."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree.cli import main
from adaptree.training import baselines, checkpoint, loop, package
from adaptree.training.work.interrupt import ctrl_c, interruptible, shielded


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_press_inside_is_known_outside_and_to_the_next() -> None:
    with ctrl_c() as outer:
        with ctrl_c() as inner:
            assert not inner()
            press()
            assert inner()
        assert outer()
        with ctrl_c() as following:
            assert following()


def test_a_second_press_stops_at_once_also_inside() -> None:
    with ctrl_c():
        press()
        with ctrl_c(), pytest.raises(KeyboardInterrupt):
            press()


def test_the_handler_from_before_is_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ctrl_c(), ctrl_c():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_press_waits_for_what_is_done_as_a_whole() -> None:
    with ctrl_c():
        with shielded():
            press()
            press()
            with pytest.raises(KeyboardInterrupt), interruptible():
                raise AssertionError("it should not have begun")
        with pytest.raises(KeyboardInterrupt):
            press()


def test_a_second_press_ends_at_once_what_may_be_thrown_away() -> None:
    with ctrl_c(), shielded():
        press()
        with pytest.raises(KeyboardInterrupt), interruptible():
            press()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> at.Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv", 60)


OPTIONS: dict[str, Any] = {"method": "houlsby:4", "epochs": 3, "batch_size": 8, "lr": 3e-3}
PLACES = {
    "in a gradient": (loop, "forward", 8),
    "in a step of the optimiser": (torch.optim.AdamW, "step", 8),
    "in the scoring of an epoch": (loop.Trainer, "evaluate", 2),
    "while an epoch is compared": (loop.Trainer, "_is_better", 1),
    "while a checkpoint is written": (checkpoint, "put", 1),
    "while the task is scored": (package, "decode", 1),
    "while the baselines are scored": (baselines, "baselines", 1),
}


@pytest.mark.parametrize("place", PLACES)
def test_two_presses_anywhere_lose_nothing_that_was_finished(
    base: at.Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    uninterrupted: list[dict[str, Any]] = []
    whole = at.train(data, base=base, on_event=uninterrupted.append, **OPTIONS).task
    owner, name, call = PLACES[place]
    real, calls, steps = getattr(owner, name), list[int](), [0]

    def presses(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) == call:
            press()
            press()
        return real(*args, **more)

    def count(event: dict[str, Any]) -> None:
        steps[0] += event["event"] == "step"

    with monkeypatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 0.0 if owner is checkpoint else 1e9)
        patch.setattr(owner, name, presses)
        with pytest.raises(KeyboardInterrupt):
            at.train(data, base=base, store=tmp_path, on_event=count, **OPTIONS)
    assert checkpoint.kept(tmp_path / "runs" / "task").startswith("all that was trained (")
    events: list[dict[str, Any]] = []
    resumed = at.train(data, base=base, store=tmp_path, resume=True, on_event=events.append, **OPTIONS).task
    taken = [sum(event["event"] == "step" for event in some) for some in (uninterrupted, events)]
    assert steps[0] + taken[1] == taken[0], "a finished step was taken again"
    assert all(torch.equal(tensor, resumed.tensors[key]) for key, tensor in whole.tensors.items())
    without = [{key: value for key, value in epoch.items() if key != "seconds"} for epoch in whole.record.history]
    assert [{key: value for key, value in e.items() if key != "seconds"} for e in resumed.record.history] == without


def _command(words: list[str], log: Path) -> None:
    """In a process of its own: run a command, with its output in a file."""
    file = os.open(log, os.O_CREAT | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    os._exit(main(words))


@pytest.mark.slow
@pytest.mark.parametrize("between", [0.0, 0.2])
def test_a_command_that_is_stopped_twice_says_what_is_kept_and_how_to_go_on(
    base: at.Base, data: Path, tmp_path: Path, between: float
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["adaptree.api", "adaptree.training.package"])
    words = ["train", str(data), "--name", "long", "--base", base.location, "--store", str(tmp_path)]
    words += ["--method", "houlsby:4", "--epochs", "2000", "--patience", "2000"]
    process = context.Process(target=_command, args=(words, tmp_path / "log"))
    process.start()
    deadline = time.monotonic() + 60
    while not ((tmp_path / "log").exists() and "epoch  2/" in (tmp_path / "log").read_text()):
        assert process.is_alive(), (tmp_path / "log").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for pause in (between, 0.0):
        os.kill(process.pid or 0, signal.SIGINT)
        time.sleep(pause)
    process.join(60)
    said = (tmp_path / "log").read_text()
    assert process.exitcode == 1, said
    assert said.count("✘") == 1, said
    assert "Traceback" not in said
    assert "--resume" in said.splitlines()[-1]
    assert "is kept" in said.splitlines()[-1]
    assert int(checkpoint.kept(tmp_path / "runs" / "long").split("(")[1].split()[0]) >= 2
