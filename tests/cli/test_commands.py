"""The commands, as a person and as a program would use them."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.bases import FILLER, tiny_base, words_csv

from adaptree.cli import main


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base, data, and a store with a trained task 'words'."""
    root = tmp_path_factory.mktemp("world")
    found = {"base": tiny_base(root / "base"), "data": words_csv(root / "words.csv", 240), "store": root / "store"}
    args = ["train", found["data"], "--name", "words", "--epochs", "15", "--lr", "0.01", "--size", "16"]
    assert main([str(word) for word in [*args, "--base", found["base"], "--store", found["store"], "-q"]]) == 0
    return found


def run(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def test_train_prints_one_object_with_the_contract_s_keys(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = words_csv(tmp_path / "test.csv", 30, seed=5)
    out = run(
        capsys, "train", world["data"], "--name", "one", "--epochs", "2", "--method", "pfeiffer:4", "--layers", "top:1",
        "--test", test, "--base", world["base"], "--store", tmp_path, "--format", "json",
    )  # fmt: skip
    found = json.loads(out)
    assert {
        "task",
        "version",
        "kind",
        "base",
        "method",
        "metrics",
        "intervals",
        "parameters",
        "trained_percent",
    } <= set(found)
    assert {"bytes", "seconds", "seed"} <= set(found)
    assert found["method"] == "pfeiffer(size=4, layers=top:1)"
    price = found["parameters"]
    assert price["adapters"] == 2 * 4 * 32 + 32 + 4
    assert price["trained"] == price["adapters"] + price["norms"] + price["head"]
    assert found["trained_percent"] == pytest.approx(100 * price["trained"] / price["base"])
    assert set(found["metrics"]) == {"validation", "test"}
    assert 0 <= found["metrics"]["test"]["accuracy"] <= 1
    low, high = found["intervals"]["test"]["accuracy"]
    assert low <= found["metrics"]["test"]["accuracy"] <= high
    assert set(found["baselines"]) == {"majority", "tfidf"}


def test_the_task_learned_something(world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = words_csv(tmp_path / "test.csv", 60, seed=9)
    found = json.loads(run(capsys, "evaluate", "words", test, "--store", world["store"], "--format", "json"))
    assert found["metrics"]["test"]["accuracy"] > 0.8
    assert found["rows"] == 60
    assert "0." in run(capsys, "evaluate", "words", test, "--store", world["store"])


def test_predict_answers_in_order_in_every_form(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["lion the wolf bear lion", "a very big and new and small and old saw near the", "", "plum pear a pear"]
    out = run(capsys, "predict", "words", *texts, "--store", world["store"], "--format", "jsonl")
    found = [json.loads(line) for line in out.splitlines()]
    assert [answer["label"] for answer in found][::3] == ["beast", "fruit"]
    assert found[2] == {"label": None, "score": None, "scores": None}  # of an empty text
    answered = found[:2] + found[3:]
    assert all(sum(answer["scores"].values()) == pytest.approx(1) for answer in answered)
    assert all(answer["score"] == max(answer["scores"].values()) for answer in answered)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(texts) + "\n"))
    assert run(capsys, "predict", "words", "-", "--store", world["store"], "--format", "jsonl") == out
    assert json.loads(run(capsys, "predict", "words", *texts, "--store", world["store"], "--format", "json")) == found
    table = run(capsys, "predict", "words", *texts, "--store", world["store"])
    assert "beast" in table
    assert "plum pear a pear" in table


def test_predict_keeps_a_file_s_columns_and_adds_the_answer_s(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.csv"
    source.write_text(
        'id,text,score\n7,"the ""old"", lion bear wolf",x\n3,pear plum apple,\n9,drill saw drill today,z\n'
    )
    found = list(
        csv.DictReader(io.StringIO(run(capsys, "predict", "words", "--file", source, "--store", world["store"])))
    )
    assert [row["id"] for row in found] == ["7", "3", "9"]
    assert [row["text"] for row in found] == ['the "old", lion bear wolf', "pear plum apple", "drill saw drill today"]
    assert [row["score"] for row in found] == ["x", "", "z"]
    assert [row["prediction"] for row in found] == ["beast", "fruit", "tool"]
    assert all(0 < float(row["predicted_score"]) <= 1 for row in found)


def test_predict_takes_rows_of_json_that_differ_and_loses_no_column(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    rows: list[dict[str, Any]] = [
        {"text": "lion bear wolf", "prediction": "a", "predicted_prediction": "b"},
        {"text": "pear plum apple", "more": {"x": [1, None]}},
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(
        csv.DictReader(io.StringIO(run(capsys, "predict", "words", "--file", source, "--store", world["store"])))
    )
    assert [row["prediction"] for row in found] == ["a", ""]
    assert [row["predicted_prediction"] for row in found] == ["b", ""]
    assert [row["predicted_predicted_prediction"] for row in found] == ["beast", "fruit"]
    assert [row["more"] for row in found] == ["", '{"x": [1, null]}']


def test_predict_refuses_a_cell_that_is_no_text(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "lion"}\n{"text": {"inner": "lion"}}\n')
    assert main(["predict", "words", "--file", str(source), "--store", str(world["store"])]) == 1
    assert "row 2 of" in capsys.readouterr().err


def test_stdin_is_read_in_the_encoding_asked_for(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stdin() -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("caf\xe9 lion\n".encode("latin-1"))))

    args = ["predict", "words", "-", "--store", str(world["store"]), "--format", "csv"]
    stdin()
    assert "café lion" in run(capsys, *args, "--encoding", "latin-1")
    stdin()
    assert main(args) == 1
    assert "--encoding" in capsys.readouterr().err


def test_a_file_where_texts_are_expected_is_not_answered_as_a_text(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", "words", str(world["data"]), "--store", str(world["store"])]) == 2
    told = capsys.readouterr().err
    assert f"'{world['data']}' is a file." in told
    assert f"adaptree predict words --file {world['data']}" in told
    assert run(capsys, "predict", "words", "no-such-file.csv", "x" * 5000, "--store", world["store"])


@pytest.mark.parametrize("words", [["check", "data"], ["methods"], ["experiment"], ["list"], ["history", "words"]])
def test_every_command_takes_a_store_and_can_be_quiet(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    base = ["--base", world["base"]] if words[0] in ("check", "methods") else []
    named = [str(world["data"]) if word == "data" else word for word in words]
    assert run(capsys, *named, *base, "--store", world["store"], "--quiet")


def test_min_score_abstains(world: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "predict", "words", "lion", "--min-score", "1", "--store", world["store"], "--format", "jsonl")
    found = json.loads(out)
    assert found["label"] is None
    assert 0 < found["score"] < 1


def test_pairs_are_trained_and_predicted(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "pairs.jsonl"
    with data.open("w") as file:
        for i in range(60):
            a, b = FILLER[i % len(FILLER)], FILLER[(i * 7 + i % 2) % len(FILLER)]
            file.write(json.dumps({"text_a": f"{a} {i % 4}", "text_b": b, "label": int(a == b)}) + "\n")
    common = ["--base", world["base"], "--store", tmp_path / "store"]
    run(capsys, "train", data, "--name", "pairs", "--epochs", "1", *common, "-q")
    found = json.loads(run(capsys, "predict", "pairs", "the lion\tthe", *common, "--format", "jsonl"))
    assert found["label"] in (0, 1)
    assert set(found["scores"]) == {"0", "1"}
    assert main(["predict", "pairs", "the lion", *map(str, common)]) == 2
    assert "tab" in capsys.readouterr().err
    rows = run(capsys, "predict", "pairs", "--file", data, *common, "--format", "jsonl").splitlines()
    assert len(rows) == 60
    assert json.loads(run(capsys, "evaluate", "pairs", data, *common, "--format", "json"))["rows"] == 60


def test_numbers_are_regressed(world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "numbers.csv"
    rows = [f"{a} {b},{10 + i + j / 10:.1f}" for i, a in enumerate(FILLER) for j, b in enumerate(FILLER[:6])]
    data.write_text("text,label\n" + "\n".join(rows) + "\n")
    common = ["--base", world["base"], "--store", tmp_path / "store"]
    out = run(capsys, "train", data, "--name", "numbers", "--epochs", "8", "--lr", "0.01", *common, "--format", "json")
    found = json.loads(out)
    assert found["kind"] == "regress"
    assert {"pearson", "spearman"} <= set(found["metrics"]["validation"])
    value = json.loads(run(capsys, "predict", "numbers", "the old", *common, "--format", "jsonl"))["value"]
    assert 5 < value < 30
    assert "trained" in run(capsys, "show", "numbers", *common[2:])


def test_list_show_history_remove(world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", tmp_path / "store"]
    for name in ("lang/qu", "words", "words"):
        run(capsys, "train", world["data"], "--name", name, "--epochs", "1", "--base", world["base"], *store, "-q")
    assert [row["name"] for row in json.loads(run(capsys, "list", *store, "--format", "json"))] == ["lang/qu", "words"]
    assert "words@2" in run(capsys, "list", *store)
    assert "# words@1" in run(capsys, "show", "words@1", *store)
    assert json.loads(run(capsys, "show", "words", *store, "--format", "json"))["version"] == 2
    run(capsys, "remove", "words@1", *store)
    assert [row["version"] for row in json.loads(run(capsys, "history", "words", *store, "--format", "json"))] == [2]
    run(capsys, "remove", "lang/qu", *store)
    assert [row["name"] for row in json.loads(run(capsys, "list", *store, "--format", "json"))] == ["words"]


def test_check_tells_what_train_would_do(world: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "check", world["data"], "--base", world["base"])
    for part in ("240 rows", "classify", "fruit", "192 rows to train on and 48 to validate"):
        assert part in out
    found = json.loads(run(capsys, "check", world["data"], "--base", world["base"], "--format", "json"))
    assert found["rows"] == 240
    assert found["train_rows"] == 192


def test_tensorboard_gets_the_curves(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["--epochs", "1", "--base", world["base"], "--store", tmp_path / "s", "--tensorboard", tmp_path / "board"]
    run(capsys, "train", world["data"], "--name", "curves", *args, "-q")
    assert list((tmp_path / "board").glob("events.out.tfevents.*"))


def _background(world: dict[str, Path], store: Path, *more: str) -> subprocess.Popen[str]:
    args = ["train", str(world["data"]), "--name", "long", "--epochs", "400", "--patience", "400", "--threads", "1"]
    args += ["--base", str(world["base"]), "--store", str(store), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "adaptree", *args],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell that starts us in the background has us ignore Ctrl-C, and so would our child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _wait_for_epoch(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch"):
            return line
    raise AssertionError("the run ended before an epoch was done")


@pytest.mark.slow
def test_ctrl_c_keeps_the_best_so_far_and_says_how_to_resume(world: dict[str, Path], tmp_path: Path) -> None:
    process = _background(world, tmp_path)
    _wait_for_epoch(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert "--resume" in err
    assert "long@1" in out
    assert (tmp_path / "runs" / "long" / "checkpoint.safetensors").exists()
    process = _background(world, tmp_path, "--resume")
    first = _wait_for_epoch(process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert int(first.split()[1].split("/")[0]) > 1, "the resumed run began again"
    assert "version 2" in err


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.05, 0.5, 0.8, 2.0])
def test_ctrl_c_at_any_moment_is_one_line(world: dict[str, Path], tmp_path: Path, after: float) -> None:
    process = _background(world, tmp_path)
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGINT), err
    early = ("Could not import runpy", "Fatal Python error: init")  # Python itself, before our first line
    if process.returncode == 1 and not any(words in err for words in early):
        assert "Traceback" not in err
        assert err.count("✘") == 1


@pytest.mark.slow
def test_resuming_with_other_settings_is_refused(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = _background(world, tmp_path)
    _wait_for_epoch(process)
    while not (tmp_path / "runs" / "long" / "checkpoint.safetensors").exists():
        time.sleep(0.01)
    process.kill()
    process.communicate()
    args: list[Any] = [
        "train",
        world["data"],
        "--name",
        "long",
        "--base",
        world["base"],
        "--store",
        tmp_path,
        "--resume",
    ]
    assert main([str(word) for word in args]) == 1
    assert "other data or settings" in capsys.readouterr().err


def test_resuming_what_never_ran_starts_afresh_and_says_so(
    world: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args: list[Any] = [
        "train",
        world["data"],
        "--name",
        "new",
        "--base",
        world["base"],
        "--store",
        tmp_path,
        "--resume",
        "--epochs",
        "1",
    ]
    assert main([str(word) for word in args]) == 0
    done = capsys.readouterr()
    assert "note: nothing was saved of a run 'new' to resume: it starts from the beginning.\n" in done.err
    assert "new@1" in done.out


@pytest.mark.slow
def test_output_into_a_closed_pipe_is_no_error(world: dict[str, Path]) -> None:
    command = f"{sys.executable} -m adaptree predict words --file {world['data']} --store {world['store']} | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env={**os.environ}, check=True)
    assert done.stdout.startswith("text,label,prediction")
    assert done.stderr == ""
