"""A search: trials on a part of the training rows, weak ones stopped early, one cache for all, and --fast."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree.data.split import split_again
from adaptree.errors import Diverged, TrainingError, UsageError
from adaptree.kinds.classify import Classify
from adaptree.kinds.reading import open_data
from adaptree.methods import Method, parse
from adaptree.models.base import Base
from adaptree.models.cache_files import FOLDER
from adaptree.models.loading import load_base
from adaptree.training import checkpoint, loop
from adaptree.training.result import Fit
from adaptree.training.search import Trial, _best, is_weak, search
from adaptree.training.settings import Settings
from adaptree.training.work.interrupt import ctrl_c

pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny", layers=3))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv", 120)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADAPTREE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / FOLDER


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What every call of `fit` is given."""
    seen: list[dict[str, Any]] = []
    real = loop.fit

    def spy(base: Any, method: Any, kind: Any, training: Any, validation: Any, settings: Any, **more: Any) -> Any:
        rows = (set(training[1].tolist()), set(validation[1].tolist()))
        seen.append({"method": str(method), "settings": settings, "train": rows[0], "validation": rows[1]})
        return real(base, method, kind, training, validation, settings, **more)

    monkeypatch.setattr(loop, "fit", spy)
    return seen


def searched(base: Base, data: Path, trials: int = 9, **more: Any) -> at.base.Bound:
    how = {"method": "houlsby(size=8, layers=top:1)", "epochs": 6, "lr": 5e-3, "baselines": False, **more}
    return at.train(data, base=base, search=trials, **how)


def test_the_given_setting_is_tried_first_and_the_best_is_trained(
    base: Base, data: Path, runs: list[dict[str, Any]]
) -> None:
    record = searched(base, data).task.record
    trials = record.extra["search"]
    assert len(trials) == 9
    assert (trials[0]["lr"], trials[0]["epochs"], trials[0]["method"]) == (5e-3, 6, "houlsby(size=8, layers=top:1)")
    best = max((t for t in trials if not t["stopped"]), key=lambda t: t["score"])
    assert (record.method, record.settings["lr"], record.settings["epochs"]) == (
        best["method"], best["lr"], best["epochs"],
    )  # fmt: skip
    assert len(runs) == 10
    assert len({t["lr"] for t in trials}) == 9
    assert all(1e-3 <= t["lr"] <= 2.5e-2 for t in trials)


def test_no_trial_sees_the_rows_that_score_the_task(base: Base, data: Path, runs: list[dict[str, Any]]) -> None:
    searched(base, data, 3)
    *trials, final = runs
    assert final["train"] | final["validation"] == set(range(120))
    for trial in trials:
        assert trial["train"] | trial["validation"] == final["train"]
        assert not trial["train"] & trial["validation"]
        assert len(trial["validation"]) == pytest.approx(len(final["train"]) / 5, abs=3)


def test_weak_trials_are_stopped_early(base: Base, data: Path) -> None:
    trials = searched(base, data, 12).task.record.extra["search"]
    stopped = [t for t in trials if t["stopped"]]
    assert len(stopped) >= 4
    assert all(len(t["course"]) < t["epochs"] for t in stopped)
    assert not trials[0]["stopped"]


def weak(courses: list[list[float]]) -> list[bool]:
    """Return for each trial whether its last score is weak beside the trials before it."""
    trials = [Trial(i, "houlsby", 1e-3, 9, course[-1], course, False, 1.0) for i, course in enumerate(courses)]
    return [is_weak(course[-1], len(course), trials[:i], 1.0) for i, course in enumerate(courses)]


def test_a_trial_goes_on_while_it_is_in_the_best_third_and_an_equal_one_is_no_better() -> None:
    scores = (0.5, 0.5, 0.6, 0.4, 0.6, 0.55, 0.7)
    assert weak([[score] for score in scores]) == [False, True, False, True, True, True, False]
    assert weak([[0.5, 0.5], [0.6, 0.0]]) == [False, False], "between the rungs nothing is stopped"
    assert weak([[0.9], [0.5, 0.5, 0.1]]) == [False, False], "the first to come so far goes on"
    assert weak([[0.5, 0.5, 0.1], [0.6, 0.6, 0.1]]) == [False, True]


