"""Improving: the rows that are worth a label are those in doubt, unlike each other, and new."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptree as at
from adaptree.analysis import improve as module
from adaptree.cli import main
from adaptree.core import acquisition
from adaptree.errors import DataError, UsageError
from adaptree.tasks.store import Store
from tests.bases import WORDS, tiny_base, words_csv


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> at.Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def bound(base: at.Base, tmp_path_factory: pytest.TempPathFactory) -> at.Bound:
    data = words_csv(tmp_path_factory.mktemp("data") / "words.csv")
    return at.train(data, name="things", base=base, method="head")


def texts(count: int = 60) -> list[dict[str, Any]]:
    """Texts of one, two or three kinds of words: those of several are in doubt."""
    words = [each.split() for each in WORDS.values()]
    mixed = [f"{words[0][i % 3]} {words[1][i // 3 % 3]} {words[2][i // 9 % 3]} the" for i in range(27)]
    plain = [" ".join([words[k][i % 3], *[words[k][(i + 1) % 3]] * (1 + i // 3)]) for i in range(12) for k in range(3)]
    return [{"text": text} for text in [*mixed, *plain][:count]]


def test_rows_in_doubt_come_before_sure_ones(bound: at.Bound) -> None:
    found = at.improve(bound, texts(), rows=8, strategy="uncertain")
    doubts = [each.doubt for each in found.offered]
    assert doubts == sorted(doubts, reverse=True)
    everything = at.improve(bound, texts(), rows=1000, strategy="uncertain")
    assert len(everything.offered) == everything.rows == len({row["text"] for row in texts()})
    assert min(doubts) >= max(each.doubt for each in everything.offered[8:])


def test_the_default_takes_doubtful_rows_that_differ(bound: at.Bound) -> None:
    found = at.improve(bound, texts(), rows=6)
    assert found.strategy == "diverse"
    assert len({each.row for each in found.offered}) == 6
    doubts = [each.doubt for each in found.offered]
    assert doubts == sorted(doubts, reverse=True)
    everything = at.improve(bound, texts(), rows=1000).offered
    assert np.mean(doubts) > np.mean([each.doubt for each in everything])
    assert at.improve(bound, iter(texts()), rows=6).to_dict() == found.to_dict()


def test_diverse_rows_are_from_different_clusters() -> None:
    x = np.repeat(np.eye(5), 4, axis=0) + np.random.default_rng(0).normal(scale=0.01, size=(20, 5))
    doubt = np.linspace(1, 0.9, 20)
    assert sorted(acquisition.diverse(doubt, x, 5, seed=0) // 4) == [0, 1, 2, 3, 4]
    some = np.where(np.arange(20) < 8, 1.0, 0.0)
    assert set(acquisition.diverse(some, x, 2, seed=0) // 4) == {0, 1}  # sure rows have no say in where the centres are
    assert sorted(acquisition.uncertain(doubt, 5)) == [0, 1, 2, 3, 4]  # without vectors: four of one cluster
    assert sorted(acquisition.spread(x, 5, seed=0) // 4) == [0, 1, 2, 3, 4]


def test_doubt_is_one_for_a_tie_and_zero_for_certainty() -> None:
    p = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.6, 0.3, 0.1]])
    assert acquisition.doubts(p) == pytest.approx([1.0, 0.0, 0.7])
    assert acquisition.entropies(np.array([[0.5, 0.5], [1.0, 0.0]])) == pytest.approx([1.0, 0.0], abs=1e-9)
    assert acquisition.contrastive(np.eye(3)[[0] * 14 + [1]], np.ones((15, 2)) + np.arange(15)[:, None], 1) == [14]


def test_empty_repeated_and_labelled_rows_are_not_offered(bound: at.Bound) -> None:
    data = [
        {"text": "apple saw", "label": ""}, {"text": "Apple,  saw!", "label": ""}, {"text": " ", "label": ""},
        {"text": "pear drill", "label": "tool"}, {"text": "lion and plum", "label": None}, {"text": "wolf saw"},
    ]  # fmt: skip
    found = at.improve(bound, data, labelled=[{"text": "WOLF saw", "label": "tool"}])
    assert sorted(each.row for each in found.offered) == [1, 5]
    assert found.left_out == {"empty": 1, "repeated": 1, "labelled": 2}
    with pytest.raises(DataError, match="no row to label: 1 labelled"):
        at.improve(bound, data[3:4])


def test_of_a_long_file_only_some_rows_are_looked_at(bound: at.Bound, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 10)
    notes: list[str] = []
    found = at.improve(bound, texts(), rows=3, on_event=lambda event: notes.append(event.get("text", "")))
    assert found.rows == 10
    assert any("at random" in text for text in notes)


@pytest.mark.parametrize("labels", ["several", "numbers"])
def test_several_labels_and_numbers_can_be_improved(base: at.Base, labels: str) -> None:
    rows: list[dict[str, Any]] = [
        {"text": f"{a} {b}", "label": [i, j]}
        for i, of_a in WORDS.items() for j, of_b in WORDS.items() if i != j
        for a in of_a.split() for b in of_b.split()
    ]  # fmt: skip
    if labels == "numbers":
        rows = [{**row, "label": len(row["text"]) + i / 7} for i, row in enumerate(rows)]
    bound = at.train(rows, base=base, method="head", name="it")
    found = at.improve(bound, texts(), rows=5)
    assert len(found.offered) == 5
    assert found.strategy == ("diverse" if labels == "several" else "spread")
    assert all((each.doubt is None) == (labels == "numbers") for each in found.offered)
    if labels == "numbers":
        with pytest.raises(UsageError, match="no probabilities"):
            at.improve(bound, texts(), strategy="uncertain")


def test_words_are_tagged_least_sure_first_and_other_kinds_are_refused(base: at.Base) -> None:
    rows = [{"tokens": [a, "the"], "tags": [f"B-{name}", "O"]} for name, words in WORDS.items() for a in words.split()]
    bound = at.train(rows * 3, base=base, method="head", name="it", epochs=1)
    found = at.improve(bound, [{"tokens": row["text"].split()} for row in texts(20)], rows=4)
    assert found.kind == "tag"
    assert len(found.offered) == 4
    assert all(0 <= each.doubt <= 1 for each in found.offered)


def test_the_command_writes_rows_to_label(bound: at.Bound, base: at.Base, tmp_path: Path, capfd: Any) -> None:
    Store(tmp_path / "store").add(bound.task)
    with (tmp_path / "new.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows({"id": i, **row} for i, row in enumerate(texts()))
    out = tmp_path / "to-label.csv"
    asked = ["improve", "things", str(tmp_path / "new.csv"), "--store", str(tmp_path / "store"),
             "--base", base.location]  # fmt: skip
    assert main([*asked, "--rows", "7", "--out", str(out)]) == 0
    assert "7 of " in capfd.readouterr().out
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 7
    assert list(rows[0]) == ["id", "text", "label", "improve_row", "improve_prediction", "improve_doubt"]
    assert all(row["label"] == "" and row["improve_prediction"] in WORDS for row in rows)
    assert main([*asked, "--rows", "7", "--format", "json"]) == 0
    offered = json.loads(capfd.readouterr().out)["offered"]
    assert [str(each["row"]) for each in offered] == [row["improve_row"] for row in rows]
    assert int(rows[0]["improve_row"]) - 2 == int(rows[0]["id"])  # the header is line 1
    assert main([*asked, "--strategy", "best"]) == 2
    assert "diverse, uncertain" in capfd.readouterr().err
