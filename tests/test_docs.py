"""Every code block of the README and of docs/ runs, and what they name exists.

A page is one story: its blocks run in order, in one folder with one store, Python blocks in one namespace. What a fence
is called says what is done with it:

    python, sh                  run
    csv, jsonl, text, toml      data that the page shows: written to a file if one is named before it
    output                      what the block before it printed, with numbers that may differ
    py title="LIBRARY VERSION"  another library's code: not run, as the library is not installed; it must parse

Any other fence is an error, so that no block is skipped by accident.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import os
import re
import shlex
import sys
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import adaptree
from adaptree.analysis import demo
from adaptree.cli import main
from adaptree.models import known
from tests.bases import writing_base

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
GENERATED = {DOCS / "reference" / "commands.md", DOCS / "reference" / "api.md"}
"""Pages that the site's build writes."""
RUN, DATA = {"python", "sh"}, {"csv", "jsonl", "text", "toml"}
FOREIGN = re.compile(r'py title="(adapters|openai|peft|SetFit) \d+\.\d+"')
QUICK = ("README", "tutorial", "few-labels", "kinds", "methods")
"""Pages whose blocks `make test` runs; `make test-slow` runs the others."""
FENCE = re.compile(r"^([ \t]*)```([^\n`]*)\n(.*?)^\1```[ \t]*$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w-]+\.(?:csv|jsonl|conll|txt|toml))`")


def brief(code: str) -> str:
    """Return commands that train for one epoch: what is tested is that they run, not how well they learn."""
    return re.sub(r"--epochs \d+", "--epochs 1", code)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: what follows the three ticks, its text, and its first line's number."""

    info: str
    code: str
    line: int
    before: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            found.group(2).strip(),
            textwrap.dedent(found.group(3)),
            text[: found.start(3)].count("\n"),
            text[: found.start()],
        )
        for found in FENCE.finditer(text)
    ]


