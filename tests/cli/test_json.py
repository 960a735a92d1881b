"""All JSON that is printed or written can be read by any program: it holds no NaN and no infinity."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.bases import tiny_base, words_csv

import adaptree
import adaptree as at
from adaptree.analysis.compare import cells, files
from adaptree.cli import main
from adaptree.cli.show import Format, emit, emit_one
from adaptree.kinds.kind import Prediction
from adaptree.models.bound import Bound
from adaptree.reports import card
from adaptree.reports.json_text import json_text, json_value
from adaptree.tasks.record import Record, checksum
from adaptree.tasks.task import Task

NAN, INF = float("nan"), float("inf")


def strictly(text: str) -> Any:
    """The value of a JSON text; NaN and Infinity, which Python would read, are none."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in {text}")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_json_has_not_are_null() -> None:
    odd = {"a": [NAN, {"b": -INF}], "c": (np.float32("inf"), np.float64(0.5)), "d": torch.tensor(NAN), 3: np.arange(2)}
    assert strictly(json_text(odd)) == {"a": [None, {"b": None}], "c": [None, 0.5], "d": None, "3": [0, 1]}
    assert json_value(np.array([NAN, 1.0])) == [None, 1.0]
    assert json_value(np.bool_(True)) is True
    with pytest.raises(TypeError):
        json_text({"a": date(2026, 1, 2)})
    assert json_text({"a": date(2026, 1, 2)}, default=str) == '{"a": "2026-01-02"}'


SCALARS = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_what_is_read_again_is_the_same(value: Any) -> None:
    for indent in (None, 1):
        text = json_text(value, indent=indent)
        assert strictly(text) == json_value(value)
        text.encode()


