"""What `train` warns of: a task no better than a baseline, a loss that never fell, scores of rows that chose."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.bases import FILLER, tiny_base, words_csv

import adaptree as at
from adaptree.cli import main
from adaptree.kinds.classify import Classify
from adaptree.kinds.regress import Regress
from adaptree.models.base import Base
from adaptree.reports import card
from adaptree.tasks.record import WARNINGS, Record
from adaptree.training import loop
from adaptree.training.warn import no_better

CLASSIFY, REGRESS = Classify(("a", "b")), Regress(0.0, 1.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return words_csv(tmp_path_factory.mktemp("data") / "words.csv", 120)


def noise(path: Path, rows: int = 100) -> Path:
    """Labels that have nothing to do with the texts."""
    rng = random.Random(1)
    lines = [f"{' '.join(rng.choices(FILLER, k=6))} {i},{rng.choice(['yes', 'no', 'no'])}" for i in range(rows)]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


def test_labels_that_no_text_tells_are_said_at_the_end_in_the_card_and_in_the_record(
    base: Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", noise(tmp_path / "noise.csv"), "--name", "noise", "--base", base.location, "--store", tmp_path]
    more = ["--epochs", "2", "--method", "houlsby:4"]
    assert main([str(word) for word in [*words, *more]]) == 0
    done = capsys.readouterr()
    line = next(line for line in done.err.splitlines() if line.startswith("⚠ noise@1: this task is not "))
    assert "better than the majority class (0." in line
    assert "Try adaptree check (are 'text', 'label' the right columns, --text and --label," in line
    assert "more rows than 80" in line
    assert "--lr" in line
    task = at.Store(tmp_path)["noise"]
    assert task.record.extra[WARNINGS] == [line.removeprefix("⚠ noise@1: ")]
    assert "**Warning:** this task is not" in card.write(task.record)
    assert main([str(word) for word in [*words, *more, "--format", "json", "--quiet"]]) == 0
    done = capsys.readouterr()
    assert json.loads(done.out)["warnings"] == task.record.extra[WARNINGS]
    assert done.err == ""


def record(
    score: float, span: tuple[float, float], majority: float, tfidf: float, metric: str = "accuracy", **more: Any
) -> Record:
    return Record(
        name="task", kind="classify", method="houlsby(size=8)", base={}, metrics={"validation": {metric: score}},
        intervals={"validation": {metric: list(span)}}, settings={"metric": metric, "epochs": 4, "best_epoch": 4},
        baselines={"majority": {metric: majority}, "tfidf": {metric: tfidf}}, data={"train": 5000}, **more,
    )  # fmt: skip


def test_a_score_above_both_baselines_is_no_warning() -> None:
    assert no_better(record(0.9, (0.85, 0.95), 0.6, 0.89), CLASSIFY) == []


def test_an_interval_that_holds_the_majority_is_not_clearly_better() -> None:
    (found,) = no_better(record(0.65, (0.58, 0.72), 0.6, 0.5), CLASSIFY)
    assert "not clearly better than the majority class (0.6000): accuracy 0.6500 (0.5800 - 0.7200)" in found
    assert "--epochs 8" in found
    assert "more rows" not in found


def test_tfidf_that_does_as_well_is_said() -> None:
    (found,) = no_better(record(0.9, (0.85, 0.95), 0.6, 0.9), CLASSIFY)
    assert "this task is not better than TF-IDF with a linear model (0.9000)" in found
    itself = record(0.9, (0.85, 0.95), 0.6, 0.9)
    assert no_better(Record(**{**vars(itself), "method": "tfidf(c=10)"}), CLASSIFY) == []


def test_of_two_perfect_scores_the_rows_are_said_to_be_too_easy_and_not_the_columns_wrong() -> None:
    perfect = record(1.0, (1.0, 1.0), 0.5, 1.0)
    (found,) = no_better(Record(**{**vars(perfect), "data": {"train": 48, "validation": 12}}), CLASSIFY)
    assert "not better than TF-IDF with a linear model (1.0000)" in found
    assert found.endswith(
        "These 12 rows are too easy or too few to tell them apart; score more or harder rows: --test FILE."
    )
    assert "adaptree check" not in found


def test_contrastive_training_is_not_told_to_count_epochs() -> None:
    weak = record(0.6, (0.5, 0.7), 0.55, 0.7)
    (found,) = no_better(Record(**{**vars(weak), "settings": {**weak.settings, "objective": "contrastive"}}), CLASSIFY)
    assert "--objective cross-entropy" in found
    assert "--epochs" not in found


def test_of_an_error_less_is_better() -> None:
    assert no_better(record(0.5, (0.4, 0.6), 0.8, 0.7, metric="mae"), REGRESS) == []
    (found,) = no_better(record(0.9, (0.7, 1.1), 0.8, 0.95, metric="mae"), REGRESS)
    assert "not better than the" in found
    assert "TF-IDF" not in found


def test_a_score_that_is_not_a_number_is_not_better() -> None:
    nan = float("nan")
    assert "not better than the majority class" in no_better(record(nan, (nan, nan), 0.6, 0.5), CLASSIFY)[0]


def test_without_baselines_there_is_nothing_to_compare_with() -> None:
    assert no_better(Record(**{**vars(record(0.1, (0, 1), 0.6, 0.5)), "baselines": {}}), CLASSIFY) == []


@pytest.mark.parametrize(("lr", "what"), [(1e-9, "too small"), (30.0, "too large")])
def test_a_learning_rate_with_which_the_loss_never_falls_ends_with_a_word(
    base: Base, data: Path, lr: float, what: str
) -> None:
    tuned = at.train(data, base=base, method="houlsby:4", lr=lr, epochs=2, batch_size=16, baselines=False)
    (found,) = tuned.task.record.extra[WARNINGS]
    assert "the loss never fell below its start" in found
    assert f"{lr:g} is {what}" in found
    assert f"Try --lr {at.Houlsby.lr:g}, the default of houlsby." in found


def test_a_run_that_learns_is_not_scored_at_its_start(base: Base, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(loop.Trainer, "_loss_at_start")
    tuned = at.train(data, base=base, method="houlsby:8", lr=2e-2, epochs=4, batch_size=16, baselines=False)
    assert WARNINGS not in tuned.task.record.extra


def test_the_loss_at_the_start_leaves_the_task_as_it_is(
    base: Base, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"base": base, "method": "houlsby:4", "epochs": 2, "lr": 1e-5, "baselines": False}
    looked = at.train(data, **options).task
    monkeypatch.setattr(loop.Trainer, "warnings", lambda self: [])
    alone = at.train(data, **options).task
    assert looked.record.metrics == alone.record.metrics
    assert all((looked.tensors[name] == tensor).all() for name, tensor in alone.tensors.items())


def test_scores_of_rows_that_chose_the_epoch_say_so_where_there_is_no_test_file(
    base: Base, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", data, "--name", "w", "--base", base.location, "--store", tmp_path, "--method", "houlsby:4"]
    said = "The validation rows also chose the best epoch"
    assert main([str(word) for word in [*words, "--epochs", "2"]]) == 0
    assert f"{said}: --test FILE gives a score on rows that chose nothing." in capsys.readouterr().out
    assert said in card.write(at.Store(tmp_path)["w"].record)
    assert main([str(word) for word in [*words, "--epochs", "2", "--test", data]]) == 0
    assert said not in capsys.readouterr().out
    assert main([str(word) for word in [*words, "--method", "tfidf"]]) == 0  # chooses nothing
    assert said not in capsys.readouterr().out


def test_a_threshold_that_validation_chose_is_said(base: Base) -> None:
    rows = [{"text": f"{i} {word}", "labels": [word]} for i in range(12) for word in ("lion", "saw")]
    tuned = at.train(rows, base=base, method="houlsby:4", epochs=2, baselines=False)
    assert "The validation rows also chose the best epoch and the threshold" in card.write(tuned.task.record)