def test_six_or_more_trials_let_two_go_on() -> None:
    assert weak([[score] for score in (0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5)])[-2:] == [False, True]


def test_the_same_seed_tries_the_same_settings(base: Base, data: Path) -> None:
    one, other = (searched(base, data, 4) for _ in range(2))
    keys = ("method", "lr", "epochs", "score", "course", "stopped")
    first, second = ([{k: t[k] for k in keys} for t in bound.task.record.extra["search"]] for bound in (one, other))
    assert first == second
    assert all(torch.equal(one.task.weights[name], other.task.weights[name]) for name in one.task.weights)


def test_a_search_and_what_follows_share_one_cache(base: Base, data: Path, cache: Path) -> None:
    searched(base, data, 4)
    assert len(list(cache.glob("*.states"))) == 1


def test_a_search_that_was_stopped_goes_on_where_it_was(
    base: Base, data: Path, tmp_path: Path, runs: list[dict[str, Any]]
) -> None:
    whole = searched(base, data, 5)
    runs.clear()

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "trial" and event["number"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(base, data, 5, name="a", store=tmp_path / "store", on_event=stop)
    assert len(runs) == 4
    runs.clear()
    resumed = searched(base, data, 5, name="a", store=tmp_path / "store", resume=True)
    assert len(runs) == 3, "the fourth trial was not kept yet: it, the fifth and the task itself"
    assert all(torch.equal(whole.task.weights[name], resumed.task.weights[name]) for name in whole.task.weights)
    assert not (tmp_path / "store" / "runs" / "a").exists()


def test_parts_of_the_training_rows_share_no_text(tmp_path: Path) -> None:
    path = tmp_path / "twice.csv"
    path.write_text("text,label\n" + "".join(f"word {i % 20},{'ab'[i % 2]}\n" for i in range(60)))
    table = open_data(path)
    import numpy as np

    first, held = split_again(table, np.arange(60))
    assert len(first) + len(held) == 60
    assert not {table.texts([i])[0] for i in first.tolist()} & {table.texts([i])[0] for i in held.tolist()}


@pytest.mark.parametrize(
    ("more", "what"), [({"method": "tfidf"}, "no learning rate"), ({"trials": 0}, "at least one trial")]
)
def test_what_cannot_be_searched_is_refused(base: Base, data: Path, more: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        searched(base, data, **more)


def test_without_optuna_it_says_what_to_install(base: Base, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"pip install 'adaptree\[search\]'"):
        searched(base, data)


def test_staged_methods_can_be_searched(base: Base, data: Path) -> None:
    record = searched(base, data, 3, method="lt_sft(density=0.02, layers=top:1)", epochs=2).task.record
    assert {t["epochs"] for t in record.extra["search"]} <= {1, 2}


def test_fast_trains_the_top_layers_and_says_so(base: Base, data: Path, cache: Path) -> None:
    notes: list[str] = []
    record = at.train(
        data, base=base, method="houlsby:8", fast=True, epochs=1, baselines=False,
        on_event=lambda event: notes.append(event.get("text", "")),
    ).task.record  # fmt: skip
    assert record.method == "houlsby(size=8, layers=top:2)"
    assert any("the top 2 of 3 layers are trained" in note for note in notes)
    assert len(list(cache.glob("*.states"))) == 1


def test_fast_and_layers_exclude_each_other_and_head_needs_neither(base: Base, data: Path) -> None:
    with pytest.raises(UsageError, match="--fast chooses the layers"):
        at.train(data, base=base, method="houlsby(layers=top:2)", fast=True, epochs=1)
    notes: list[str] = []
    at.train(
        data, base=base, method="head", fast=True, epochs=1, baselines=False,
        on_event=lambda event: notes.append(event.get("text", "")),
    )  # fmt: skip
    assert not any("layers are trained" in note for note in notes)


def test_a_date_is_a_seed_too(base: Base, data: Path) -> None:
    assert len(searched(base, data, 2, seed=20261116, epochs=1).task.record.extra["search"]) == 2


def test_a_search_of_other_data_is_not_gone_on_with(
    base: Base, data: Path, tmp_path: Path, runs: list[dict[str, Any]]
) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "trial" and event["number"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(base, data, 4, name="a", store=tmp_path / "store", on_event=stop)
    runs.clear()
    other = words_csv(tmp_path / "other.csv", 130, seed=9)
    searched(base, other, 4, name="a", store=tmp_path / "store", resume=True)
    assert len(runs) == 5, "all four trials and the task itself"


def test_trials_whose_loss_is_no_number_do_not_end_the_search(
    base: Base, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.fit

    def burst(*args: Any, **more: Any) -> Any:
        if args[5].lr > 5e-3:
            raise Diverged("the loss is not a number any more.")
        return real(*args, **more)

    monkeypatch.setattr(loop, "fit", burst)
    trials = searched(base, data, 8, epochs=2).task.record.extra["search"]
    assert any(t["score"] is None and t["stopped"] for t in trials)
    with pytest.raises(TrainingError, match=r"each of the 3 trials.*--lr 0\.1"):
        searched(base, data, 3, epochs=2, lr=1.0)


def test_ctrl_c_in_a_trial_ends_the_search_and_keeps_the_trials(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = loop.fit, []

    def pressed(*args: Any, **more: Any) -> Any:
        calls.append(args)
        fit = real(*args, **more)
        fit.finished = len(calls) < 3  # what a run says after Ctrl-C
        return fit

    monkeypatch.setattr(loop, "fit", pressed)
    with pytest.raises(KeyboardInterrupt):
        searched(base, data, 5, name="a", store=tmp_path / "store", epochs=1)
    assert len(calls) == 3
    assert len((tmp_path / "store" / "runs" / "a" / "search.jsonl").read_text().splitlines()) == 3


def test_a_run_that_begins_anew_forgets_what_an_older_one_left(base: Base, data: Path, tmp_path: Path) -> None:
    left = tmp_path / "store" / "runs" / "a"
    left.mkdir(parents=True)
    for name in ("checkpoint.safetensors", "search.jsonl"):
        (left / name).write_text("{}")

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "trial" and event["number"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        searched(base, data, 3, name="a", store=tmp_path / "store", on_event=stop, epochs=1)
    record = searched(base, data, 3, name="a", store=tmp_path / "store", resume=True, epochs=1).task.record
    assert len(record.extra["search"]) == 3


def test_a_size_that_follows_the_width_is_searched_too(base: Base, data: Path) -> None:
    trials = searched(base, data, 6, method="pfeiffer(layers=top:1)", epochs=1).task.record.extra["search"]
    assert trials[0]["method"] == "pfeiffer(size=2, layers=top:1)"
    assert len({t["method"] for t in trials}) > 1


class Runs:
    """Runs with the scores given, epoch by epoch; where these end the loss ceases to be a number."""

    def __init__(self, *courses: list[float], press: int | None = None) -> None:
        self.courses, self.press, self.count = courses, press, 0

    def __call__(self, method: Method, settings: Settings, watch: Callable[[dict[str, Any]], None]) -> Fit:
        course = self.courses[self.count][: settings.epochs]
        with ctrl_c():
            if self.count == self.press:
                os.kill(os.getpid(), signal.SIGINT)
            self.count += 1
            for value in course:
                watch({"event": "epoch", "accuracy": value})
        if len(course) < int(settings.epochs or 0):
            raise Diverged("the loss is not a number any more.")
        best = max(range(len(course)), key=lambda i: (not math.isnan(course[i]), course[i]))
        return Fit({}, Classify(("a", "b")), [{"accuracy": value} for value in course], best + 1, 0.0, True)


def tried(runs: Runs, trials: int, **more: Any) -> list[Trial]:
    return search(trials, parse("houlsby:8"), Settings(epochs=4, lr=1e-3, metric="accuracy"), 32, runs, **more)[2]


def stop_after(number: int) -> Callable[[dict[str, Any]], None]:
    def stop(event: dict[str, Any]) -> None:
        if event["number"] == number:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("press", [0, 1])  # in its last epochs, and in one that is stopped for weakness
def test_ctrl_c_as_a_trial_ends_ends_the_search_and_keeps_the_trial(tmp_path: Path, press: int) -> None:
    runs = Runs([0.9] * 4, [0.1] * 4, [0.2] * 4, press=press)
    with pytest.raises(KeyboardInterrupt):
        tried(runs, 3, folder=tmp_path)
    assert runs.count == press + 1
    assert len((tmp_path / "search.jsonl").read_text().splitlines()) == press + 2


def test_ctrl_c_in_the_evaluation_of_the_last_epoch_is_not_lost(
    base: Base, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, trials = loop.Trainer.evaluate, []

    def evaluate(self: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return real(self)

    monkeypatch.setattr(loop.Trainer, "evaluate", evaluate)
    with pytest.raises(KeyboardInterrupt):
        searched(base, data, 3, epochs=1, on_event=lambda e: trials.append(e) if e["event"] == "trial" else None)
    assert len(trials) == 1


def test_a_trial_that_diverges_stops_no_other() -> None:
    trials = tried(Runs([0.9], [0.5] * 4, [0.6] * 4), 3)
    assert [t.stopped for t in trials] == [True, False, False]
    assert [t.score for t in trials] == [None, 0.5, 0.6]


def test_a_kept_trial_that_diverged_stops_no_other(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        tried(Runs([0.9], [0.3] * 4), 3, folder=tmp_path, on_event=stop_after(1))
    runs = Runs([0.5] * 4, [0.6] * 4)
    trials = tried(runs, 3, folder=tmp_path, resume=True)
    assert runs.count == 2
    assert [t.score for t in trials] == [None, 0.5, 0.6]


def test_where_all_were_stopped_the_best_of_those_is_chosen() -> None:
    stopped = [Trial(i, "houlsby:8", 1e-3, 4, score, [], True, 0.0) for i, score in enumerate((None, 0.5, 0.6, 0.6))]
    assert _best(stopped, 1.0, Settings(lr=1e-3)).number == 2
    assert _best(stopped, -1.0, Settings(lr=1e-3)).number == 1
    whole = Trial(4, "houlsby:8", 1e-3, 4, 0.1, [], False, 0.0)
    assert _best([*stopped, whole], 1.0, Settings(lr=1e-3)) is whole


def test_a_score_that_is_no_number_is_like_a_loss_that_is_none() -> None:
    nan = float("nan")
    trials = tried(Runs([nan] * 4, [nan, 0.4, 0.5, 0.5], [0.3] * 4, [nan] * 4), 4)
    assert [t.score for t in trials] == [None, max(trials[1].course[1:]), 0.3, None]
    assert [t.stopped for t in trials] == [True, False, False, True]
    with pytest.raises(TrainingError, match="each of the 2 trials is not a number"):
        tried(Runs([nan] * 4, [nan] * 4), 2)


@pytest.mark.parametrize("keep", [0, 5, 100, -1, -30])
def test_the_trials_of_a_torn_file_are_run_again(tmp_path: Path, keep: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        tried(Runs([0.5] * 4, [0.6] * 4, [0.7] * 4), 3, folder=tmp_path, on_event=stop_after(2))
    file = tmp_path / "search.jsonl"
    file.write_bytes(file.read_bytes()[:keep] + b"\xff\n")
    runs = Runs([0.5] * 4, [0.6] * 4, [0.7] * 4)
    assert len(tried(runs, 3, folder=tmp_path, resume=True)) == 3
    assert runs.count == 3


def test_trials_are_flushed_to_the_disk_before_they_take_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = os.fsync, []

    def fsync(at: int) -> None:
        seen.append(sorted(path.name for path in tmp_path.iterdir()))
        real(at)

    monkeypatch.setattr(os, "fsync", fsync)
    tried(Runs([0.5] * 4), 1, folder=tmp_path)
    assert seen == [[f"search.jsonl.partial-{os.getpid()}"], ["search.jsonl"]]


def test_what_a_killed_search_was_writing_is_cleared_away(tmp_path: Path) -> None:
    left = tmp_path / "search.jsonl.partial-1"
    left.touch()
    checkpoint.prepare(tmp_path)
    assert left.exists(), "it may be of a run that goes on"
    os.utime(left, (0, 0))
    checkpoint.prepare(tmp_path)
    assert not left.exists()
    (tmp_path / f"search.jsonl.partial-{os.getpid()}").touch()
    checkpoint.remove(tmp_path)
    assert not tmp_path.exists()
