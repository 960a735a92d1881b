"""`adaptree list`: which tasks, in which order, and how many at once."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.store.test_local import task

from adaptree.cli import main, show
from adaptree.cli.show import Format, emit
from adaptree.cli.tasks import PAGE
from adaptree.methods.lora import Lora
from adaptree.tasks.store import Store

List = Callable[..., tuple[list[str], str]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Sixty tasks, and some that differ."""
    store = Store(tmp_path_factory.mktemp("list") / "store")
    for i in range(60):
        store.add(task(f"task-{i:02}"))
    different: dict[str, dict[str, Any]] = {
        "lang/de": {"kind": "mlm", "metrics": {"test": {"perplexity": 9.0}}, "settings": {"metric": "perplexity"}},
        "lang/qu": {"kind": "mlm", "metrics": {"test": {"perplexity": 5.0}}, "settings": {"metric": "perplexity"}},
        "best": {"metrics": {"test": {"accuracy": 0.99}}, "created": "2020-01-01T00:00:00+00:00"},
        "new": {"method": str(Lora(rank=4)), "created": "2099-01-01T00:00:00+00:00"},
        "other": {"base": {"name": "mpnet", "fingerprint": "abcdef0123456789"}, "metrics": {}},
    }
    for name, values in different.items():
        store.add(task(name, **values))
    store.add(task("best", metrics={"test": {"accuracy": 0.98}}))
    store.write_beside("best", "stable.tag", "1")
    return store


@pytest.fixture
def listed(store: Store, capsys: pytest.CaptureFixture[str]) -> List:
    """Run `adaptree list --format json`: the names, and what is said beside them."""

    def run(*words: str, code: int = 0) -> tuple[list[str], str]:
        assert main(["list", *words, "--store", str(store.path), "--format", "json"]) == code
        out, err = capsys.readouterr()
        return [f"{row['name']}@{row['version']}" for row in json.loads(out or "[]")], err

    return run


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lang"], ["lang/de@1", "lang/qu@1"]),
        (["lang/*"], ["lang/de@1", "lang/qu@1"]),
        (["*/q?"], ["lang/qu@1"]),
        (["task-5"], [f"task-5{i}@1" for i in range(10)]),
        (["--kind", "mlm"], ["lang/de@1", "lang/qu@1"]),
        (["--base", "mpnet"], ["other@1"]),
        (["--base", "abcdef01"], ["other@1"]),
        (["--method", "lora"], ["new@1"]),
        (["--method", "lora:4"], ["new@1"]),
        (["--method", "houlsby", "--kind", "mlm", "de"], ["lang/de@1"]),
        (["--tag", "stable"], ["best@1"]),
        (["--tag", "nightly"], []),
        (["--limit", "2"], ["best@2", "lang/de@1"]),
        (["--limit", "2", "--offset", "1"], ["lang/de@1", "lang/qu@1"]),
        (["--limit", "2", "--page", "2"], ["lang/qu@1", "new@1"]),
        (["--sort", "age", "--limit", "1"], ["new@1"]),
        (["--sort", "score", "--limit", "1"], ["best@2"]),
        (["--sort", "size", "--limit", "1"], ["best@2"]),
    ],
)
def test_what_is_listed(listed: List, words: list[str], expected: list[str]) -> None:
    assert listed(*words)[0] == expected


def test_scores_come_best_first_errors_after_them_and_none_last(listed: List) -> None:
    assert listed("--sort", "score")[0][-3:] == ["lang/qu@1", "lang/de@1", "other@1"]


def test_a_pipe_gets_all_and_pages_together_are_all(listed: List) -> None:
    every, said = listed()
    assert len(every) == 65
    assert said == ""
    pages = [listed("--page", str(number)) for number in (1, 2)]
    assert pages[0][0] + pages[1][0] == every
    assert pages[0][1] == "1 to 50 of 65 tasks.  The next: --page 2\n"
    assert pages[1][1] == ""
    assert listed("--limit", "3", "--offset", "3")[1] == "4 to 6 of 65 tasks.  The next: --limit 3 --offset 6\n"
    assert listed("--page", "3") == ([], "none of 65 tasks is shown: 65 match.  adaptree list\n")
    assert listed("zebra") == ([], "none of 65 tasks is shown: 0 match.  adaptree list\n")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--page", "2", "--offset", "1"], "--page and --offset cannot be used together"),
        (["--page", "0"], "--page"),
        (["--limit", "0"], "--limit"),
        (["--sort", "mood"], "--sort"),
        (["--method", "houlsby:x"], "houlsby"),
    ],
)
def test_wrong_usage(listed: List, words: list[str], expected: str) -> None:
    assert expected in listed(*words, code=2)[1]


def test_an_index_that_is_not_there_is_one_line(listed: List) -> None:
    said = listed("--index", "postgresql://me@127.0.0.1:9/db", code=1)[1]
    assert said.startswith("✘ the index postgresql://me@127.0.0.1:9/db cannot be used: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("columns", [150, 80])
def test_a_terminal_gets_a_page_aligned_and_is_told_how_to_see_more(store: Store, columns: int) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "adaptree", "list", "--store", str(store.path)]
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment) as child:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert child.returncode == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).replace("\r", "").splitlines()
    rows = [line for line in lines if re.search(r"@\d", line)]
    assert len(rows) == PAGE
    assert len({row.index("houlsby") for row in rows if "houlsby" in row}) == 1
    assert max(map(len, lines)) <= columns
    assert ("created" in lines[1]) == (columns == 150)
    assert lines[-1] == "1 to 50 of 65 tasks.  The next: --limit 50 --offset 50"


def test_tags_are_a_column_where_there_are_any(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--tag", "stable", "--store", str(store.path)]) == 0
    assert "stable" in capsys.readouterr().out
    assert main(["list", "task", "--store", str(store.path)]) == 0
    assert "tags" not in capsys.readouterr().out


def test_a_table_in_a_pipe_is_printed_as_rich_would(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"name": "a" * i, "score": i / 3 if i else None, "日本": "新" * i, "x": "\x1b[31m\n" * (i % 2)}
        for i in range(9)
    ]
    emit(rows, Format.table, {"name": "task", "score": "score", "日本": "日本", "x": "[b]x[/b]"})
    plain = capsys.readouterr().out
    monkeypatch.setattr(show, "_print_plain", lambda *parts: False)
    emit(rows, Format.table, {"name": "task", "score": "score", "日本": "日本", "x": "[b]x[/b]"})
    assert capsys.readouterr().out == plain
    monkeypatch.undo()
    emit([{"wide": "word " * 40}], Format.table)
    assert len(capsys.readouterr().out.splitlines()) > 5, "what is too wide is folded"
