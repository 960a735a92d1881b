"""Labels without training: ranked by the base's own vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import adaptree as at
from adaptree.cli import main
from adaptree.errors import DataError, UsageError
from adaptree.models.zero_shot import TEMPERATURE, read_labels
from tests.bases import tiny_base


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def base(folder: Path) -> at.Base:
    return at.load_base(folder)


def test_the_nearest_label_by_cosine_is_predicted(base: at.Base) -> None:
    labels = {"beast": "lion wolf", "tool": "saw hammer", "fruit": "apple pear"}
    texts = ["the lion", "a saw and a drill", "pear apple plum near"]
    vectors, named = (torch.nn.functional.normalize(base.features(some)) for some in (texts, list(labels.values())))
    shares = (vectors @ named.t() / TEMPERATURE).softmax(-1)
    for prediction, row in zip(at.ZeroShot(base, labels).predict(texts), shares, strict=True):
        assert prediction.label == list(labels)[int(row.argmax())]
        assert list((prediction.scores or {}).values()) == pytest.approx(row.tolist(), abs=1e-5)
    assert at.ZeroShot(base, labels).predict(["lion wolf"], min_score=1.0)[0].label is None  # it abstains
    assert at.ZeroShot(base, labels).predict([" ", "lion"])[0].to_dict() == {
        "label": None, "score": None, "scores": None,
    }  # fmt: skip


def test_labels_are_words_or_a_file_with_descriptions(tmp_path: Path) -> None:
    assert read_labels("billing, delivery ,praise") == {
        "billing": "billing",
        "delivery": "delivery",
        "praise": "praise",
    }
    path = tmp_path / "labels.txt"
    path.write_text("\ufeffbilling: invoices and refunds\n\ndelivery\n")
    assert read_labels(str(path)) == {"billing": "billing: invoices and refunds", "delivery": "delivery"}


@pytest.mark.parametrize("given", ["alone", "", "a, a", ",,"])
def test_labels_to_choose_from_are_two_or_more(given: str) -> None:
    with pytest.raises(UsageError):
        read_labels(given)


def test_a_file_of_labels_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(DataError, match="utf-8"):
        read_labels(str(path))
    path.write_bytes(b"a: b\n" * 300_000)
    with pytest.raises(DataError, match="too large"):
        read_labels(str(path))


def test_a_file_of_labels_that_is_not_there_is_no_label() -> None:
    with pytest.raises(DataError, match=r"there is no file 'labels\.txt'"):
        read_labels("labels.txt")


def test_predict_takes_labels_in_the_place_of_a_task(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", "--labels", "lion, saw", "--base", str(folder), "--format", "jsonl"]
    assert main([*words, "the lion", "a saw"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [set(row["scores"]) for row in rows] == [{"lion", "saw"}] * 2
    data = tmp_path / "texts.csv"
    data.write_text("id,text\n1,the lion\n2,\n3,a saw\n")
    assert main([*words, "--file", str(data)]) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["id"] for row in found] == ["1", "2", "3"]
    assert found[1]["label"] is None
    assert "1 text is empty" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predict"], "name a task"),
        (["predict", "--labels", "one", "a text"], "two labels or more"),
        (["predict", "--labels", "a, b", "--int8", "a text"], "--int8 is for tasks"),
        (["predict", "--labels", "a, b"], "either texts or --file"),
    ],
)
def test_what_is_missing_is_said(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err
