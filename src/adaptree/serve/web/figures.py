"""Results as data for pictures: comparisons, layer ablations and fusion weights in a folder of results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST_FILES = 2000
LARGEST = 4_000_000
"""Bytes of a file of results."""


@dataclass(frozen=True)
class Point:
    """A method's score and price on some data."""

    method: str
    family: str
    trained: int
    score: float
    spread: float | None = None
    percent: float = 0.0
    seconds: float = 0.0
    name: str = ""
    """The task, where it is a stored one."""


@dataclass(frozen=True)
class Comparison:
    """Methods on the same data, whose scores can be compared."""

    title: str
    metric: str
    points: Sequence[Point]
    where: str = ""


@dataclass(frozen=True)
class Heatmap:
    """Numbers in rows and columns; `change` are differences around zero, else shares."""

    title: str
    note: str
    across: Sequence[str]
    down: Sequence[str]
    cells: Sequence[Sequence[float | None]]
    change: bool

    def shade(self, value: float | None) -> int:
        """Return how strong a cell's colour is, from 0 to 9."""
        known = [abs(each) for row in self.cells for each in row if each is not None]
        most = max(known, default=0.0)
        return 0 if value is None or not most else round(9 * abs(value) / most)


@dataclass(frozen=True)
class Results:
    comparisons: Sequence[Comparison] = ()
    ablations: Sequence[Heatmap] = ()
    fusions: Sequence[Heatmap] = ()


def read(folder: Path) -> Results:
    """Return what can be drawn of a folder of results; files that are something else are left out."""
    comparisons, ablations, fusions = [], [], []
    for where, said in _objects(folder):
        try:
            if isinstance(said.get("methods"), list) and "metric" in said:
                comparisons.append(_comparison(where, said))
            elif "spans" in said and "layers" in said:
                ablations.append(_ablation(said))
            elif {"adapters", "layers", "weights"} <= said.keys():
                fusions.append(_fusion(said))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue
    return Results([each for each in comparisons if each.points], ablations, fusions)


def _objects(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    seen = 0
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in ("cells", "store"))
        for name in sorted(names):
            path = Path(place) / name
            if not name.endswith((".json", ".jsonl")) or seen >= MOST_FILES:
                continue
            seen += 1
            try:
                text = path.read_text("utf-8") if path.stat().st_size <= LARGEST else ""
                read = [json.loads(each) for each in (text.splitlines() if name.endswith(".jsonl") else [text]) if each]
            except (OSError, ValueError, RecursionError):
                continue
            for said in read:
                if isinstance(said, dict):
                    yield str(path.parent.relative_to(folder)), _fused_cell(said) or said


def _fused_cell(said: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what a fusion attends to, with its title, from a cell of `experiment fusion`; None for anything else."""
    asked, found = said.get("asked"), said.get("found")
    if not isinstance(asked, dict) or not isinstance(found, dict) or not isinstance(found.get("attention"), dict):
        return None
    return {**found["attention"], "task": f"{asked.get('task')}, {asked.get('what')}, seed {asked.get('seed')}"}


def _comparison(where: str, said: Mapping[str, Any]) -> Comparison:
    points = []
    for each in said["methods"]:
        scores = each.get("scores") or {}
        part = scores.get("test") or scores.get("validation") or {}
        if isinstance(part.get("mean"), int | float):
            points.append(
                Point(
                    str(each.get("label") or each["method"]), str(each.get("family", "")), int(each["trained"]),
                    float(part["mean"]), part.get("spread"), float(each.get("trained_percent") or 0),
                    float(each.get("seconds") or 0),
                )
            )  # fmt: skip
    return Comparison(str(said.get("title") or where), str(said["metric"]), points, where)


def _ablation(said: Mapping[str, Any]) -> Heatmap:
    layers = [int(layer) for layer in said["layers"]]
    changes = {(int(each["first"]), int(each["last"])): float(each["change"]) for each in said["spans"]}
    cells = [[changes.get((first, last)) for last in layers] for first in layers]
    note = f"{said.get('sentence', '')} First layer removed down, last across; {said.get('unit', 'points')}."
    return Heatmap(str(said["task"]), note, [str(i) for i in layers], [str(i) for i in layers], cells, True)


def _fusion(said: Mapping[str, Any]) -> Heatmap:
    cells = [[float(value) for value in row] for row in said["weights"]]
    names = [str(each) for each in said["adapters"]]
    note = f"How much each adapter counts in each layer; most: {said.get('most', '')}."
    return Heatmap(str(said["task"]), note, names, [f"layer {each}" for each in said["layers"]], cells, False)
