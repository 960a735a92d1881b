"""Bad input is answered by one line that says what to do; nothing is lost and nothing half-written is left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bases import FILLER, WORDS, tiny_base, words_csv

from adaptree.cli import main

Run = Callable[..., str]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def fails(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command that cannot be done: its one line, after checks that hold for all of them."""

    def run(*words: object, code: int = 1, needs_base: bool = True) -> str:
        store = tmp_path / "store"
        before = sorted(store.rglob("*")) if store.exists() else []
        args = [str(word) for word in words] + (["--base", str(base)] if needs_base else []) + ["--store", str(store)]
        assert main(args) == code
        out, err = capsys.readouterr()
        lines = [line for line in err.strip().splitlines() if line.startswith("✘")]
        assert len(lines) == 1, err
        assert "Traceback" not in err
        assert out == ""
        after = sorted(p for p in store.rglob("*") if p.is_file()) if store.exists() else []
        assert [p for p in after if p not in before and p.suffix in (".safetensors", ".json")] == []
        return lines[0]

    return run


def train(data: object, *more: object) -> list[object]:
    return ["train", data, "--name", "words", "--epochs", "1", *more]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.csv", "", ["empty"]),
        ("header.csv", "text,label\n", ["header.csv"]),
        ("one.csv", "text,label\na b,x\nb c,x\nc d,x\n", ["only one label", "'x'"]),
        ("few.csv", "text,label\na b,x\nb\n", ["row 3", "2", "1"]),
        ("broken.jsonl", '{"text": "a", "label": "x"}\n{"text": "b", \n', ["2"]),
        ("latin.csv", "text,label\ncaf\xe9,x\nb,y\n".encode("latin-1"), ["0xe9", "--encoding"]),
        ("nan.csv", "text,label\na,1.5\nb,nan\nc,2.5\n", ["row 3", "nan"]),
        ("inf.jsonl", '{"text": "a", "label": 1.5}\n{"text": "b", "label": Infinity}\n', ["row 2"]),
        ("odd.xls", "text", [".csv"]),
        ("odd.xlsx", "text", ["no Excel workbook"]),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong_in_it(
    fails: Run, tmp_path: Path, name: str, content: str | bytes, expected: list[str]
) -> None:
    said = fails(*train(write(tmp_path / name, content)))
    for part in expected:
        assert part in said
    assert name in said or "row" in said


def test_a_missing_file_offers_a_near_name(fails: Run, tmp_path: Path) -> None:
    words_csv(tmp_path / "words.csv")
    assert "words.csv" in fails(*train(tmp_path / "wrods.csv"))


def test_a_folder_is_not_a_file(fails: Run, tmp_path: Path) -> None:
    words_csv(tmp_path / "words.csv")
    said = fails(*train(tmp_path))
    assert "folder" in said
    assert "words.csv" in said


def test_a_missing_column_offers_a_near_name(fails: Run, tmp_path: Path) -> None:
    said = fails(*train(words_csv(tmp_path / "words.csv"), "--label", "lable"))
    assert "'lable'" in said
    assert "label" in said.replace("lable", "")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--method", "hulsby"], "houlsby"),
        (["--method", "houlsby:0"], "size"),
        (["--size", "0"], "size"),
        (["--method", "houlsby(sise=8)"], "size"),
        (["--method", "houlsby(activation=gleu)"], "gelu"),
        (["--lr", "-1"], "lr"),
        (["--lr", "nan"], "lr"),
        (["--epochs", "0"], "epochs"),
        (["--batch-size", "0"], "batch_size"),
        (["--layers", "5-9"], "layers 0-1"),
        (["--layers", "top:7"], "layers 0-1"),
        (["--layers", "some"], "top:2"),
        (["--metric", "acuracy"], "accuracy"),
        (["--kind", "clasify"], "classify"),
        (["--pooling", "max"], "mean"),
        (["--max-length", "100000"], "64"),
        (["--name", "My Task"], "my-task"),
        (["--device", "cuda:7"], "--device cpu"),
        (["--seed", "99999999999999999999"], "2**63"),
        (["--unknown"], "--help"),
        (["--threads", "0"], "threads must be a whole number of at least 1"),
    ],
)
def test_wrong_usage_says_the_rule(fails: Run, tmp_path: Path, options: list[str], expected: str) -> None:
    said = fails(*train(words_csv(tmp_path / "words.csv"), *options), code=2)
    assert expected in said


