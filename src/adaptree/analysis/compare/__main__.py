"""Run one cell: python -m adaptree.analysis.compare CELL.json"""

from __future__ import annotations

import sys
from pathlib import Path

from adaptree.analysis.compare.cells import run_cell

run_cell(Path(sys.argv[1]))
