"""A text without a word has no answer: the row stays, the prediction is null, and the user is told."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.bases import tiny_base
from tests.kinds.test_every_kind import OPTIONS, rows

import adaptree as at
from adaptree.cli import main

NULL: dict[str, tuple[Any, dict[str, Any]]] = {
    "classify": (" \t", {"label": None, "score": None, "scores": None}),
    "pair": (("", " "), {"label": None, "score": None, "scores": None}),
    "labels": ("", {"labels": None, "scores": None}),
    "regress": ("\u200b\ufeff", {"value": None}),
    "numbers": ("\n", {"values": {"joy": None, "fear": None}}),
    "tag": ("", {"tags": [], "tokens": [], "entities": []}),
    "answer": (("", "the old lion"), {"answer": "", "score": None, "start": None, "end": None, "n_best": []}),
    "choose": ({"text": "", "choices": ["a", "b"]}, {"choice": None, "number": None, "score": None, "scores": None}),
    "mlm": ("", {"fills": [], "perplexity": None}),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("blank") / "base", mask=True))


@pytest.mark.parametrize("kind", NULL)
def test_an_empty_text_has_a_prediction_that_says_nothing(base: Any, kind: str) -> None:
    bound = at.train(rows(kind, 24), base=base, epochs=1, method="bitfit", baselines=False, **OPTIONS[kind])
    blank, expected = NULL[kind]
    full = {
        "pair": ("the old", "lion"),
        "answer": ("the old", "the lion"),
        "choose": {"text": "the old", "choices": ["a", "b"]},
    }.get(kind, "the old lion")
    before, nothing, after = bound.predict([full, blank, full])
    assert nothing.to_dict() == expected
    assert bound.blank == 1
    assert before.to_dict() == after.to_dict() == bound.predict([full])[0].to_dict()
    assert all(value in (None, "") for value in nothing.columns().values())
    json.dumps(nothing.to_dict(), allow_nan=False)


@pytest.fixture(scope="module")
def stored(base: Any, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a store with a task `ab` and one without the base, `bag`."""
    store = tmp_path_factory.mktemp("store")
    for name, method in (("ab", "bitfit"), ("bag", "tfidf")):
        at.train(rows("classify", 24), base=base, epochs=1, method=method, store=store, name=name)
    return ["--store", str(store), "--base", base.location]


@pytest.mark.parametrize("task", ["ab", "bag"])
def test_a_file_keeps_its_rows_and_the_empty_ones_have_no_prediction(
    stored: list[str], task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("id,text\n1,the old lion\n2,\n3,  \n4,wolf\n")
    assert main(["predict", task, "--file", str(path), *stored]) == 0
    out, err = capsys.readouterr()
    found = list(csv.DictReader(io.StringIO(out)))
    assert [row["id"] for row in found] == ["1", "2", "3", "4"]
    assert [bool(row["prediction"]) for row in found] == [True, False, False, True]
    assert "note: 2 texts are empty and have no prediction." in err


def test_lines_keep_their_places_and_an_empty_text_alone_is_an_error(
    stored: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "ab", "lion", "", "--format", "jsonl", *stored]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["label"] is None for line in out.splitlines()] == [False, True]
    assert "note: 1 text is empty and has no prediction." in err
    assert main(["predict", "ab", " ", *stored]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "the text is empty" in err


def test_each_part_of_a_composition_says_nothing_of_an_empty_text(
    stored: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "parallel(ab, bag)", "lion", "", "--format", "jsonl", *stored]) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [found[1][name]["label"] for name in ("ab", "bag")] == [None, None]
    assert "no prediction of ab" in err


def test_train_and_evaluate_say_how_many_rows_have_no_text(
    stored: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "holes.csv"
    path.write_text(
        "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows("classify", 24)) + " ,a\n,b\n"
    )
    assert main(["train", str(path), "--name", "holes", "--epochs", "1", "--method", "bitfit", *stored]) == 0
    assert "2 rows without text are left out" in capsys.readouterr().err
    assert main(["evaluate", "ab", str(path), *stored]) == 0
    assert "2 rows without text: not scored" in capsys.readouterr().out
    assert main(["evaluate", "ab", str(path), "--format", "json", *stored]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {"without text": 2}
