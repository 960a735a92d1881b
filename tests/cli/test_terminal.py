"""Nothing that a file holds, or a name, reaches a terminal as an instruction; programs get the true values."""

from __future__ import annotations

import ast
import csv
import io
import json
import os
import pty
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bases import tiny_base, words_csv

from adaptree.analysis.compare import cells
from adaptree.cli import main, show
from adaptree.cli.app import app
from adaptree.cli.show import Format, Progress, column, emit, emit_live, out, say
from adaptree.reports.text import CONTROL, visible
from adaptree.tasks.store import Store

RED, TITLE, C1, BIDI, LINE = "\x1b[31mred\x1b[0m", "\x1b]0;owned\x07", "\x9b31mred", "\u202egnp.exe", "a\nb"
HOSTILE = {"fruit": f"{RED} {BIDI}", "tool": f"{TITLE} {C1}", "beast": f"{LINE}\u2066\x7f"}
COLUMN = f"te{RED}xt"
FILE = f"da{RED}ta`|[x](y)<b>.csv"


def hostile_csv(path: Path, rows: int = 60) -> Path:
    """The words of `words_csv` with escape sequences in texts, labels and the names of columns."""
    plain = words_csv(path.with_name("plain.csv"), rows)
    with path.open("w", newline="", encoding="utf-8") as file, plain.open() as source:
        writer = csv.writer(file)
        writer.writerow([COLUMN, f"la{BIDI}bel"])
        writer.writerows([f"{row['text']} {TITLE}{LINE}", HOSTILE[row["label"]]] for row in csv.DictReader(source))
    return path


