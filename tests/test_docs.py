"""Every code block of the README and of docs/ runs, and every command that they name exists."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import adaptree.analysis.demo
from adaptree.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FILE = re.compile(r"`([\w-]+\.(?:csv|jsonl|conll|txt))`")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    return [(page.name, body) for page in PAGES for kind, body in BLOCK.findall(page.read_text()) if kind == language]


def shown(page: str) -> list[tuple[str, str]]:
    """The small files that a page shows: a block of data, and the last file's name before it."""
    found = []
    for block in re.finditer(r"^```(?:csv|jsonl|text)\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if names := FILE.findall(page[: block.start()]):
            found.append((names[-1], block.group(1)))
    return found


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages speak of, cut short."""
    for name in ("reviews", "tickets"):
        training, test = adaptree.analysis.demo.data(name)
        for source, target, rows in ((training, f"{name}.csv", 40), (test, f"{name}-test.csv", 20)):
            with source.open(newline="") as file, (tmp_path / target).open("w", newline="") as out:
                csv.writer(out).writerows(row for i, row in enumerate(csv.reader(file)) if i <= rows)
    for page in PAGES:
        for name, body in shown(page.read_text()):
            (tmp_path / name).write_text(body)
    (tmp_path / "test.csv").write_text((tmp_path / "reviews-test.csv").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTREE_STORE", str(tmp_path / "store"))
    return tmp_path


@pytest.mark.real
@pytest.mark.parametrize(("page", "code"), blocks("python"))
def test_python_blocks_run(page: str, code: str, workplace: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=workplace)
    assert done.returncode == 0, f"{page}:\n{done.stderr}"


@pytest.mark.real
@pytest.mark.parametrize(("page", "code"), blocks("sh"))
def test_shell_blocks_run(page: str, code: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = 0
    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["adaptree"]:
            ran += 1
            assert main(words[1:]) == 0, f"{page}: {line}\n{capsys.readouterr().err}"
        else:
            assert not words or words[0] in ("pip", "make"), f"{page}: who runs '{line}'?"
    assert ran


def test_the_readme_s_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"^ {4}make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert named == {"demo", "test"}
    assert named <= targets


def test_links_and_pictures_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
