"""A composition stands wherever a task's name does, and what it cannot be is said in one line."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bases import tiny_base, words_csv

import adaptree as at
from adaptree.cli import main
from adaptree.compose import parse
from adaptree.models.opening import open_task
from adaptree.tasks.store import Store

TEXTS = ["the lion and a plum", "new saw near the bear today", "apple"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two bases, data, and a store with tasks of them."""
    root = tmp_path_factory.mktemp("world")
    store, data = Store(root / "store"), words_csv(root / "words.csv")
    base = at.load_base(tiny_base(root / "base", mask=True))
    tagged = [{"text": text, "spans": [{"start": 0, "end": 3, "label": "X"}]} for text in TEXTS * 8]
    for name, method, rows, more in (
        ("lang/en", "pfeiffer:4", [{"text": text} for text in TEXTS * 8], {"kind": "mlm"}),
        ("words", "pfeiffer:4", data, {}),
        ("again", "pfeiffer:4", data, {"seed": 1}),
        ("houlsby", "houlsby:4", data, {}),
        ("tags", "pfeiffer:4", tagged, {}),
    ):
        at.train(rows, base=base, name=name, method=method, epochs=1, lr=1e-2, baselines=False, store=store, **more)
    other = at.load_base(tiny_base(root / "other", seed=7))
    at.train(data, base=other, name="stranger", method="pfeiffer:4", epochs=1, baselines=False, store=store)
    file = root / "mixed.csv"
    file.write_text("id,task,text\n1,words,the lion\n2,tags,a plum\n3,again,new saw\n4,words,apple\n")
    return {"store": store.path, "data": data, "mixed": file, "base": root / "base"}


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "stack(lang/en, words)", "average(words, again, weights=[0.25, 0.75])", "average_outputs(words, again)",
        "drop(words, layers='0')", "stack(lang/en, drop(average(words, again), layers='1'))", "words@1",
    ],
)  # fmt: skip
def test_predict_answers_as_the_same_composition_in_python(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], text: str
) -> None:
    out = run(capsys, "predict", text, *TEXTS, "--store", world["store"], "--format", "jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    store, base = Store(world["store"]), at.load_base(world["base"])
    assert found == [each.to_dict() for each in base.bind(text, tasks=store).predict(TEXTS)]
    opened = open_task(store, parse(text))
    assert torch.equal(opened.logits(TEXTS), base.bind(parse(text), tasks=store).logits(TEXTS))


def test_evaluate_calls_a_composition_by_its_text_and_prices_all_its_tasks(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "average(words, again)"
    args = ["--store", world["store"], "--format", "json"]
    found = json.loads(run(capsys, "evaluate", text, world["data"], *args))
    alone = [json.loads(run(capsys, "evaluate", name, world["data"], *args)) for name in ("words", "again")]
    assert found["task"] == text
    assert found["parts"] == ["words@1", "again@1"]
    assert found["bytes"] == sum(each["bytes"] for each in alone)
    for part in ("adapters", "norms", "head", "trained"):
        assert found["parameters"][part] == sum(each["parameters"][part] for each in alone)
    for part in ("base", "base_without_embeddings"):
        assert found["parameters"][part] == alone[0]["parameters"][part]
    assert found["rows"] == 90
    assert set(found["metrics"]["test"]) == set(alone[0]["metrics"]["test"])
    assert text in run(capsys, "evaluate", text, world["data"], "--store", world["store"])


def test_parallel_gives_each_task_its_columns(world: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    args = ["predict", "parallel(words, stack(lang/en, again), tags)", *TEXTS, "--store", world["store"]]
    rows = list(csv.DictReader(io.StringIO(run(capsys, *args, "--format", "csv"))))
    assert list(rows[0]) == [
        "words.prediction", "words.score", "stack(lang/en, again).prediction", "stack(lang/en, again).score",
        "tags.prediction", "text",
    ]  # fmt: skip
    assert [row["text"] for row in rows] == TEXTS
    lines = [json.loads(line) for line in run(capsys, *args, "--format", "jsonl").splitlines()]
    for name in ("words", "stack(lang/en, again)", "tags"):
        alone = run(capsys, "predict", name, *TEXTS, "--store", world["store"], "--format", "jsonl")
        assert [line[name] for line in lines] == [json.loads(line) for line in alone.splitlines()]
    assert "words.prediction" in run(capsys, *args)


def test_parallel_keeps_a_file_s_columns(world: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "predict", "parallel(words, again)", "--file", world["mixed"], "--store", world["store"])
    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == [
        "id", "task", "text", "words.prediction", "words.score", "again.prediction", "again.score"
    ]  # fmt: skip
    assert [row["id"] for row in rows] == ["1", "2", "3", "4"]


def test_rows_answers_each_row_of_a_file_with_the_task_that_it_names(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["predict", "rows(words, again, tags)", "--file", world["mixed"], "--store", world["store"]]
    rows = list(csv.DictReader(io.StringIO(run(capsys, *args))))
    assert list(rows[0]) == ["id", "task", "text", "prediction", "score"]
    said = [json.loads(line) for line in run(capsys, *args, "--format", "jsonl").splitlines()]
    assert [each["task"] for each in said] == [row["task"] for row in rows] == ["words", "tags", "again", "words"]
    for row, each in zip(rows, said, strict=True):
        alone = json.loads(
            run(capsys, "predict", row["task"], row["text"], "--store", world["store"], "--format", "jsonl")
        )
        assert {"id": row["id"], "task": row["task"], "text": row["text"], **alone} == each
        if "score" in alone:
            assert (row["prediction"], float(row["score"])) == (alone["label"], alone["score"])


def test_rows_answers_lines_with_a_name_and_a_tab(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["words\tthe lion", "tags\ta plum"]
    args = ["predict", "rows(words, tags)", "--store", world["store"], "--format", "jsonl"]
    out = run(capsys, *args, *lines)
    assert [json.loads(line)["task"] for line in out.splitlines()] == ["words", "tags"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    assert run(capsys, *args, "-") == out


def test_texts_that_were_cut_are_told_by_part(world: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "parallel(words, again)", "lion " * 80, "--store", str(world["store"])]) == 0
    assert "1 texts are longer than 64 tokens of words and were truncated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("stack(lang/em, words)", 1, r"no task 'lang/em' in the store.  Did you mean 'lang/en'\?"),
        ("stack(lang/en, wrds)", 1, r"no task 'wrds' in the store.  Did you mean 'words'\?"),
        ("stack(lang/en, words@4)", 1, "no version 4 of task 'words'"),
        ("parallel(words, stranger)", 1, "'words' was trained on the base base and 'stranger' on another.*rebase"),
        ("stack(stranger, words)", 1, "has no base to run on"),
        ("average(words, tags)", 2, "differ in kind: their predictions have no mean.  parallel"),
        ("average(words, houlsby)", 2, r"weights of pfeiffer.* and houlsby.* have no mean.*average_outputs"),
        ("stack(houlsby, houlsby)", 2, "write the same weight"),
        ("fuse(words, again)", 2, r"to be learned before it can predict.*adaptree compose \"fuse\(words, again\)\""),
        ("stack(fuse(words, again), words)", 2, "fuse cannot stand inside stack.*stack takes names, stack"),
        ("stack(lang/en, parallel(words, again))", 2, r"Write parallel\(stack\(lang/en, words\), "),
        ("parallel(words, words)", 2, "names a part twice"),
        ("stak(words)", 2, "no block 'stak'.*Did you mean 'stack'"),
        ("stack(words", 2, "ends too early"),
        ("stack()", 2, r"stack\(\) is the bare base: it has no task to predict with"),
        ("drop(words, layers='9')", 2, "no such layers.*This base has layers 0-1"),
        ("stack(Words, tags)", 2, "cannot be a task's name"),
        ("average(words, again, weights=[1, 1])", 2, r"sum up to 2, not to 1.*weights=\[0.5, 0.5\]"),
        ("average_outputs(lang/en)", 2, "the head of mlm is no linear map"),
        ("average(words, again, weights=[inf, -inf])", 2, "sum up to nan, not to 1"),
        ("stack(" * 1000 + "words" + ")" * 1000, 2, "more than 50 blocks are nested"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], text: str, code: int, said: str
) -> None:
    capsys.readouterr()
    assert main(["predict", text, "the lion", "--store", str(world["store"])]) == code
    err = capsys.readouterr().err
    assert err.startswith("✘ ")
    assert len(err.strip().splitlines()) == 1
    assert re.search(said, err), err


@pytest.mark.parametrize("command", ["show", "remove"])
def test_where_one_task_is_needed_a_composition_is_no_name(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    capsys.readouterr()
    assert main([command, "stack(words, again)", "--store", str(world["store"])]) == 2
    told = "✘ 'stack(words, again)' is a composition, not a task's name.  Name one of its tasks.\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("text", ["parallel(words, again)", "rows(words, again)"])
def test_several_answers_are_not_evaluated(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], text: str
) -> None:
    capsys.readouterr()
    assert main(["evaluate", text, str(world["data"]), "--store", str(world["store"])]) == 2
    assert re.search(r'gives several answers.*adaptree evaluate "words" DATA', capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rows(words, again)", "the lion"], "write its name, a tab, and the text"),
        (["rows(words, again)", "wrds\tthe lion"], "'wrds' is not a part of.*Did you mean 'words'"),
        (["rows(words, again)", "--file", "DATA"], "needs a column 'task'"),
        (["rows(words, again)", "--file", "MIXED"], "row 3 of 'mixed.csv' asks for 'tags'"),
        (["parallel(words, again)", "--file", "DATA", "--text", "txt"], "no column 'txt'.*Did you mean 'text'"),
    ],
)
def test_rows_that_name_no_task_are_refused(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    given: dict[str, Any] = {"DATA": world["data"], "MIXED": world["mixed"]}
    capsys.readouterr()
    assert main(["predict", *(str(given.get(word, word)) for word in words), "--store", str(world["store"])]) in (1, 2)
    assert re.search(said, err := capsys.readouterr().err), err


def test_a_fused_task_whose_part_was_removed_is_refused(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store, base = Store(tmp_path / "store"), at.load_base(world["base"])
    for name in ("a", "b"):
        at.train(world["data"], base=base, name=name, method="pfeiffer:4", epochs=1, baselines=False, store=store)
    at.train(world["data"], base=base, name="fused", method="fuse(a, b)", epochs=1, baselines=False, store=store)
    assert run(capsys, "predict", "parallel(fused, a)", "the lion", "--store", store.path)
    assert main(["remove", "a", "--store", str(store.path)]) == 1
    assert re.search("part of fused@1.*--force", capsys.readouterr().err)
    store.remove("a", force=True)
    assert main(["predict", "stack(b, fused)", "the lion", "--store", str(store.path)]) == 1
    assert "'fused@1' is made of 'a@1', which is not in the store any more" in capsys.readouterr().err