def module(name: str) -> ModuleType:
    """A script of docs/, imported."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the pages speak of, cut short; training is, too: what counts is that blocks run."""
    monkeypatch.setattr("adaptree.training.settings.default_epochs", lambda rows: 1)
    monkeypatch.setattr("adaptree.training.contrastive.STEPS", 2)
    monkeypatch.setattr("adaptree.training.contrastive.PASSES", 1)
    monkeypatch.setattr("adaptree.analysis.ablate.ROUNDS", 1)
    for name in ("reviews", "tickets"):
        training, test = demo.data(name)
        for source, target, rows in ((training, f"{name}.csv", 40), (test, f"{name}-test.csv", 20)):
            with source.open(newline="") as file, (tmp_path / target).open("w", newline="") as out:
                csv.writer(out).writerows(row for i, row in enumerate(csv.reader(file)) if i <= rows)
    for page in PAGES:
        for block in blocks(page):
            if block.language in DATA and (names := FILE.findall(block.before)):
                (tmp_path / names[-1]).write_text(block.code)
    (tmp_path / "test.csv").write_text((tmp_path / "reviews-test.csv").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAPTREE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("ADAPTREE_KEYS", str(tmp_path / "keys"))
    return tmp_path


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    text = page.read_text()
    assert text.count("```") == 2 * len(blocks(page)), f"{page.name}: a fence that this test does not see"
    for before, block in zip([None, *blocks(page)], blocks(page), strict=False):
        if block.language == "output":
            assert before is not None
            assert before.language in RUN, f"{page.name}:{block.line}: the output of what?"
        elif block.language == "py":
            assert FOREIGN.fullmatch(block.info), f"{page.name}:{block.line}: py is for other libraries, with a title"
            compile(block.code, page.name, "exec")
        else:
            assert block.language in RUN | DATA, f"{page.name}:{block.line}: who runs '{block.info}'?"
    outside = FENCE.sub("", text)
    hidden = re.findall(r"^(?: {4}|\t)(?:adaptree|pip|make|import|from \w+ import) .*", outside, re.MULTILINE)
    assert not hidden, f"{page.name}: {hidden[0].strip()} is not in a fence"


@pytest.mark.real
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page.stem not in QUICK), id=named(page))
        for page in PAGES
        if RUN & {block.language for block in blocks(page)}
    ],
)
def test_the_blocks_of_a_page_run(
    page: Path, workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    if page.stem in ("generate", "serve-generation"):  # a tiny language model stands in for the real one
        monkeypatch.setenv("ADAPTREE_CACHE", str(workplace / "cache"))
        writing_base(known.SMOLLM.folder)
    for block in blocks(page):
        if block.language == "python":
            exec(compile("\n" * block.line + block.code, str(page), "exec", dont_inherit=True), names)
        elif block.language == "sh":
            for number, line in enumerate(brief(block.code).splitlines(), 1):
                where = f"{page.name}:{block.line + number}: {line}"
                run(shlex.split(line, comments=True), where, capsys)


def run(words: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command of ours; of make and pip, look whether what they are asked for exists."""
    match words:
        case ["adaptree", "bases", "get", name]:
            assert name in known.NAMES, where
        case ["adaptree", *rest]:
            assert main(rest) == 0, f"{where}\n{capsys.readouterr().err}"
        case ["make", target]:
            assert target in re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE), where
        case ["pip", "install", *rest]:
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            for word in rest:
                if extra := re.fullmatch(r"adaptree\[(.+)\]", word):
                    assert extra.group(1) in extras, where
                assert not word.endswith(".txt") or (ROOT / word).exists(), where
        case []:
            pass
        case _:
            pytest.fail(f"who runs '{where}'?")


def test_the_readme_says_how_to_try_and_how_to_test() -> None:
    named = re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert named == ["demo", "test"]


def test_links_and_pictures_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                found = (page.parent / target).resolve()
                assert found.exists() or found in GENERATED, f"{page.name}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]
    for page in [*(page for page in PAGES if DOCS in page.parents), *GENERATED]:
        assert f" {page.relative_to(DOCS)}\n" in nav, page.name


def test_the_reference_has_every_command_and_every_public_name() -> None:
    pages = module("gen_reference")
    commands, api = pages.commands(), pages.api()
    from typer.main import get_command

    from adaptree.cli.app import app

    root: Any = get_command(app)
    for name, command in root.commands.items():
        if not command.hidden and not hasattr(command, "commands"):
            section = commands.partition(f"## `adaptree {name}`")[2].partition("\n## ")[0]
            assert section, name
            for param in command.params:
                if param.param_type_name == "option" and not param.hidden and param.name != "help":
                    assert f"`{param.opts[0]}`" in section, f"{name}: {param.opts[0]}"
    for name in adaptree.__all__:
        assert f"::: adaptree.{name}\n" in api, name


def test_the_notebook_is_the_tutorial() -> None:
    assert (DOCS / "tutorial.ipynb").read_text() == module("notebook").text(), "python docs/notebook.py"


@pytest.mark.slow
@pytest.mark.real
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="the notebook runs with nbclient: pip install 'adaptree[dev]'")
    nbformat = pytest.importorskip("nbformat", reason="the notebook runs with nbformat: pip install 'adaptree[dev]'")
    pytest.importorskip("ipykernel", reason="the notebook runs in ipykernel: pip install 'adaptree[dev]'")
    monkeypatch.setenv("ADAPTREE_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # its processes share the cores with other tests
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    book = nbformat.read(DOCS / "tutorial.ipynb", as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":  # a command that fails is no exception in a notebook
            checked = r"\1\nassert _exit_code == 0"
            cell.source = re.sub(r"^(!.*)$", checked, brief(cell.source), flags=re.MULTILINE)
    done = nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert "tickets" in str([cell.get("outputs") for cell in done.cells])