def test_every_form_of_the_commands_writes_null(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"score": NAN, "inner": {"low": -INF}, "list": [INF]}
    emit([row], Format.json)
    assert strictly(capsys.readouterr().out) == [{"score": None, "inner": {"low": None}, "list": [None]}]
    emit([row, row], Format.jsonl)
    assert [strictly(line)["score"] for line in capsys.readouterr().out.splitlines()] == [None, None]
    for form in (Format.json, Format.jsonl):
        emit_one(row, form)
        assert strictly(capsys.readouterr().out)["inner"] == {"low": None}
    emit([row], Format.csv)
    (read,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (strictly(read["inner"]), strictly(read["list"])) == ({"low": None}, [None])


def test_commands_write_json_by_one_function() -> None:
    root = Path(adaptree.__file__).parent
    written = [path for path in (root / "cli").glob("*.py") if "json.dump" in path.read_text()]
    assert written == []


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base, data, and a store with two tasks that can be fused, and one whose record has numbers that are absent."""
    root = tmp_path_factory.mktemp("world")
    found = {"base": tiny_base(root / "base"), "data": words_csv(root / "words.csv", 60), "store": root / "store"}
    args = ["--epochs", "2", "--method", "pfeiffer:4", "--base", found["base"], "--store", found["store"], "-q"]
    for name in ("one", "two", "odd"):
        assert main([str(word) for word in ["train", found["data"], "--name", name, *args]]) == 0
    path = found["store"] / "tasks" / "odd" / "1" / "task.json"
    values = json.loads(path.read_text())
    del values["checksum"]
    values |= {"trained_percent": None, "seconds": None}
    values["metrics"]["validation"]["accuracy"] = None
    path.write_text(json.dumps({**values, "checksum": checksum(values)}))
    return found


def _folder(path: Path) -> Path:
    """Return a folder with a file to train on."""
    path.mkdir()
    words_csv(path / "words.csv", 30)
    return path


@pytest.mark.slow
def test_every_command_that_prints_json_prints_it_strictly(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_run", cells.run_cell)
    store, base, data = ["--store", world["store"]], ["--base", world["base"]], world["data"]
    new = ["--epochs", "1", "--store", tmp_path]
    commands: list[list[Any]] = [
        ["list", *store],
        ["history", "odd", *store],
        ["show", "odd", *store],
        ["check", data, *base],
        ["methods", *base],
        ["train", data, "--name", "new", *base, *new],
        ["predict", "odd", "lion", *store],
        ["predict", "odd", "--file", data, *store],
        ["evaluate", "odd", data, *store],
        ["suggest", words_csv(tmp_path / "other.csv", 60, seed=3), *base, *store],
        ["compose", "average(one, two)", "--name", "mean", *store],
        ["compose", "fuse(one, two)", "--name", "both", "--train", data, "--epochs", "1", *store],
        ["explain", "both", "lion", *store],
        ["explain", "both", data, "--mask", *store],
        ["explain", "odd", "lion", *store],
        ["ablate", "odd", data, *store],
        ["diff", "one", "odd", *store],
        ["diff", "one", "odd", "--data", data, *store],
        ["search", "lion", *store],
        ["clean", data, *base],
        ["push", "one", tmp_path / "copy", *store],
        ["pull", tmp_path / "copy", "--store", tmp_path / "mine"],
        ["verify", "--store", tmp_path / "mine"],
        [
            "stream",
            _folder(tmp_path / "files"),
            "--epochs",
            "1",
            "--method",
            "bitfit",
            *base,
            "--store",
            tmp_path / "new",
        ],
        ["compare", data, "--method", "pfeiffer:2", "--seeds", "1", "--epochs", "1", "--out", tmp_path / "out", *base],
    ]
    for command in commands:
        for form in ("json",) if command[0] in ("train", "compose", "compare") else ("json", "jsonl"):
            capsys.readouterr()
            assert main([*map(str, command), "--format", form, "-q"]) == 0, command
            out = capsys.readouterr().out
            assert out
            found = [strictly(line) for line in out.splitlines()] if form == "jsonl" else strictly(out)
            if command[0] == "list":
                (odd,) = [row for row in found if row["name"] == "odd"]
                assert odd["score"] is None
                assert not odd["trained_percent"]
    for path in [*world["store"].rglob("task.json"), *(tmp_path / "out").rglob("*.json")]:
        if "odd" not in path.parts:
            strictly(path.read_text())


def test_predictions_and_scores_that_are_no_numbers_are_null(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ["--store", str(world["store"])]
    monkeypatch.setattr(Bound, "predict", lambda self, inputs, **more: [Prediction(value=NAN) for _ in inputs])
    assert main(["predict", "one", "lion", "saw", *store, "--format", "jsonl"]) == 0
    assert [strictly(line) for line in capsys.readouterr().out.splitlines()] == [{"value": None}] * 2
    bad = ({"accuracy": NAN}, {"accuracy": [NAN, INF]})
    monkeypatch.setattr("adaptree.models.evaluate.score", lambda bound, part: bad)
    assert main(["evaluate", "one", str(world["data"]), *store, "--format", "json"]) == 0
    found = strictly(capsys.readouterr().out)
    assert found["metrics"] == {"test": {"accuracy": None}}
    assert found["intervals"] == {"test": {"accuracy": [None, None]}}


def test_a_record_a_card_and_a_comparison_s_file_hold_no_nan(tmp_path: Path) -> None:
    record = Record(
        name="x", kind="classify", method="houlsby(size=8)", base={"name": "b", "fingerprint": "f"}, labels=["a", "b"],
        metrics={"validation": {"accuracy": NAN, "f1": 0.5}}, history=[{"epoch": 1, "train_loss": INF}],
        extra={"insight": {"rows": 1, "wrong": 1, "mistakes": [{"text": "t", "gold": "a", "probability": NAN}]}},
    )  # fmt: skip
    saved = Task(record, {"head.bias": torch.zeros(2)}).save(tmp_path / "x")
    written = strictly((tmp_path / "x" / "task.json").read_text())
    assert written["metrics"] == {"validation": {"accuracy": None, "f1": 0.5}}
    assert written["history"] == [{"epoch": 1, "train_loss": None}]
    text = (tmp_path / "x" / "README.md").read_text()
    assert "| accuracy | not a number |" in text
    assert "nan" not in text
    assert card.write(replace(saved.record, versions={})) == card.write(
        replace(at.Task.load(tmp_path / "x").record, versions={})
    )
    assert saved.record.digest == written["digest"]
    files.write(tmp_path / "cell.json", {"found": {"metrics": {"accuracy": NAN}}})
    assert strictly((tmp_path / "cell.json").read_text()) == {"found": {"metrics": {"accuracy": None}}}


def test_events_of_a_run_can_be_written_as_json(world: dict[str, Path]) -> None:
    seen: list[str] = []
    at.train(
        world["data"], base=at.load_base(world["base"]), epochs=1, on_event=lambda event: seen.append(json_text(event))
    )
    assert {strictly(text)["event"] for text in seen} >= {"start", "step", "epoch"}
