"""How long a run takes: said after its first steps, on a terminal and in a pipe, and never in a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree.cli.show import Progress, about
from adaptree.data.batch import POOL
from adaptree.training import estimate
from adaptree.training.estimate import Estimate, steps_of
from adaptree.training.settings import Settings
from adaptree.training.state import State


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock, events: list[Any], **settings: Any) -> Estimate:
    """A run of 100 rows of 10 tokens; scoring takes as long as half a training epoch's tokens."""
    resolved = Settings(**{"epochs": 4, "batch_size": 10, **settings})
    return Estimate(resolved, 1, 400, 100, 10, 1000.0, 1500.0, events.append, now=clock)


def steps(run: Estimate, clock: Clock, state: State, count: int, seconds: float = 1.0) -> None:
    for _ in range(count):
        clock.now += seconds
        state.step += 1
        state.seen += 10
        state.tokens += 100
        run.after_step(state)


def test_the_time_is_told_once_from_the_steps_after_the_first() -> None:
    clock, events, state = Clock(), list[Any](), State()
    run = make(clock, events)
    steps(run, clock, state, 1, seconds=60.0)  # the first step warms up
    steps(run, clock, state, 1)
    assert events == []
    steps(run, clock, state, 5)
    (event,) = events
    # 37 steps of a second are left, and the scoring of four epochs, a third as slow a token: 4 · 1500 / 3 / 100 = 20 s
    assert event["seconds"] == pytest.approx((1 - 3 / 40) * 60)
    assert {key: event[key] for key in ("rows", "epochs", "steps", "tokens")} == {
        "rows": 100, "epochs": 4, "steps": 40, "tokens": 4000,
    }  # fmt: skip


def test_a_run_with_a_most_of_steps_is_as_long_as_those() -> None:
    clock, events, state = Clock(), list[Any](), State()
    run = make(clock, events, max_steps=20)
    steps(run, clock, state, 3)
    assert (events[0]["steps"], events[0]["tokens"]) == (20, 2000)
    assert events[0]["seconds"] == pytest.approx((1 - 3 / 20) * 30)


def test_long_batches_at_first_do_not_make_the_whole_run_long() -> None:
    clock, events, state = Clock(), list[Any](), State()
    run = make(clock, events)
    for _ in range(3):
        clock.now += 10.0
        state.step, state.seen, state.tokens = state.step + 1, state.seen + 10, state.tokens + 1000
        run.after_step(state)
    assert events[0]["seconds"] == pytest.approx((1 - 3 / 40) * 60)  # as above: a second for a hundred tokens


def test_after_an_epoch_the_epochs_so_far_say_what_is_left() -> None:
    clock, state = Clock(), State()
    run = make(clock, [])
    assert run.left(state) is None
    steps(run, clock, state, 10, seconds=2.0)
    assert run.left(state) == pytest.approx(60.0)


def test_a_resumed_run_counts_its_own_time_only() -> None:
    clock, state = Clock(), State(epoch=3, step=30, seen=300, tokens=3000, seconds=1e6)
    run = make(clock, [])
    steps(run, clock, state, 5)
    assert run.left(state) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "5 s"), (42, "40 s"), (58, "1 min"), (170, "3 min"), (4900, "1 h 20 min")]
)
def test_an_estimate_is_no_more_exact_than_it_is(seconds: float, text: str) -> None:
    assert about(seconds) == text


def test_a_pipe_gets_the_estimate_and_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(estimate, "SECONDS", 0.0)
    data = words_csv(tmp_path / "words.csv", 60)
    events: list[dict[str, Any]] = []
    with Progress(also=[events.append]) as progress:
        tuned = at.train(
            data, base=tiny_base(tmp_path / "base"), method="houlsby:4", epochs=2, batch_size=8, baselines=False,
            on_event=progress,
        )  # fmt: skip
    (told,) = [event for event in events if event["event"] == "estimate"]
    taken = [event for event in events if event["event"] == "step"]
    assert (told["rows"], told["epochs"], told["steps"]) == (48, 2, len(taken))
    assert "about 5 s, or less with early stopping: 48 rows, 2 epochs, some " in capsys.readouterr().err
    epochs = [event for event in events if event["event"] == "epoch"]
    assert epochs[0]["left"] > 0 == epochs[1]["left"]
    assert "left" not in json.dumps(tuned.task.record.to_json()["history"])


def test_a_run_of_one_epoch_is_not_said_to_stop_early(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress({"event": "estimate", "seconds": 15.0, "rows": 720, "epochs": 1, "steps": 15, "tokens": 4350})
    assert capsys.readouterr().err == "about 15 s: 720 rows, 1 epoch, some 15 steps and 4,350 tokens\n"


def test_a_note_is_said_once_and_a_warning_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        for _ in range(2):
            progress({"event": "note", "text": "every layer runs."})
            progress({"event": "note", "text": "half is empty.", "warning": True})
    said = capsys.readouterr().err.splitlines()
    assert said == ["note: every layer runs.", "warning: half is empty.", "warning: half is empty."]


def test_the_lines_of_epochs_say_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"event": "epoch", "epochs": 3, "best": 1, "metric": "accuracy", "accuracy": 0.5, "train_loss": 1.0}
    with Progress() as progress:
        progress({**entry, "epoch": 1, "seconds": 40.0, "left": 81.0})
        progress({**entry, "epoch": 3, "seconds": 120.0, "left": 0.0})
    first, last = capsys.readouterr().err.splitlines()
    assert first.endswith("40 s  about 1 min left  ← best so far")
    assert "left" not in last


def test_steps_are_counted_by_length_and_pool() -> None:
    assert steps_of(np.array([8] * 5 + [60] * 5), 100, 32) == 4  # 50 short and 50 long ones
    assert steps_of(np.array([8]), 3 * POOL, 32) == 3 * POOL // 32
