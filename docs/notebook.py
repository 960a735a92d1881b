"""Write docs/tutorial.ipynb from docs/tutorial.md, so that the two cannot drift apart: python docs/notebook.py

Python blocks become code cells, commands become `!` lines, a data file that the page shows becomes a %%writefile
cell, and the outputs that the page shows are left out.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`([\w-]+\.csv)`")


def notebook(page: str) -> dict[str, Any]:
    """Return the notebook of a Markdown page."""
    cells: list[dict[str, Any]] = []
    prose, last = "", 0
    for block in FENCE.finditer(page):
        prose += page[last : block.start()]
        last = block.end()
        if block.group(1) == "output":  # the notebook has its own
            continue
        source = _code(block.group(1), block.group(2), prose)
        if source is None:  # shown, not run: such as the installation
            prose += block.group(0)
            continue
        cells += [_cell("markdown", prose), _cell("code", source)] if prose.strip() else [_cell("code", source)]
        prose = ""
    cells.append(_cell("markdown", prose + page[last:]))
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(cells, 1)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _code(language: str, body: str, before: str) -> str | None:
    if language == "python":
        return body
    if language == "sh" and body.startswith("adaptree"):
        return "".join(f"!{line}\n" for line in body.splitlines())
    if language == "csv":
        return f"%%writefile {FILE.findall(before)[-1]}\n{body}"
    return None


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell = {"cell_type": kind, "metadata": {}, "source": text.strip("\n").splitlines(keepends=True)}
    return {**cell, "execution_count": None, "outputs": []} if kind == "code" else cell


def text() -> str:
    """Return the tutorial's notebook as the file holds it."""
    made = notebook((HERE / "tutorial.md").read_text(encoding="utf-8"))
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (HERE / "tutorial.ipynb").write_text(text(), encoding="utf-8")
