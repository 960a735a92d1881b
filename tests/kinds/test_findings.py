"""What a card tells of a task's answers: the numbers against scikit-learn's and by hand, and in bounded size."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as reference
from tests.bases import tiny_base

import adaptree as at
from adaptree.kinds import Kind
from adaptree.kinds.answer import Answer
from adaptree.kinds.choose import Choose
from adaptree.kinds.classify import Classify
from adaptree.kinds.findings import calibration, examine
from adaptree.kinds.mlm import Hidden, Mlm
from adaptree.kinds.multilabel import Multilabel
from adaptree.kinds.multioutput import Multioutput
from adaptree.kinds.regress import Regress
from adaptree.kinds.tag import Tag
from adaptree.models import evaluate
from adaptree.training import package


def drawn(n: int, labels: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], torch.Tensor]:
    """Targets, and logits that are right more often than not."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, labels, n)
    logits = rng.normal(size=(n, labels)) + 1.5 * np.eye(labels)[gold]
    return gold, torch.tensor(logits, dtype=torch.float32)


def texts(n: int) -> list[str]:
    return [f"text {i}" for i in range(n)]


def test_labels_are_counted_as_scikit_learn_counts_them() -> None:
    gold, out = drawn(300, 4)
    found = examine(Classify(("a", "b", "c", "d")), texts(300), gold, out, [])
    said = out.argmax(-1).numpy()
    assert found["confusion"]["labels"] == ["a", "b", "c", "d"]
    assert found["confusion"]["counts"] == reference.confusion_matrix(gold, said).tolist()
    expected = np.array(reference.precision_recall_fscore_support(gold, said, zero_division=0)).T
    rows = [[row[name] for name in ("precision", "recall", "f1", "gold")] for row in found["by_label"]]
    assert np.allclose(rows, expected, atol=1e-5)
    assert [row["predicted"] for row in found["by_label"]] == np.bincount(said).tolist()
    assert found["wrong"] == int((gold != said).sum())


def test_the_mistakes_that_are_shown_are_those_it_was_surest_of() -> None:
    gold, out = drawn(300, 3)
    found = examine(Classify(("a", "b", "c")), texts(300), gold, out, [])
    shares, said = out.double().softmax(-1).numpy().max(1), out.argmax(-1).numpy()
    wrong = sorted(np.flatnonzero(gold != said), key=lambda i: -shares[i])[:10]
    assert [row["text"] for row in found["mistakes"]] == [f"text {i}" for i in wrong]
    assert [row["probability"] for row in found["mistakes"]] == pytest.approx(shares[wrong], abs=1e-5)
    assert all(row["gold"] != row["predicted"] for row in found["mistakes"])
    assert {row["predicted"] for row in found["right"]} == {"a", "b", "c"}
    assert all(row["gold"] == row["predicted"] for row in found["right"])


