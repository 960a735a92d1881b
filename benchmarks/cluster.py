"""What a cell of a comparison costs beyond its training, in processes of this machine and on a Ray cluster of it.

    python -m benchmarks.cluster            # prints JSON; two workers with one thread each

Cells are counted from when each worker has begun its second one: what is before is start-up. A worker's seconds for a
cell are those from one beginning to the next, and `beyond` is what they are more than the cell's own, which it measures
itself from the loading of the base to the task: starting a process, sending the call and its answer, writing it down.
The overhead on Ray is how much more that is than in processes.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from adaptree import api

WORKERS = 2
LABELS = {"animals": "lion wolf otter heron", "tools": "saw drill hammer lathe", "food": "bread soup rice olive"}
HOWS: dict[str, dict[str, Any]] = {"processes": {"jobs": WORKERS}, "ray": {"cluster": "ray"}}


def rows(path: Path, count: int = 120) -> Path:
    """Write a file of labelled texts, which takes a moment to learn."""
    rng = random.Random(0)
    with path.open("w") as file:
        for i in range(count):
            label = list(LABELS)[i % len(LABELS)]
            text = " ".join(rng.choices(f"the a old near {LABELS[label]}".split(), k=rng.randint(4, 12)))
            file.write(json.dumps({"text": text, "label": label}) + "\n")
    return path


def measured(folder: Path, name: str, seeds: int) -> dict[str, float]:
    """Return the seconds of the start-up, and then of a worker for each cell: in all, and beyond the cell's own."""
    begun: list[float] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "cell":
            begun.append(time.perf_counter())

    began = time.perf_counter()
    api.compare(
        rows(folder / "rows.jsonl"), methods=("head",), out=folder / name, seeds=seeds, epochs=(1,),
        threads=1, on_event=on_event, **HOWS[name],
    )  # fmt: skip
    start, cells = begun[WORKERS], len(begun) - 1 - WORKERS
    found = [json.loads(path.read_text())["found"]["wall_seconds"] for path in (folder / name / "cells").glob("*.json")]
    per_cell, own = WORKERS * (begun[-1] - start) / cells, statistics.fmean(found)
    return {"start_up": start - began, "cells": cells, "per_cell": per_cell, "own": own, "beyond": per_cell - own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="cells, of which the first of each worker is start-up")
    parser.add_argument("--rounds", type=int, default=1, help="how often each is measured, in turns")
    asked = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in HOWS}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(asked.rounds):
            for name in HOWS:
                place = Path(folder) / str(i)
                place.mkdir(exist_ok=True)
                found[name].append(measured(place, name, asked.seeds))
    beyond = {name: statistics.median(each["beyond"] for each in runs) for name, runs in found.items()}
    said = {"runs": found, "beyond": beyond, "overhead": beyond["ray"] - beyond["processes"]}
    print(json.dumps({**said, "machine": platform.platform()}, indent=1))


if __name__ == "__main__":
    main()