def test_a_base_that_is_nowhere_says_which_ways_to_try(
    fails: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = fails(*train(words_csv(tmp_path / "words.csv")), "--base", tmp_path / "nowhere", needs_base=False)
    assert "minilm" in said
    assert "folder" in said


@pytest.mark.parametrize("damage", ["model.safetensors", "tokenizer.json", "config.json", "1_Pooling/config.json"])
def test_a_damaged_base_is_named(fails: Run, tmp_path: Path, damage: str) -> None:
    folder = tiny_base(tmp_path / "hurt")
    (folder / damage).parent.mkdir(exist_ok=True)
    write(folder / damage, "{oops")
    said = fails(*train(words_csv(tmp_path / "words.csv")), "--base", folder, needs_base=False)
    assert "hurt" in said
    assert "unexpected" not in said


def test_a_folder_that_is_no_model_is_refused(fails: Run, tmp_path: Path) -> None:
    (tmp_path / "stuff").mkdir()
    said = fails(*train(words_csv(tmp_path / "words.csv")), "--base", tmp_path / "stuff", needs_base=False)
    assert "config.json" in said


@pytest.fixture
def stored(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A store with two small tasks, 'fruit' and 'tools'."""
    store, data = tmp_path / "store", words_csv(tmp_path / "words.csv")
    for name in ("fruit", "tools"):
        args = [
            "train",
            data,
            "--name",
            name,
            "--epochs",
            "1",
            "--size",
            "4",
            "--base",
            base,
            "--store",
            store,
            "--quiet",
        ]
        assert main([str(word) for word in args]) == 0
    capsys.readouterr()
    return store


def test_an_unknown_task_offers_a_near_name(fails: Run, stored: Path) -> None:
    said = fails("predict", "friut", "apple")
    assert "'fruit'" in said


def test_an_unknown_version_is_not_the_newest(fails: Run, stored: Path) -> None:
    assert "2" in fails("predict", "fruit@2", "apple")


@pytest.mark.parametrize("file", ["task.safetensors", "task.json"])
@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_a_damaged_task_is_named_and_the_others_still_work(
    fails: Run, stored: Path, base: Path, capsys: pytest.CaptureFixture[str], file: str, damage: str
) -> None:
    path = stored / "tasks" / "fruit" / "1" / file
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 1
    path.write_bytes(data)
    said = fails("predict", "fruit", "apple")
    assert "fruit" in said
    assert file in said
    assert main(["predict", "tools", "apple", "--store", str(stored), "--format", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["label"]
    assert main(["list", "--store", str(stored), "--format", "json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(listed) == {"fruit", "tools"}
    assert not listed["tools"]["problem"]


def test_a_task_of_another_base_is_refused(fails: Run, stored: Path, tmp_path: Path) -> None:
    other = tiny_base(tmp_path / "other", seed=1)
    assert "another base" in fails("predict", "fruit", "apple", "--base", other, needs_base=False)


def test_training_onto_a_name_makes_a_new_version_and_says_so(
    stored: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {p: p.read_bytes() for p in (stored / "tasks" / "fruit" / "1").iterdir()}
    args = ["train", tmp_path / "words.csv", "--name", "fruit", "--epochs", "1", "--base", base, "--store", stored]
    assert main([str(word) for word in args]) == 0
    assert "version 2" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in (stored / "tasks" / "fruit" / "1").iterdir()} == before
    assert main(["history", "fruit", "--store", str(stored), "--format", "json"]) == 0
    assert [row["version"] for row in json.loads(capsys.readouterr().out)] == [1, 2]


@pytest.mark.parametrize("command", [["list"], ["history", "x"], ["predict", "x", "a text"]])
def test_a_file_given_as_the_store_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    data = words_csv(tmp_path / "words.csv")
    assert main([*command, "--store", str(data)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"✘ '{data}' is a file, not a store.  Name its folder: --store DIR, or ADAPTREE_STORE\n"


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        (["--class-weights", "--label", "number"], "--class-weights"),
        (["--windows", "--text-pair", "other"], "--windows"),
        (["--fast", "--layers", "top:1"], "--layers"),
        (["--max-length", "500"], "--max-length 64"),
        (["--pooling", "zzz"], "--pooling mean, first, last"),
        (["--kind", "zzz"], "--kind answer"),
    ],
)
def test_a_hint_names_the_flag(fails: Run, tmp_path: Path, options: list[str], flag: str) -> None:
    lines = [
        f"the {word},old {word},{label},{i}.5\n" for label, of in WORDS.items() for i, word in enumerate(of.split())
    ]
    data = write(tmp_path / "words.csv", f"text,other,label,number\n{''.join(lines)}")
    said = fails(
        *train(data, *options, "--text", "text"), *([] if "--label" in options else ["--label", "label"]), code=2
    )
    assert flag in said


def test_check_says_by_which_flag_long_texts_are_read(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(f"{'apple ' * 90},{'x' * i},{'ab'[i % 2]}\n" for i in range(1, 21))
    data = write(tmp_path / "long.csv", f"text,more,label\n{rows}")
    common = ["--text", "text", "--label", "label", "--base", str(base)]
    assert main(["check", str(data), *common]) == 0
    out = capsys.readouterr().out
    assert "longer than 64 tokens (--max-length) and would be cut" in out
    assert "Read them whole with --windows, or shorten the texts." in " ".join(out.split())
    assert main(["check", str(data), *common, "--max-length", "32"]) == 0
    assert "Raise it, or read them whole with --windows, or shorten" in " ".join(capsys.readouterr().out.split())
    assert main(["check", str(data), *common, "--text-pair", "more"]) == 0
    assert "--windows" not in capsys.readouterr().out


def test_a_store_that_cannot_be_written_is_said_before_training(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = words_csv(tmp_path / "words.csv")
    for store in (data / "store", Path("/proc/adaptree")):  # below a file; where not even root may write
        args = [*train(data), "--base", base, "--store", store]
        assert main([str(word) for word in args]) == 1
        err = capsys.readouterr().err
        assert str(store) in err
        assert "--store" in err
        assert "epoch " not in err


def test_a_full_disk_is_said_and_leaves_nothing(fails: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def full(at: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("adaptree.training.checkpoint.os.fsync", full)
    said = fails(*train(words_csv(tmp_path / "words.csv")))
    assert "No space left" in said


def test_a_text_that_is_cut_is_counted_and_said(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = words_csv(tmp_path / "words.csv")
    with data.open("a") as file:
        file.write(f"{'apple ' * 500},fruit\n{'saw ' * 300},tool\n")
    args = ["train", data, "--name", "long", "--epochs", "1", "--base", base, "--store", tmp_path / "store"]
    assert main([str(word) for word in args]) == 0
    assert "2 texts are longer than 64 tokens" in capsys.readouterr().err


def test_a_regression_has_no_score_to_abstain_by(
    fails: Run, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "numbers.csv"
    rows = [f"{a} {b},{i * j / 7:.3f}" for i, a in enumerate(FILLER) for j, b in enumerate(FILLER[:4])]
    data.write_text("text,label\n" + "\n".join(rows) + "\n")
    args = ["train", data, "--name", "numbers", "--epochs", "1", "--base", base, "--store", tmp_path / "store", "-q"]
    assert main([str(word) for word in args]) == 0
    capsys.readouterr()
    assert "score" in fails("predict", "numbers", "apple", "--min-score", "0.5", code=2)
