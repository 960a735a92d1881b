"""The committed pages of experiments say what their committed cells say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from adaptree.analysis import experiments
from adaptree.analysis.experiments import ledger

RESULTS = Path(__file__).parents[1] / "results"
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


def test_there_are_pages_to_compare() -> None:
    assert FOLDERS