def test_the_windows_of_a_text_vote_before_it_is_looked_at() -> None:
    out = torch.tensor([[4.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    found = examine(Classify(("a", "b"), windows=True), ["long", "short"], np.array([0, 0]), out, [[None] * 2, [None]])  # type: ignore[list-item]
    assert found["confusion"]["counts"] == [[1, 1], [0, 0]]
    share = float((out[:2].softmax(-1).mean(0))[0])
    assert found["right"][0]["probability"] == pytest.approx(share, abs=1e-5)


def test_calibration_by_hand() -> None:
    sure = np.array([0.05, 0.55, 0.59, 0.95, 1.0, 0.9])
    right = np.array([False, True, False, True, True, True])
    found = calibration(sure, right)
    assert [each["count"] for each in found["bins"]] == [1, 0, 0, 0, 0, 2, 0, 0, 0, 3]
    assert found["bins"][5]["confidence"] == pytest.approx(0.57)
    assert found["bins"][5]["accuracy"] == 0.5
    assert found["bins"][1] == {"count": 0, "confidence": None, "accuracy": None}
    assert found["error"] == pytest.approx(1 / 6 * 0.05 + 2 / 6 * 0.07 + 3 / 6 * (1 - 2.85 / 3))


def test_of_many_labels_those_with_the_most_rows_are_shown() -> None:
    gold, out = drawn(2000, 80)
    kind = Classify(tuple(f"label {i}" for i in range(80)))
    found = examine(kind, texts(2000), gold, out, [])
    assert found["labels"] == 80
    shown = found["confusion"]["labels"]
    assert len(shown) == len(found["by_label"]) == 50
    counts = np.bincount(gold, minlength=80)
    assert min(counts[int(name.split()[1])] for name in shown) >= np.sort(counts)[-50]


def test_several_labels_are_counted_each_by_itself() -> None:
    rng = np.random.default_rng(0)
    truth, out = rng.random((200, 3)) < 0.4, torch.tensor(rng.normal(size=(200, 3)), dtype=torch.float32)
    names = ("a", "b", "c")
    targets = [[name for name, yes in zip(names, row, strict=True) if yes] for row in truth]
    found = examine(Multilabel(names, 0.5), texts(200), targets, out, [])
    said = (out > 0).numpy()
    expected = np.array(reference.precision_recall_fscore_support(truth, said, average=None)).T
    rows = [[row[name] for name in ("precision", "recall", "f1", "gold")] for row in found["by_label"]]
    assert np.allclose(rows, expected, atol=1e-5)
    losses = [reference.log_loss(t, torch.tensor(o).sigmoid().numpy(), labels=[False, True])
              for t, o in zip(truth, out.tolist(), strict=True)]  # fmt: skip
    wrong = [i for i in np.argsort(losses)[::-1] if (truth[i] != said[i]).any()][:10]
    assert [row["text"] for row in found["mistakes"]] == [f"text {i}" for i in wrong]


def test_a_label_that_the_task_does_not_know_is_a_mistake_and_named() -> None:
    found = examine(Multilabel(("a", "b")), ["one"], [["a", "new"]], torch.tensor([[5.0, -5.0]]), [])
    assert found["mistakes"][0]["gold"] == "a, new"
    assert found["mistakes"][0]["predicted"] == "a"
    assert found["wrong"] == 1


def test_numbers_are_off_by_a_mean_and_a_spread() -> None:
    targets = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    found = examine(Regress(0.0, 1.0), texts(4), targets, torch.tensor([[1.0], [3.0], [0.0], [4.0]]), [])
    (target,) = found["targets"]
    assert target["mean"] == pytest.approx(-0.5)
    assert target["spread"] == pytest.approx(np.std([0, 1, -3, 0]), abs=1e-5)
    assert (target["gold"], target["predicted"]) == ([1, 2, 3, 4], [1, 3, 0, 4])
    assert [(row["text"], row["predicted"]) for row in found["mistakes"]] == [("text 2", 0.0), ("text 1", 3.0)]


def test_a_sample_of_many_points_is_spread_over_all_of_them() -> None:
    targets = np.arange(10_000, dtype=np.float32)
    found = examine(Regress(0.0, 1.0), texts(10_000), targets, torch.zeros(10_000, 1), [])
    points = found["targets"][0]["gold"]
    assert len(points) == 500
    assert (points[0], points[-1]) == (0, 9999)
    assert max(np.diff(points)) < 25


def test_an_answer_that_is_no_number_is_the_largest_miss() -> None:
    out = torch.tensor([[1.0], [math.nan], [9.0]])
    found = examine(Regress(0.0, 1.0), texts(3), np.array([1.0, 1.0, 1.0]), out, [])
    assert [row["predicted"] for row in found["mistakes"]] == [None, 9.0]
    json.dumps(found, allow_nan=False)


def test_several_numbers_have_a_scatter_each() -> None:
    kind = Multioutput(("size", "price"), (0.0, 0.0), (1.0, 100.0))
    targets = [[1.0, 100.0], [2.0, 200.0]]
    found = examine(kind, [["one", "two"], "three"], targets, torch.tensor([[1.0, 1.5], [2.0, 2.0]]), [])
    assert [target["name"] for target in found["targets"]] == ["size", "price"]
    assert found["targets"][1]["mean"] == pytest.approx(25.0)
    assert found["mistakes"] == [
        {"text": "one", "pair": "two", "gold": "size 1; price 100", "predicted": "size 1; price 150"}
    ]


def test_entities_are_counted_by_label_and_the_worst_sentence_is_first() -> None:
    kind = Tag.of(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], "IOB2")
    words = [{"tokens": "Ann Lee saw Bern".split()}, {"tokens": "Bern saw Ann".split()}, {"tokens": ["Bern"]}]  # noqa: SIM905
    targets = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O", "B-PER"], ["B-LOC"]]
    said = [["B-PER", "O", "O", "O"], ["B-LOC", "O", "O"], ["B-LOC"]]
    found = examine(kind, words, targets, [], [], said)
    by_label = {row["label"]: row for row in found["by_label"]}
    assert by_label["LOC"] == {"label": "LOC", "f1": 0.8, "precision": 1.0, "recall": pytest.approx(2 / 3, abs=1e-5),
                               "gold": 3, "predicted": 2, "right": 2}  # fmt: skip
    assert (by_label["PER"]["gold"], by_label["PER"]["right"]) == (2, 0)
    assert found["wrong"] == 2
    assert found["mistakes"] == [
        {"text": "Ann Lee saw Bern", "missed": "PER: Ann Lee; LOC: Bern", "wrong": "PER: Ann"},
        {"text": "Bern saw Ann", "missed": "PER: Ann", "wrong": ""},
    ]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("insight") / "base"))


