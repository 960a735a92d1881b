"""What all tests share: one thread, so that bits and times do not depend on the machine's other work."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import settings

# Set before torch is imported, and inherited by the commands that tests start; CI may say otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("adaptree", deadline=None)
settings.load_profile("adaptree")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A comparison's cells run in this process, which is fast; their methods are listed as they run."""
    from adaptree.analysis.compare import cells

    found: list[str] = []

    def run(path: Path) -> None:
        found.append(json.loads(path.read_text())["asked"]["method"])
        cells.run_cell(path)

    monkeypatch.setattr(cells, "_run", run)
    return found


@pytest.fixture(autouse=True)
def few_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save tasks without drawing their figures, which takes longer than to train on a tiny base.

    Tests of the figures themselves carry the mark `figures`; commands in processes of their own draw always.
    """
    if request.node.get_closest_marker("figures") is None:
        monkeypatch.setattr("adaptree.reports.figures.figures", lambda record: {})
