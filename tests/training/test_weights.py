"""Rows count in the loss by their weights: ratios alone matter, and a row of weight 0 is as if it were not there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import FILLER, WORDS, tiny_base, words_csv

import adaptree as at
from adaptree.cli import main
from adaptree.data.read import rows as read_rows
from adaptree.errors import DataError, UsageError
from adaptree.kinds.reading import open_data


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> at.Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return [row for _, row in read_rows(words_csv(tmp_path_factory.mktemp("data") / "words.csv"))]


def train(data: Any, base: at.Base, **options: Any) -> at.Bound:
    return at.train(data, base=base, **({"method": "houlsby:4", "epochs": 2, "lr": 5e-3, "baselines": False} | options))


def weighted(rows: list[dict[str, Any]], *weights: float) -> list[dict[str, Any]]:
    return [{**row, "weight": weights[i % len(weights)]} for i, row in enumerate(rows)]


def same(a: at.Bound, b: at.Bound) -> bool:
    return all(torch.equal(a.task.weights[name], b.task.weights[name]) for name in a.task.weights | b.task.weights)


def test_only_the_ratios_of_the_weights_count(base: at.Base, rows: list[dict[str, Any]]) -> None:
    plain = train(rows, base)
    assert same(plain, train(weighted(rows, 8.0), base, weight="weight"))
    light, heavy = (train(weighted(rows, *pair), base, weight="weight") for pair in ((1, 3), (2, 6)))
    assert same(light, heavy)
    assert not same(light, plain)
    assert light.task.record.data["weight"] == "weight"
    assert "weight" not in plain.task.record.data


def test_a_row_of_weight_zero_is_as_if_it_were_not_there(base: at.Base, rows: list[dict[str, Any]]) -> None:
    without = [row for i, row in enumerate(rows) if i % 4]
    odd = {"text": "the only one", "label": "never"}  # its label does not exist either
    data = [*weighted(rows, 0, 1, 1, 1), {**odd, "weight": 0}]
    found = train(data, base, weight="weight")
    assert same(found, train(without, base))
    assert found.task.record.labels == ["beast", "fruit", "tool"]
    assert found.task.record.data["left_out"]["of weight 0"] == len(rows) - len(without) + 1


def test_weights_decide_where_labels_contradict_each_other(base: at.Base) -> None:
    texts = [f"{word} {near}" for word in ["lion", "wolf", "saw", "drill"] for near in FILLER]
    for heavy, light in (("yes", "no"), ("no", "yes")):
        data = [
            {"text": text, "label": label, "w": 9 if label == heavy else 1}
            for text in texts
            for label in (heavy, light)
        ]
        bound = train(data, base, weight="w", epochs=1, lr=1e-2, batch_size=8)
        assert all(found.scores[heavy] > 0.7 for found in bound.predict(texts[:5]))


def test_tasks_that_are_trained_jointly_have_weights_too(base: at.Base, rows: list[dict[str, Any]]) -> None:
    numbers = [{"text": row["text"], "label": len(row["text"]) / 7} for row in rows]
    options: dict[str, Any] = {"name": "both", "base": base, "method": "houlsby:4", "epochs": 1, "baselines": False}
    ones = at.train_jointly({"a": weighted(rows, 1), "b": weighted(numbers, 1)}, weight="weight", **options)
    plain = at.train_jointly({"a": rows, "b": numbers}, **options)
    other = at.train_jointly({"a": weighted(rows, 1), "b": weighted(numbers, 1, 5)}, weight="weight", **options)
    assert same(ones[0], plain[0])
    assert not same(other[0], plain[0])


def test_the_column_of_weights_is_neither_text_nor_label() -> None:
    data = [{"said": f"some words {i}", "about": "ab"[i % 2], "w": 1 + i % 3} for i in range(30)]
    found = open_data(data, weight="w")
    assert found.columns == {"text": "said", "pair": None, "label": "about"}
    assert found.weights is not None
    assert found.weights.mean() == pytest.approx(1)
    assert found.digest != open_data([{**row, "w": 1} for row in data], weight="w").digest


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "much", "", None, [1]])
def test_a_weight_that_is_none_is_refused_with_its_row(rows: list[dict[str, Any]], bad: Any) -> None:
    data = weighted(rows, 1)
    data[4]["weight"] = bad
    with pytest.raises(DataError, match=r"row 5 of 'the data': column 'weight' holds .* a number of at least 0"):
        open_data(data, weight="weight")


def test_columns_that_cannot_be_weights_are_refused(base: at.Base, rows: list[dict[str, Any]]) -> None:
    with pytest.raises(DataError, match=r"no column 'wieght'.*Did you mean 'weight'"):
        train(weighted(rows, 1), base, weight="wieght")
    with pytest.raises(DataError, match="'label' cannot be used twice"):
        train(rows, base, weight="label", label="label")
    with pytest.raises(DataError, match="no row"):
        train(weighted(rows, 0), base, weight="weight")
    with pytest.raises(UsageError, match="tfidf weighs every row the same"):
        train(weighted(rows, 1), base, weight="weight", method="tfidf")


def test_the_command_line_takes_a_column_of_weights(
    base: at.Base, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "words.csv"
    words = [(label, word) for label, some in WORDS.items() for word in some.split()]
    lines = [f"{word} {near},{label},{1 + (near == 'old')}" for label, word in words for near in FILLER]
    file.write_text("\n".join(["text,label,weight", *lines]))
    args = ["train", str(file), "--name", "w", "--weight", "weight", "--base", base.location, "--epochs", "1"]
    assert main([*args, "--store", str(tmp_path / "store"), "--format", "json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["task"] == "w"