def test_answers_are_scored_by_the_first_word_of_their_question(base: Any) -> None:
    kind = Answer()
    contexts = ["the old lion", "a new saw", "the big plum"]
    asked = ["Who is it?", "¿What is it?", "who is near"]
    inputs = [{"question": q, "context": c} for q, c in zip(asked, contexts, strict=True)]
    examples = kind.examples(base.encoder, inputs, 64)
    targets = [{"answers": [{"text": "lion", "start": 8}]}, {"answers": [{"text": "new", "start": 2}]}, {"answers": []}]
    out = [torch.zeros(len(row.ids), 2) for example in examples for row in example]
    for part, (row,), word in zip(out, examples, (2, 2, 2), strict=True):  # each time the last word is said
        part[row.at.first + word] = 5.0
    found = examine(kind, inputs, targets, out, examples)
    assert found["by_word"] == [
        {"word": "who", "rows": 2, "exact_match": 0.5, "f1": 0.5},
        {"word": "what", "rows": 1, "exact_match": 0.0, "f1": 0.0},
    ]
    assert [(row["gold"], row["predicted"]) for row in found["mistakes"]] == [("new", "saw"), ("", "plum")]
    assert found["wrong"] == 2


def test_choices_are_counted_by_how_many_there_are() -> None:
    inputs = [{"text": f"text {i}", "choices": ["x", "y", "z"][:n]} for i, n in enumerate((2, 3, 3))]
    out = torch.tensor([[0.0], [2.0], [1.0], [0.0], [0.0], [9.0], [0.0], [0.0]])
    examples: Any = [[None] * 2, [None] * 3, [None] * 3]
    found = examine(Choose(), inputs, [0, 0, 1], out, examples)
    assert found["by_choices"] == [
        {"choices": 2, "rows": 1, "accuracy": 0.0},
        {"choices": 3, "rows": 2, "accuracy": 0.5},
    ]
    assert [(row["text"], row["gold"], row["predicted"]) for row in found["mistakes"]] == [
        ("text 2", "y", "x"),
        ("text 0", "x", "y"),
    ]
    assert found["mistakes"][1]["probability"] == pytest.approx(math.exp(2) / (1 + math.exp(2)), abs=1e-5)


def test_hidden_words_by_length_and_by_how_hard_they_are() -> None:
    kind = Mlm(4, 3, words=("cat", "dog", "hen", "[MASK]"))
    examples, out = [], []
    for length, piece, loss, said in ((4, 0, 1.0, 1), (5, 0, 3.0, 1), (9, 1, 0.5, 1)):
        at_ = Hidden(np.array([1]), np.array([piece]), np.array([0]))
        examples.append([SimpleNamespace(ids=np.zeros(length), at=at_)])
        out.append(torch.tensor([[loss, float(piece == said), float(said), -0.1]]))
    found = examine(kind, texts(3), [True] * 3, out, examples)  # type: ignore[arg-type]
    assert [(row["from"], row["to"]) for row in found["by_length"]] == [(4, 4), (5, 5), (9, 9)]
    assert [row["perplexity"] for row in found["by_length"]] == pytest.approx(np.exp([1.0, 3.0, 0.5]), rel=1e-5)
    assert found["words"] == [
        {"word": "cat", "rows": 2, "loss": 2.0, "said": "dog"},
        {"word": "dog", "rows": 1, "loss": 0.5, "said": "dog"},
    ]