COLUMNS = ["--text", COLUMN, "--label", f"la{BIDI}bel"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hostile data, a base with a hostile name, and a store with two tasks 'a' and 'b' of them."""
    root = tmp_path_factory.mktemp("world")
    found = {"base": tiny_base(root / f"ba{RED}se"), "data": hostile_csv(root / FILE), "store": root / "store"}
    for name in "ab":
        args = ["train", found["data"], "--name", name, "--epochs", "2", "--method", "pfeiffer:4", *COLUMNS]
        assert main([str(word) for word in [*args, "--base", found["base"], "--store", found["store"], "-q"]]) == 0
    return found


Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command: all that it prints, after a check that a terminal can take it."""

    def call(*words: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == code
        out, err = capsys.readouterr()
        assert set(CONTROL.findall(out + err)) <= {"\n"}
        return out + err

    return call


@pytest.mark.parametrize("command", ["list", "history", "show", "check", "evaluate", "predict", "suggest", "methods"])
def test_commands_print_no_control_characters(world: dict[str, Path], run: Run, tmp_path: Path, command: str) -> None:
    words: dict[str, list[Any]] = {
        "list": [],
        "history": ["a"],
        "show": ["a"],
        "check": [world["data"], "--base", world["base"], *COLUMNS],
        "evaluate": ["a", world["data"], *COLUMNS],
        "predict": ["a", f"lion {RED}{TITLE}{LINE}", "saw\t\u202esaw"],
        "suggest": [hostile_csv(tmp_path / FILE, 45), "--base", world["base"], *COLUMNS],
        "methods": ["--base", world["base"]],
    }
    said = run(command, *words[command], "--store", world["store"])
    expected = {"check": r"a\nb\u2066\x7f", "predict": r"\x1b[31mred\x1b[0m\x1b]0;owned\x07a\nb", "list": r"\x1b[31m"}
    assert expected.get(command, "") in said


def test_commands_that_keep_send_and_find_tasks_print_no_control_characters(
    world: dict[str, Path], run: Run, tmp_path: Path
) -> None:
    """One after another in a store of their own: each prints a text, a name, a label or a file that is hostile."""
    own = tmp_path / "own"
    shutil.copytree(world["store"], own)
    bundle, other, base = tmp_path / f"a{RED}.adaptree", tmp_path / f"st{RED}{BIDI}ore", ["--base", world["base"]]
    few, files = hostile_csv(tmp_path / FILE, 30), tmp_path / f"fil{RED}es"
    files.mkdir()
    (files / f"a{RED}{LINE}.csv").write_bytes(few.read_bytes())
    (files / f"b{TITLE}.csv").write_text("x")
    commands: list[tuple[list[Any], int]] = [
        (["note", "a", f"looked at {RED}{TITLE}{LINE}"], 0),
        (["history", "a"], 0),
        (["show", "a"], 0),
        (["tag", "a", f"st{RED}"], 2),
        (["search", f"red {C1}"], 0),
        (["diff", "a", "b", "--data", few, *COLUMNS], 0),
        (["verify"], 0),
        (["verify", f"a{RED}"], 2),
        (["export", "a", bundle], 0),
        (["import", bundle, "--as", "c", "--dry-run"], 0),
        (["import", f"no{RED}.adaptree"], 1),
        (["push", "a", other], 0),
        (["pull", other], 0),
        (["pull", tmp_path / f"no{RED}where"], 1),
        (["site", tmp_path / f"si{RED}te"], 0),
        (["rollback", f"a@{RED}"], 1),
        (["ablate", "a", few, *COLUMNS], 0),
        (["explain", "a", f"lion {RED}{TITLE}"], 0),
        (["explain", "a", few, *COLUMNS], 0),
        (["clean", few, "--out", tmp_path / f"cl{RED}ean.csv", *base, *COLUMNS], 0),
        (["stream", files, "--method", "bitfit", "--epochs", "1", *base, *COLUMNS], 1),
        (["keys", "new", f"me{RED}"], 2),
        (["report", tmp_path / f"re{RED}port"], 2),
    ]
    for words, code in commands:
        run(*words, *([] if words[0] in ("clean", "keys", "report") else ["--store", own]), code=code)
    for page in [*(tmp_path / f"si{RED}te").rglob("*.html"), *own.rglob("README.md")]:
        assert set(CONTROL.findall(page.read_text())) <= {"\n"}, page


def test_training_prints_no_control_characters(world: dict[str, Path], run: Run, tmp_path: Path) -> None:
    args = ["--name", "new", "--epochs", "1", "--size", "4", "--base", world["base"], "--store", tmp_path, *COLUMNS]
    said = run("train", world["data"], *args)
    assert r"new: classify (3 labels) from 'te\x1b[31mred\x1b[0mxt' → 'la\u202egnp.exebel'" in said
    assert r"on ba\x1b[31mred\x1b[0mse" in said


def test_unknown_labels_are_spelled_out(world: dict[str, Path], run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    known = str(Store(world["store"])["a"].record.labels[0])
    other.write_text("".join(json.dumps({"text": "lion", "label": label}) + "\n" for label in (RED, known)))
    said = run("evaluate", "a", other, "--text", "text", "--label", "label", "--store", world["store"])
    assert r"'\x1b[31mred\x1b[0m' is no label of this task" in said


def test_a_comparison_prints_and_writes_none(
    world: dict[str, Path], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_run", cells.run_cell)
    args = ["--base", world["base"], "--out", tmp_path / f"out{RED}", "--seeds", "1", "--epochs", "1", *COLUMNS]
    run("compare", world["data"], *args, "--method", "pfeiffer:2", "--method", "pfeiffer(size=2, layers=9)")
    page = (tmp_path / f"out{RED}" / "table.md").read_text()
    assert set(CONTROL.findall(page)) <= {"\n"}
    assert r"\`\|\[x\](y)&lt;b&gt;.csv" in page.splitlines()[0]
    assert "test file" not in page


def test_a_fused_task_is_explained_without_them(world: dict[str, Path], run: Run) -> None:
    store = ["--store", world["store"]]
    run("compose", "fuse(a, b)", "--name", "ab", "--train", world["data"], "--epochs", "1", *COLUMNS, *store)
    run("explain", "ab", f"lion {RED}", *store)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train", f"no{RED}where.csv", "--name", "x"], 1),
        (["train", "x.csv", "--name", f"my{RED}"], 2),
        (["check", "DATA", "--text", f"no{TITLE}"], 1),
        (["show", f"a{RED}"], 2),
        (["predict", f"stack(a, {RED})", "text"], 2),
        (["train", "x.csv", "--name", "x", "--method", f"houlsby(size={C1})"], 2),
        (["train", "x.csv", "--name", "x", "--config", f"no{LINE}.toml"], 2),
        ([f"li{RED}st"], 2),
        (["list", f"--fo{BIDI}"], 2),
        (["list", "--format", f"js{LINE}on"], 2),
        (["list", "--store", f"DATA/{RED}"], 1),
        (["check", "DATA", "--text", f"no{TITLE}", "--debug"], 1),
    ],
)
def test_errors_are_one_line_without_them(world: dict[str, Path], run: Run, words: list[str], code: int) -> None:
    said = run(*[word.replace("DATA", str(world["data"])) for word in words], code=code)
    assert len([line for line in said.splitlines() if line.startswith("✘ ")]) == 1
    assert "--debug" in words or said.count("\n") == 1


def test_a_warning_is_one_line_without_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.command("warns")
    def warns() -> None:
        warnings.simplefilter("always")
        warnings.warn(f"{RED}{LINE}", stacklevel=1)

    try:
        assert main(["warns"]) == 0
    finally:
        app.registered_commands.pop()
    assert capsys.readouterr().err == "note: \\x1b[31mred\\x1b[0ma\\nb\n"


@pytest.mark.parametrize("form", ["csv", "jsonl", "json"])
def test_programs_get_the_true_values(world: dict[str, Path], capsys: pytest.CaptureFixture[str], form: str) -> None:
    assert main(["predict", "a", "--file", str(world["data"]), "--store", str(world["store"]), "--format", form]) == 0
    out = capsys.readouterr().out
    if form == "csv":
        found = list(csv.DictReader(io.StringIO(out, newline="")))
        assert {row["prediction"] for row in found} <= set(HOSTILE.values())
    else:
        assert set(CONTROL.findall(out)) <= {"\n"}  # JSON has escapes for them
        found = json.loads(out) if form == "json" else [json.loads(line) for line in out.split("\n")[:-1]]
        assert set(found[0]["scores"]) == set(HOSTILE.values())
    assert {row[f"la{BIDI}bel"] for row in found} == set(HOSTILE.values())
    assert all(row[COLUMN].endswith(f"{TITLE}{LINE}") for row in found)


def test_csv_on_a_terminal_is_harmless(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    row = {f"x{RED}": RED, "y": {"z": C1}, "n": None, "f": 0.5}
    emit([row], Format.csv)
    assert f"x{RED},y,n,f\n{RED}," in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    emit([row], Format.csv)
    assert capsys.readouterr().out == (
        'x\\x1b[31mred\\x1b[0m,y,n,f\n\\x1b[31mred\\x1b[0m,"{""z"": ""\\u009b31mred""}",,0.5\n'
    )


def test_a_card_is_laid_out_on_a_terminal_and_markdown_in_a_pipe(
    world: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    show = ["show", "a", "--store", str(world["store"])]
    assert main(show) == 0
    piped = capsys.readouterr().out
    assert piped.startswith("---\nlibrary_name: adaptree")
    assert "| trained in head |" in piped
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(show) == 0
    shown = capsys.readouterr().out
    assert "library_name" not in shown
    assert "| ---" not in shown
    assert "trained in head" in shown
    assert RED not in shown
    assert "\x1b]" not in shown
    ends = [line.rstrip() for line in shown.splitlines() if line.strip().startswith("trained in")]
    assert len({len(line) for line in ends}) == 1  # numbers end below each other


def test_numbers_of_a_column_have_the_same_decimals(capsys: pytest.CaptureFixture[str]) -> None:
    assert column([0.5, 12.25, None, 3]) == ["0.5000", "12.2500", "-", "3"]
    assert column([120.26, 4000.5]) == ["120.3", "4,000.5"]
    assert column([True, "x", float("nan")]) == ["yes", "x", "nan"]
    emit([{"size": "9 B", "name": "x"}, {"size": "10.5 KB", "name": "long"}], Format.table)
    first, second = (line for line in capsys.readouterr().out.splitlines() if "B" in line)
    assert first.index("B") == second.index("B")  # the units stand below each other


def test_a_styled_text_is_harmless_too(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.text import Text

    out().print(Text(f"a{RED}", style="bold"), Text(f"b{C1}\nc"))
    assert capsys.readouterr().out == "a\\x1b[31mred\\x1b[0m b\\x9b31mred\nc\n"


def test_commands_print_in_one_place_only() -> None:
    """What is printed elsewhere would not be made harmless."""
    wrong = []
    for path in Path(show.__file__).parent.glob("*.py"):
        called = [
            ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        wrong += [path.name for name in called if name in ("print", "sys.stdout.write", "sys.stderr.write", "Console")]
    assert set(wrong) == {"show.py"}


def test_progress_and_lines_that_come_one_by_one_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress({"event": "note", "text": RED})
    progress({"event": "reading", "name": RED, "rows": 3, "done": True})
    say(TITLE)
    emit_live(iter([{f"a{RED}": LINE, "b": 1}]), Format.table, {})
    out, err = capsys.readouterr()
    assert set(CONTROL.findall(out + err)) == {"\n"}
    assert (out.count("\n"), err.count("\n")) == (2, 3)


@given(st.text())
def test_any_text_is_one_line_and_loses_nothing(text: str) -> None:
    shown = visible(text)
    assert not CONTROL.search(shown)
    assert len(shown.splitlines()) <= 1
    if not CONTROL.search(text):
        assert shown == text


def test_languages_keep_their_letters() -> None:
    for text in ("naïve Ελλάδα 漢字 עברית العربية", "क्\u200dष", "می\u200cخواهم", "👩\u200d🔬"):
        assert visible(text) == text


@pytest.mark.slow
def test_a_real_terminal_gets_none_of_it(world: dict[str, Path], tmp_path: Path) -> None:
    """Train in a pseudo-terminal, with its progress bar: the only escape sequences are the bar's own."""
    leader, follower = pty.openpty()
    args = [sys.executable, "-m", "adaptree", "train", str(world["data"]), "--name", "new", "--epochs", "2", *COLUMNS]
    process = subprocess.Popen(
        [*args, "--size", "4", "--base", str(world["base"]), "--store", str(tmp_path)],
        stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(follower)
    said = b""
    try:
        while more := os.read(leader, 1 << 16):
            said += more
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    assert process.wait(60) == 0, said.decode()
    assert rb"\x1b[31mred" in said
    for text in (RED, TITLE, C1, BIDI):
        assert text.encode() not in said
    assert b"\x1b]" not in said
