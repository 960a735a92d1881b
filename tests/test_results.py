"""The committed pages of experiments say what their committed cells say, and README and docs what the pages say.

What README and docs say of results stands between two comments, the first of which names the pages that it is from:

    <!-- measured: results/lowdata/table.md -->
    … with 8 rows a label 72.9 …
    <!-- /measured -->
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptree.analysis import experiments
from adaptree.analysis.compare import report as comparison
from adaptree.analysis.experiments import ledger

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob(f"*/{ledger.FILE}"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))
def test_a_page_is_what_its_cells_give(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / folder.name
    out.mkdir()
    for name in (ledger.FILE, "table.md"):
        shutil.copy(folder / name, out / name)
    base = next(cell["asked"]["base"] for cell in ledger.read(out))
    name = experiments.made_by(folder).split()[2]
    page = experiments.run(name, Path("nowhere"), out, base=base, redraw=True)
    assert page == (folder / "table.md").read_text()


def test_all_pages_of_experiments_are_compared() -> None:
    pages = {path.parent for path in RESULTS.glob("*/table.md")}
    assert pages == {*FOLDERS, RESULTS / "scale"}, "tests/test_scale.py compares that one"
    assert len(pages) > 10


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*/results.json")), ids=lambda path: "-".join(path.parts[-3:-1]))
def test_the_page_of_a_comparison_is_what_its_results_give(path: Path) -> None:
    assert comparison.markdown(json.loads(path.read_text())) == (path.parent / "table.md").read_text()


DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PASSAGE = re.compile(r"<!-- measured: (?P<pages>[^>]+?) -->(?P<text>.*?)<!-- /measured -->", re.DOTALL)
LINK = re.compile(r"\]\((?:\.\./)*(?P<page>results/[\w/-]+/table\.md)\)")
NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
SMALL = 10
"""Whole numbers below this are counts of things rather than results."""


def plain(text: str) -> str:
    """Return Markdown without bold, code and the targets of links."""
    return re.sub(r"`[^`\n]*`|\]\([^)]*\)|\*\*", " ", text).replace("  ", " ")


def not_in(page: str, passage: str) -> Iterator[str]:
    """Yield what a passage says and the page does not: numbers in its sentences, cells with numbers in its tables."""
    page, lines = plain(page), passage.strip().splitlines()
    known = set(NUMBER.findall(page))
    for i, line in enumerate(lines):
        below = lines[i + 1] if i + 1 < len(lines) else ""
        if not line.startswith("|"):
            for number in NUMBER.findall(plain(line)):
                if number not in known and ("." in number or float(number.replace(",", "")) >= SMALL):
                    yield number
        elif not re.match(r"\|[ :|-]+\|$", line) and not re.match(r"\|[ :|-]+\|$", below):
            for cell in filter(NUMBER.search, map(str.strip, plain(line).strip("|").split("|")[1:])):
                if not re.search(rf"(?<![\d.]){re.escape(cell)}(?!\d|\.\d)", page):
                    yield cell


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_number_that_is_quoted_is_in_the_page_that_it_is_from(path: Path) -> None:
    text = path.read_text()
    for passage in PASSAGE.finditer(text):
        pages = passage["pages"].split(", ")
        found = "\n".join((ROOT / page).read_text() for page in pages)
        assert list(not_in(found, passage["text"])) == [], f"not in {passage['pages']}"
        assert set(LINK.findall(passage["text"])) == set(pages), "a passage links to the pages that it is from"
    outside = PASSAGE.sub("", text)
    assert LINK.findall(outside) == [], "numbers beside a link to results stand between <!-- measured: … --> comments"
    assert "measured -->" not in outside, "a comment without its other half"


def test_a_number_that_a_page_does_not_have_is_found() -> None:
    page = "| task | a | b |\n|---|---|---|\n| x | 71.5 ± 0.3 (3) | **80.1** |\n| y | 12.0 | 3 |"
    assert list(not_in(page, "a has 71.5 and b 80.1, three of 3")) == []
    assert list(not_in(page, "a has 71.4, of 1,200")) == ["71.4", "1,200"]
    table = "| method | a |\n|---|---|\n| x | {} |"
    assert list(not_in(page, table.format("71.5 ± 0.3"))) == []
    assert list(not_in(page, table.format("80.1 ± 0.3"))) == ["80.1 ± 0.3"], "both numbers are there, but apart"
    assert list(not_in(page, table.format("1.5"))) == ["1.5"]
