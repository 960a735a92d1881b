"""Several labels, several numbers: what is learned, chosen on validation, scored and told."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from tests.bases import FILLER, WORDS, tiny_base

import adaptree as at
from adaptree import kinds
from adaptree.cli import main
from adaptree.errors import UsageError
from adaptree.kinds.multilabel import Multilabel
from adaptree.kinds.multioutput import Multioutput
from adaptree.tasks.task import Record
from adaptree.training.multitask import MultiTaskKind

NAMES = sorted(WORDS)


def sentence(rng: random.Random, labels: list[str]) -> str:
    words = rng.choices(FILLER, k=3) + [word for label in labels for word in rng.choices(WORDS[label].split(), k=3)]
    rng.shuffle(words)
    return " ".join(words)


def topics(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    drawn = [rng.sample(NAMES, rng.randint(0, 2)) for _ in range(count)]
    return [{"text": sentence(rng, labels), "labels": labels} for labels in drawn]


def counts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        a, b = rng.randint(0, 3), rng.randint(0, 3)
        words = rng.choices(WORDS["fruit"].split(), k=a) + rng.choices(WORDS["tool"].split(), k=b) + ["the"]
        rows.append({"text": " ".join(words), "fruit": float(a), "tools": 10.0 * b})
    return rows


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("labels") / "base"))


def test_several_labels_are_learned_and_the_threshold_is_chosen_on_validation(base: Any, tmp_path: Path) -> None:
    bound = at.train(
        topics(240), base=base, method="houlsby:16", epochs=12, lr=1e-2, store=tmp_path / "store", name="topics"
    )
    record = bound.task.record
    assert record.kind == "multilabel"
    assert record.labels == NAMES
    assert record.metrics["validation"]["f1"] > 0.85
    assert set(record.intervals["validation"]) == set(record.metrics["validation"])
    assert 0 < record.extra["threshold"] < 1
    answer = bound.predict(["the lion and the old wolf", "the old new", "saw hammer drill bear lion wolf"])
    assert [a.to_dict()["labels"] for a in answer] == [["beast"], [], ["beast", "tool"]]
    again = base.bind(at.Store(tmp_path / "store")["topics"])
    assert [a.to_dict() for a in again.predict(["the lion"])] == [a.to_dict() for a in bound.predict(["the lion"])]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in topics(60, seed=3)))
    assert at.evaluate(again, path)["metrics"]["test"]["f1"] > 0.75


def test_the_threshold_is_the_best_of_all() -> None:
    kind = Multilabel(("a", "b"))
    out = torch.randn(80, 2, generator=torch.Generator().manual_seed(0))
    targets = [[label for label, logit in zip("ab", row, strict=True) if logit > 0.8] for row in out.tolist()]
    settled = kind.calibrated(out, [], targets)
    assert settled.score(targets, settled.decode(out, []))["f1"] > 0.97
    assert kind.score(targets, kind.decode(out, []))["f1"] < 0.8


def test_scores_equal_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    kind = Multilabel(("a", "b", "c", "never"))
    gold, said = rng.random((50, 4)) < 0.4, rng.random((50, 4)) < 0.4
    gold[:, 3] = said[:, 3] = False
    targets = [[label for label, yes in zip(kind.labels, row, strict=True) if yes] for row in gold.tolist()]
    found = kind.score(targets, said)
    assert found["f1"] == pytest.approx(reference.f1_score(gold, said, average="micro"))
    assert found["macro_f1"] == pytest.approx(reference.f1_score(gold[:, :3], said[:, :3], average="macro"))
    assert found["precision"] == pytest.approx(reference.precision_score(gold, said, average="micro"))
    assert found["recall"] == pytest.approx(reference.recall_score(gold, said, average="micro"))
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(gold, said))
    low, high = kind.intervals(targets, said)["f1"]
    assert low < found["f1"] < high


def test_a_label_that_the_task_does_not_know_counts_as_missed() -> None:
    kind = Multilabel(("a", "b"))
    said = np.array([[True, False], [True, False]])
    assert kind.score([["a"], ["a"]], said)["recall"] == 1
    found = kind.score([["a"], ["a", "zebra"]], said)
    assert found["recall"] == pytest.approx(2 / 3)
    assert found["accuracy"] == 0.5


def test_the_loss_is_that_of_each_label_by_itself() -> None:
    kind = Multilabel(("a", "b"))
    out = torch.tensor([[2.0, -1.0], [0.5, 0.5]])
    expected = [
        -(torch.sigmoid(torch.tensor(2.0)).log() + (1 - torch.sigmoid(torch.tensor(-1.0))).log()) / 2,
        -((1 - torch.sigmoid(torch.tensor(0.5))).log() + torch.sigmoid(torch.tensor(0.5)).log()) / 2,
    ]
    torch.testing.assert_close(kind.loss(out, [], [["a"], ["b"]]), torch.stack(expected))


def test_min_score_takes_the_place_of_the_threshold() -> None:
    kind = Multilabel(("a", "b"), threshold=0.2)
    out = torch.tensor([[2.0, -1.0]])
    assert [p.labels for p in kind.predictions(out, [], ["x"], None)] == [["a", "b"]]
    assert [p.labels for p in kind.predictions(out, [], ["x"], 0.5)] == [["a"]]


def test_several_numbers_are_learned_each_on_its_own_scale(base: Any, tmp_path: Path) -> None:
    bound = at.train(
        counts(300), base=base, label="fruit,tools", method="houlsby:16", epochs=15, lr=1e-2, name="counts",
        store=tmp_path / "store",
    )  # fmt: skip
    record = bound.task.record
    assert record.kind == "multioutput"
    assert record.metrics["validation"]["pearson"] > 0.8
    assert {"pearson_fruit", "pearson_tools"} <= set(record.metrics["validation"])
    values = bound.predict(["apple pear plum the"])[0].to_dict()["values"]
    assert set(values) == {"fruit", "tools"}
    assert abs(values["fruit"] - 3) < 1
    assert abs(values["tools"]) < 10
    again = base.bind(at.Store(tmp_path / "store")["counts"])
    assert torch.equal(again.logits(["apple"]), bound.logits(["apple"]))
    with pytest.raises(UsageError, match="no score to abstain"):
        again.predict(["apple"], min_score=0.5)


def test_numbers_of_one_target_are_scored_as_regress_scores_them() -> None:
    kind = Multioutput(("x", "y"), (0.0, 5.0), (1.0, 2.0))
    out = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, -1.0]])
    answers = kind.decode(out, [])
    np.testing.assert_allclose(answers, [[0, 7], [1, 5], [2, 3]])
    assert kind.score([[0, 7], [1, 5], [2, 3]], answers)["mse"] == 0
    torch.testing.assert_close(kind.loss(out, [], [[0, 7], [1, 5], [4, 3]]), torch.tensor([0.0, 0.0, 2.0]))


def test_several_labels_from_the_command_line(base: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "topics.csv"
    rows = [f"{row['text']},{'|'.join(row['labels']) or 'none'}" for row in topics(120)]
    path.write_text("\n".join(["text,labels", *rows]))
    store = ["--store", str(tmp_path / "store")]
    assert main(["check", str(path), "--base", base.location]) == 0
    assert "separated by '|'" in capsys.readouterr().out
    assert main(["train", str(path), "--name", "topics", "--epochs", "2", "--base", base.location, *store]) == 0
    capsys.readouterr()
    assert main(["predict", "topics", "--file", str(path), "--format", "jsonl", *store]) == 0
    beside = {"text", "labels", "predicted_labels", "scores"}  # the file has labels of its own
    assert set(json.loads(capsys.readouterr().out.splitlines()[0])) == beside
    assert main(["predict", "topics", "the lion", *store]) == 0
    assert main(["show", "topics", *store]) == 0


@pytest.mark.parametrize(
    ("kind", "extra", "now"),
    [
        ("classify", {"several": True, "threshold": 0.3}, "multilabel"),
        ("regress", {"targets": ["a"], "means": [0.0], "stds": [1.0]}, "multioutput"),
        ("classify", {}, "classify"),
        ("regress", {"mean": 0.0, "std": 1.0}, "regress"),
    ],
)
def test_a_record_written_when_these_were_no_kinds_is_read_as_one_of_them(
    kind: str, extra: dict[str, Any], now: str
) -> None:
    written = Record(name="t", kind=kind, labels=["x", "y"], method="houlsby:4", base={}, extra=extra)
    read = Record.from_json(json.loads(json.dumps(written.to_json())))
    assert read.kind == now
    assert "several" not in read.extra
    assert kinds.get(read.kind).from_record(read, cast(Any, None)).name == now


def test_what_was_chosen_on_validation_comes_back_from_its_state() -> None:
    kind = Multilabel(("x", "y"), threshold=0.3)
    fresh = Multilabel(("x", "y"))
    assert fresh.with_state(json.loads(json.dumps(kind.state()))) == kind
    joint = MultiTaskKind((kind, Multioutput(("a",), (0.0,), (1.0,))), ("one", "two"), ("f1", "pearson"))
    anew = MultiTaskKind((fresh, joint.kinds[1]), joint.names, joint.judged)
    assert anew.with_state(json.loads(json.dumps(joint.state()))) == joint
