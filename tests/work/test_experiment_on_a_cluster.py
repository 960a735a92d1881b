"""An experiment in processes or on a Ray cluster has the cells that one process has, bit for bit, each exactly once."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from adaptree.analysis.experiments import ledger
from adaptree.analysis.experiments.corpora import Corpus
from adaptree.analysis.experiments.setup import Setup
from adaptree.analysis.experiments.sweep import Recipe, Row, Sweep, Task
from tests.bases import tiny_base, words_csv

SWEEP = Sweep(
    tasks=(Task(Corpus("one", test="test")),),
    rows=(Row("adapters", ("houlsby:2", "houlsby:4")), Row("norms", ("norms",)), Row("tfidf", ("tfidf",))),
    recipe=Recipe(
        rows=40, validation=20, steps=6, batch_size=8, max_length=64, quick=False, factors=(1.0, 3.0), seeds=1
    ),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a dataset, and the cells `alone` that one process makes."""
    root = tmp_path_factory.mktemp("world")
    tiny_base(root / "base")
    for part, seed in (("train", 0), ("test", 1)):
        lines = words_csv(root / f"{part}.csv", 90, seed=seed).read_text().splitlines()[1:]
        rows = [dict(zip(("text", "label"), line.rsplit(",", 1), strict=True)) for line in lines]
        path = root / "data" / "one" / f"{part}.jsonl.xz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    SWEEP.run(Setup(root / "data", root / "alone", base=root / "base", threads=1))
    return root


def cells(out: Path) -> dict[str, Any]:
    """What was found in every cell, without its times."""
    found = {}
    lines = [json.loads(line) for line in (out / ledger.FILE).read_text().splitlines()]
    for line in lines:
        key = json.dumps(line["asked"], sort_keys=True)
        assert key not in found, "a cell is there twice"
        found[key] = {name: value for name, value in line["found"].items() if "seconds" not in name}
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("how", [{"jobs": 2}, {"cluster": "ray"}], ids=["processes", "ray"])
def test_the_cells_are_the_same_bit_for_bit(world: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    told: list[str] = []
    setup = Setup(
        world / "data", tmp_path / "out", base=world / "base", threads=1,
        on_event=lambda event: told.append(event.get("text", "")), **how,
    )  # fmt: skip
    chosen = SWEEP.run(setup)
    assert cells(tmp_path / "out") == cells(world / "alone")
    assert chosen.keys() == {"adapters", "norms", "tfidf"}
    assert any("houlsby" in text and "left" in text for text in told)
    assert SWEEP.run(setup).keys() == chosen.keys()  # nothing is run again
    assert len((tmp_path / "out" / ledger.FILE).read_text().splitlines()) == len(cells(world / "alone"))
