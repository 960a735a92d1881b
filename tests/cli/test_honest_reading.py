"""What people have, on the command line: nothing of a file is left out in silence, and hints name their flag."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.bases import FILLER, WORDS, tiny_base, words_csv

from adaptree.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("reading") / "base")


@pytest.fixture
def run(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*words: object) -> tuple[int, str, str]:
        options = ["--base", base, "--store", tmp_path / "store"]
        code = main([str(word) for word in (*words, *options)])
        return code, *capsys.readouterr()

    return command


def write(path: Path, names: str, rows: list[list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names.split(","), *rows])
    return path


def spoken(i: int, shift: int = 0) -> str:
    return " ".join(FILLER[(i * k + shift) % len(FILLER)] for k in range(1, 8))


FAST = ["--epochs", 1, "--method", "bitfit"]


def test_sent_1_and_sent_2_are_a_pair_and_the_run_says_what_it_reads(run: Run, tmp_path: Path) -> None:
    rows = [[i, spoken(i), spoken(i, 3), "yn"[i % 2]] for i in range(40)]
    path = write(tmp_path / "pairs.csv", "id,sent 1,sent 2,gold", rows)
    code, out, _ = run("check", path)
    assert code == 0
    assert "text from 'sent 1', pair from 'sent 2', label from 'gold'" in out
    assert "not read: 'id'" in out
    code, _, err = run("train", path, "--name", "pairs", *FAST)
    assert code == 0
    assert "note: not read in 'pairs.csv': 'id'." in err
    assert "from 'sent 1 + sent 2' → 'gold'" in err


def test_a_text_that_is_not_read_is_a_warning_with_the_flags(run: Run, tmp_path: Path) -> None:
    rows = [[spoken(i, 2), spoken(i), "yn"[i % 2]] for i in range(40)]
    path = write(tmp_path / "titles.csv", "title,text,label", rows)
    code, out, _ = run("check", path)
    assert "! 'title' holds texts and is not read" in out
    code, _, err = run("train", path, "--name", "titles", *FAST)
    assert code == 0
    assert "warning: 'title' holds texts and is not read" in err
    assert "--text 'text' --text-pair 'title'" in err
    code, _, err = run("train", path, "--name", "titles", "--text", "text", *FAST)
    assert "warning" not in err


def test_texts_that_could_be_anything_are_asked_about(run: Run, tmp_path: Path) -> None:
    rows = [[spoken(i), spoken(i, 1), spoken(i, 2), "yn"[i % 2]] for i in range(40)]
    code, out, err = run("train", write(tmp_path / "three.csv", "one,other,third,kind", rows), "--name", "three")
    assert (code, out) == (1, "")
    assert "'one', 'other', 'third' hold texts" in err
    assert "--text 'one' --text-pair 'other'" in err


@pytest.fixture
def spelled(tmp_path: Path) -> Path:
    """Three labels, two of them in two spellings."""
    rows = list(csv.reader(words_csv(tmp_path / "words.csv", 90).read_text().splitlines()))[1:]
    ways = {"fruit": ["fruit", "Fruit"], "tool": ["N/A", "none"], "beast": ["beast"]}
    path = tmp_path / "spelled.csv"
    return write(
        path, "text,label", [[text, ways[label][i % len(ways[label])]] for i, (text, label) in enumerate(rows)]
    )


def test_spellings_of_a_label_are_reported_merged_and_known_to_the_task(
    run: Run, spelled: Path, tmp_path: Path
) -> None:
    code, out, _ = run("check", spelled)
    assert "'Fruit' (15), 'fruit' (15)" in out
    assert "--merge-labels" in out
    code, _, err = run("train", spelled, "--name", "apart", *FAST)
    assert "warning: Labels that may be the same are spelled in several ways" in err
    code, out, err = run("train", spelled, "--name", "merged", "--merge-labels", "--format", "json", *FAST)
    assert code == 0
    assert "note: merged as 'Fruit': 'Fruit' (15), 'fruit' (15)." in err
    assert "warning" not in err
    other = write(tmp_path / "other.csv", "text,label", [["apple pear", "FRUIT"], ["saw", "null"], ["lion", "beast"]])
    code, out, _ = run("evaluate", "merged", other, "--format", "json")
    assert code == 0
    assert "unknown_labels" not in json.loads(out)
    code, out, _ = run("evaluate", "apart", other, "--format", "json")
    assert json.loads(out)["unknown_labels"] == {"FRUIT": 1, "null": 1}
    code, out, _ = run("check", spelled, "--merge-labels")
    assert "Fruit" in out
    assert "spelled in several ways" not in out


def test_a_validation_file_is_merged_as_the_training_file_is(run: Run, spelled: Path, tmp_path: Path) -> None:
    held = write(tmp_path / "held.csv", "text,label", [["apple pear", "FRUIT"], ["saw", "null"], ["lion", "Beast"]])
    code, _, err = run("train", spelled, "--name", "merged", "--validation", held, *FAST)
    assert code == 1
    assert "unknown label 'FRUIT'" in err
    assert "--merge-labels" in err
    assert run("train", spelled, "--name", "merged", "--validation", held, "--merge-labels", *FAST)[0] == 0


def test_a_file_without_one_known_label_is_not_scored(run: Run, tmp_path: Path) -> None:
    assert run("train", words_csv(tmp_path / "words.csv"), "--name", "words", *FAST)[0] == 0
    rows = [[word, label] for word, label in zip(WORDS["fruit"].split(), ("good", "bad", "good"), strict=True)]
    code, out, err = run("evaluate", "words", write(tmp_path / "other.csv", "text,label", rows))
    assert (code, out) == (1, "")
    assert "no label that the task 'words' knows: it has 'good', 'bad', the task 'beast', 'fruit', 'tool'" in err
    assert "--label COL" in err
    code, out, _ = run("evaluate", "words", write(tmp_path / "some.csv", "text,label", [*rows, ["lion", "beast"]]))
    assert code == 0
    assert "'good' is no label of this task: 2 times" in out


def test_entities_of_other_names_are_not_scored_either(run: Run, tmp_path: Path) -> None:
    def conll(name: str, tag: str) -> Path:
        sentences = [f"the O\nold O\n{word} B-{tag}\n" for word in WORDS["beast"].split()] * 8
        path = tmp_path / name
        path.write_text("\n".join(sentence + f"{FILLER[i % 9]} O\n" for i, sentence in enumerate(sentences)))
        return path

    assert run("train", conll("a.conll", "ANIMAL"), "--name", "animals", *FAST)[0] == 0
    assert run("evaluate", "animals", conll("same.conll", "ANIMAL"))[0] == 0
    code, _, err = run("evaluate", "animals", conll("b.conll", "PERSON"))
    assert code == 1
    assert "'B-PERSON'" in err


def test_contexts_that_are_read_in_windows_are_not_said_to_be_cut(run: Run, tmp_path: Path) -> None:
    context = " ".join(FILLER * 20) + " lion"
    questions = [
        {"id": str(i), "question": f"{word} seen", "answers": [{"text": "lion", "answer_start": len(context) - 4}]}
        for i, word in enumerate(FILLER)
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}))
    code, out, _ = run("check", path)
    assert code == 0
    assert "longer than 64 tokens and are read in windows" in out
    assert "not be seen" not in out
    assert "not read: 'title'" in out


def test_long_texts_name_the_windows_that_would_read_them(run: Run, tmp_path: Path) -> None:
    path = write(
        tmp_path / "long.csv", "text,label", [[" ".join(FILLER * 8) + f" {i}", "yn"[i % 2]] for i in range(40)]
    )
    _, out, _ = run("check", path)
    assert "their ends will not be seen. Read them whole with --windows" in out
    _, out, _ = run("check", path, "--windows")
    assert "are read in windows" in out
    assert "not be seen" not in out


def test_a_file_without_labels_offers_language_modelling(run: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "nolabel.csv", "id,text", [[i, spoken(i)] for i in range(40)])
    code, _, err = run("train", path, "--name", "t")
    assert code == 1
    assert "--kind mlm" in err


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ("text,label", ["--whole-words"], "--whole-words is not for kind classify"),
        ("text,label", ["--kind", "mlm", "--label", "label"], "--label is not for kind mlm"),
        ("text,label", ["--kind", "mlm", "--class-weights"], "--class-weights is not for kind mlm"),
        (
            "text,label",
            ["--kind", "mlm", "--windows"],
            "--windows is not for kind mlm: it reads long texts whole as it is",
        ),
        ("text,label", ["--kind", "mlm", "--pooling", "first"], "--pooling is not for kind mlm"),
        ("text,label", ["--kind", "mlm", "--merge-labels"], "--merge-labels is not for kind mlm"),
        ("text,label", ["--metric", "perplexity"], "no metric 'perplexity' for classify"),
        ("text,label", ["--temperature", 3], "--joint"),
        ("text,text_pair,label", ["--windows"], "windows are for single texts"),
    ],
)
def test_an_option_that_a_kind_cannot_use_is_refused_by_one_line(
    run: Run, tmp_path: Path, rows: str, options: list[object], said: str
) -> None:
    made = [[spoken(i, at) for at in range(rows.count(","))] + ["yn"[i % 2]] for i in range(40)]
    code, out, err = run("train", write(tmp_path / "rows.csv", rows, made), "--name", "t", *options)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("✘")]
    assert said in line
