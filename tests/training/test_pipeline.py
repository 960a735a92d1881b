"""load → resolve → fit → package: each step by itself, and a checkpoint that keeps whatever a kind has chosen."""

from __future__ import annotations

import csv
import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree import kinds
from adaptree.errors import DataError, TrainingError, UsageError
from adaptree.kinds.classify import Classify
from adaptree.models.base import Base
from adaptree.models.loading import load_base
from adaptree.training import checkpoint, pipeline
from adaptree.training.run import Run, checkpoint_folder

FEW: dict[str, Any] = {"method": "houlsby:4", "epochs": 2, "batch_size": 8, "lr": 1e-2, "baselines": False}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv", 60)


def test_the_steps_hand_a_run_on_to_each_other(base: Base, data: Path) -> None:
    run = Run.of(data, base=base, name="words", **FEW)
    loaded = pipeline.load(run)
    (task,) = loaded.tasks
    assert (task.name, len(task.parts["train"]), len(task.parts["validation"])) == ("words", 48, 12)
    plan = pipeline.resolve(run, loaded)
    assert (plan.settings.metric, plan.settings.pooling, plan.settings.max_length) == ("accuracy", "first", 64)
    assert len(plan.encoded[0]) == 1, "both sides are rows of one file"
    fitted = pipeline.fit(run, loaded, plan)
    assert fitted.fit.finished
    assert fitted.trials == []
    (made,) = pipeline.package(run, loaded, fitted)
    whole = at.train(data, base=base, name="words", **FEW).task
    assert all(torch.equal(made.weights[name], whole.weights[name]) for name in whole.weights)
    assert made.record.metrics == whole.record.metrics


def test_loading_needs_no_base(data: Path) -> None:
    loaded = pipeline.load(Run.of(data, base="nowhere", validation=data, test=data))
    assert set(loaded.tasks[0].parts) == {"train", "validation", "test"}
    assert len(loaded.tasks[0].parts["train"]) == 60


def test_class_weights_are_for_labels_and_tfidf_for_plain_texts(data: Path) -> None:
    numbers = [{"text": f"a {i}", "label": i / 7} for i in range(30)]
    with pytest.raises(UsageError, match="--class-weights is not for kind regress"):
        pipeline.load(Run.of(numbers, class_weights=True))
    tags = [{"tokens": ["a", "lion"], "tags": ["O", "B-X"]}] * 4
    with pytest.raises(UsageError, match="tfidf is for one label or one number"):
        pipeline.load(Run.of(tags, method="tfidf"))


@dataclass(frozen=True)
class Tempered(Classify):
    """Chooses two things on validation, none of which is called a threshold."""

    picked: tuple[float, ...] = ()

    def calibrated(self, out: Any, examples: Any, targets: Any) -> Tempered:
        return replace(self, picked=(float(out.double().mean()), float(len(targets))))

    def state(self) -> dict[str, Any]:
        return {"picked": list(self.picked)}

    def with_state(self, state: Any) -> Tempered:
        return replace(self, picked=tuple(state["picked"]))

    def extra(self) -> dict[str, Any]:
        return {"picked": list(self.picked)}


def test_a_checkpoint_keeps_whatever_a_kind_chose_on_validation(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "for_data", lambda dataset, rows, encoder, **more: Tempered(dataset.labels))
    falls = {**FEW, "epochs": 4, "lr": 0.3}
    whole = at.train(data, base=base, **falls).task
    best = whole.record.settings["best_epoch"]
    assert best < 4, "the checkpoint must be of a later epoch than the best"

    def press(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["epoch"] == best + 1:
            signal.raise_signal(signal.SIGINT)

    at.train(data, base=base, store=tmp_path, on_event=press, **falls)
    resumed = at.train(data, base=base, store=tmp_path, resume=True, **falls).task
    assert resumed.record.extra["picked"] == whole.record.extra["picked"]
    assert len(resumed.record.extra["picked"]) == 2


def test_a_checkpoint_of_another_format_is_refused_in_one_line(
    base: Base, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            signal.raise_signal(signal.SIGINT)

    store = at.Store(tmp_path)
    with pytest.raises(TrainingError, match="before the first epoch"):
        at.train(data, base=base, store=store, on_event=press, **FEW)
    assert (checkpoint_folder(store, "task") / checkpoint.FILE).is_file()
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    with pytest.raises(TrainingError, match=r"of another version of adaptree\.  Train without --resume"):
        at.train(data, base=base, store=store, resume=True, **FEW)


def test_what_is_chosen_is_json(base: Base) -> None:
    assert json.loads(json.dumps(Classify(("a", "b")).state())) == {"temperature": 1.0}


def test_a_column_can_say_which_rows_are_held_out(base: Base, tmp_path: Path) -> None:
    with words_csv(tmp_path / "words.csv", 30).open() as file:
        rows = [{**row, "part": "dev" if i in (1, 5, 9, 14) else "Train"} for i, row in enumerate(csv.DictReader(file))]
    bound = at.train(iter(rows), base=base, method="head", name="it", split="part")
    assert (bound.task.record.data["train"], bound.task.record.data["validation"]) == (26, 4)
    assert bound.columns["label"] == "label"
    for bad, why in (({"part": "test"}, "neither train nor validation"), ({"part": "train"}, "says validation")):
        with pytest.raises(DataError, match=why):
            at.train([{**row, **bad} for row in rows], base=base, method="head", name="it", split="part")
    with pytest.raises(UsageError, match="--split"):
        at.train(rows, base=base, method="head", name="it", split="part", validation=rows)