def test_what_is_kept_is_small_whatever_the_texts_and_labels() -> None:
    gold, out = drawn(5000, 200)
    kind = Classify(tuple(f"{i} " + "a very long label " * 50 for i in range(200)))
    found = examine(kind, [("long " * 10_000, "text " * 10_000)] * 5000, gold, out, [])
    assert len(json.dumps(found, indent=1).encode()) < 60_000
    assert len(found["mistakes"]) == 10
    assert all(len(row["text"]) == len(row["pair"]) == 200 for row in found["mistakes"])
    names = tuple(f"target {i}" for i in range(40))
    kind_of_numbers = Multioutput(names, (0.0,) * 40, (1.0,) * 40)
    many = examine(kind_of_numbers, ["long " * 1000] * 2000, np.ones((2000, 40)) / 3, torch.rand(2000, 40), [])
    assert len(json.dumps(many, indent=1).encode()) < 60_000


def test_nothing_is_said_of_no_rows_or_of_a_kind_that_is_not_known() -> None:
    assert examine(Classify(("a", "b")), [], np.zeros(0, dtype=np.int64), torch.zeros(0, 2), []) == {}

    class Other(Classify):
        def findings(self, on: Any) -> dict[str, Any]:
            return {}

    assert examine(Other(("a", "b")), ["x"], np.array([0]), torch.zeros(1, 2), []) == {}


def test_every_kind_of_the_package_is_looked_at() -> None:
    def below(kind: type[Any]) -> set[type[Any]]:
        return {kind, *(each for child in kind.__subclasses__() for each in below(child))}

    ours = {kind for kind in below(Kind) if kind.__module__.startswith("adaptree.kinds.") and "name" in vars(kind)}
    told = {
        kind
        for kind in ours
        if kind.findings is not Kind.findings and kind.sections.__func__ is not Kind.sections.__func__
    }
    assert told == ours


def test_what_is_told_agrees_with_the_scores_of_the_part_it_is_judged_on(base: Any) -> None:
    rows = [{"text": f"{i} the {word}", "label": word} for i in range(12) for word in ("lion", "saw", "plum")]
    held = [{"text": f"a {word} today", "label": word} for word in ("lion", "saw")] * 4
    for test in (None, held):
        record = at.train(rows, test=test, base=base, method="houlsby:4", epochs=1).task.record
        found, part = record.extra["insight"], "test" if test else "validation"
        counts = np.array(found["confusion"]["counts"])
        assert found["rows"] == record.data[part] == counts.sum()
        assert counts.trace() / counts.sum() == pytest.approx(record.metrics[part]["accuracy"])


@pytest.mark.parametrize("kind", ["classify", "choose", "regress"])
def test_of_a_large_part_the_first_inputs_are_looked_at(kind: str, base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("lion", "saw", "plum", "bear")
    rows: list[dict[str, Any]] = [
        {
            "classify": {"text": f"{i} the {words[i % 4]}", "label": words[i % 4]},
            "choose": {"question": f"{i} the", "choices": words[: 2 + i % 3], "label": i % 2},
            "regress": {"text": f"{i} the {words[i % 4]}", "label": i / 7},
        }[kind]
        for i in range(40)
    ]
    whole = at.train(rows, test=rows[:14], base=base, method="houlsby:4", epochs=1).task.record
    first = at.train(rows, test=rows[:6], base=base, method="houlsby:4", epochs=1).task.record
    for room in (evaluate, package):
        monkeypatch.setattr(room, "CHUNK", 4)
    monkeypatch.setattr(package, "INSPECTED", 6)
    cut = at.train(rows, test=rows[:14], base=base, method="houlsby:4", epochs=1).task.record
    assert cut.metrics == whole.metrics
    assert cut.extra["insight"] == first.extra["insight"]
    assert cut.extra["insight"]["rows"] == 6
