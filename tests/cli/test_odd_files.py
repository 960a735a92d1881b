"""The same odd file is read alike by check, train, evaluate, predict and compare."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from tests.bases import tiny_base, words_csv

from adaptree.cli import main


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    with words_csv(tmp_path_factory.mktemp("data") / "words.csv", 60).open(newline="") as file:
        return list(csv.DictReader(file))


class Commands:
    """Runs commands with a tiny base and a store of their own."""

    def __init__(self, base: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.base, self.store, self.capsys = base, str(folder / "store"), capsys

    def run(self, command: str, *words: object, code: int = 0) -> tuple[str, str]:
        more = ["--store", self.store] if command not in ("check", "compare") else []
        assert main([command, *map(str, words), "--base", self.base, *more]) == code
        said = self.capsys.readouterr()
        return said.out, said.err

    def train(self, *words: object) -> tuple[dict[str, Any], str]:
        options = ("--name", "words", "--method", "pfeiffer:4", "--epochs", 1, "--format", "json")
        out, err = self.run("train", *words, *options)
        return json.loads(out), err


@pytest.fixture
def commands(base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(base, tmp_path, capsys)


def bare(path: Path, lines: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([(row["label"], row["text"]) for row in lines])
    return path


@pytest.mark.parametrize("said", [True, False])
def test_a_file_without_a_header(commands: Commands, lines: list[dict[str, str]], tmp_path: Path, said: bool) -> None:
    data, flag = bare(tmp_path / "bare.csv", lines), ["--no-header"] if said else []
    out, err = commands.run("check", data, *flag)
    assert "60 rows; text from 'column2', label from 'column1'" in out
    assert ("looks like data" in err) is not said
    found, _ = commands.train(data, *flag, "--validation", bare(tmp_path / "other.csv", lines[:9]))
    assert found["kind"] == "classify"
    short = tmp_path / "short.csv"
    short.write_text("fruit,apple\ntool,saw\n")  # nothing in it tells, but the task does
    out, _ = commands.run("evaluate", "words", short, *flag, "--format", "json")
    assert json.loads(out)["rows"] == 2
    out, _ = commands.run("predict", "words", "--file", short, *flag)
    assert [line.split(",")[:2] for line in out.splitlines()] == [
        ["column1", "column2"], ["fruit", "apple"], ["tool", "saw"],
    ]  # fmt: skip


def test_compare_writes_the_rows_that_train_reads(lines: list[dict[str, str]], tmp_path: Path) -> None:
    from adaptree.analysis.compare.rows import prepare
    from adaptree.data.events import silent

    data = bare(tmp_path / "bare.csv", lines)
    short = tmp_path / "short.csv"
    short.write_text("fruit,apple\ntool,saw\nbeast,wolf\n")
    columns = dict.fromkeys(("text", "pair", "label"))
    for no_header in (True, False):
        parts = prepare(data, short, tmp_path, None, columns, None, {"no_header": no_header}, False, silent)
        assert (len(parts.train), len(parts.validation)) == (60, 3)
        assert parts.columns["text"] == "column2"


def test_dotted_columns(commands: Commands, lines: list[dict[str, str]], tmp_path: Path) -> None:
    data = tmp_path / "nested.json"
    data.write_text(json.dumps([{"data": {"text": row["text"]}, "meta": [{"label": row["label"]}]} for row in lines]))
    columns = ["--text", "data.text", "--label", "meta.0.label"]
    out, _ = commands.run("check", data, *columns)
    assert "60 rows; text from 'data.text', label from 'meta.0.label'" in out
    commands.train(data, *columns)
    out, _ = commands.run("evaluate", "words", data, "--format", "json")
    assert json.loads(out)["rows"] == 60
    out, _ = commands.run("predict", "words", "--file", data)
    assert out.splitlines()[0] == "data,meta,prediction,score"
    assert len(out.splitlines()) == 61


def test_a_dataset_with_its_own_parts(commands: Commands, lines: list[dict[str, str]], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    parts = {"train": lines[:40], "validation": lines[40:50], "test": lines[50:]}
    folder = tmp_path / "saved"
    datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in parts.items()}).save_to_disk(folder)
    out, err = commands.run("check", folder)
    assert "train: 40 rows" in out
    assert "train would use 40 rows to train on and 10 to validate" in out
    assert "'saved' has several parts: train, validation, test. Used as such: train, validation; not test." in err
    found, err = commands.train(folder)
    assert "Used as such: train, validation, test." in err
    assert "40 rows to train on, 10 to validate" in err
    assert set(found["metrics"]) == {"validation", "test"}
    _, err = commands.train(folder, "--validation", folder / "test")
    assert "Used as such: train, test; not validation." in err
    _, err = commands.run("evaluate", "words", folder, code=1)
    assert "several parts: train, validation, test." in err
    assert "saved/test" in err
    commands.run("evaluate", "words", folder / "test")


def test_a_test_part_without_labels_is_left_out_and_said(
    commands: Commands, lines: list[dict[str, str]], tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["fruit", "tool", "beast"])}
    )
    hidden = datasets.Dataset.from_list([{"text": row["text"], "label": -1} for row in lines[50:]], features=features)
    known = datasets.Dataset.from_list(lines[:50], features=features)
    datasets.DatasetDict({"train": known, "test": hidden}).save_to_disk(tmp_path / "saved")
    found, err = commands.train(tmp_path / "saved")
    assert set(found["metrics"]) == {"validation"}
    assert "the dataset's own test part is not used: no row of 'test' has a text" in err


def test_a_folder_of_texts(commands: Commands, lines: list[dict[str, str]], tmp_path: Path) -> None:
    for number, row in enumerate(lines):
        part = "test" if number % 4 == 3 else "train"
        path = tmp_path / "words" / part / row["label"] / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(row["text"])
    found, err = commands.train(tmp_path / "words")
    assert "Used as such: train, test." in err
    assert set(found["metrics"]) == {"validation", "test"}
    out, _ = commands.run("predict", "words", "--file", tmp_path / "words" / "test")
    assert out.splitlines()[0] == "text,label,file,prediction,score"
    assert len(out.splitlines()) == 16
