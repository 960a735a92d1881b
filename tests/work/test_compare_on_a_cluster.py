"""A comparison in processes and on a Ray cluster has the cells that one process has, bit for bit, each exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree import api
from adaptree.data.events import Event
from tests.bases import tiny_base, words_csv

METHODS = ("houlsby:4", "bitfit")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a file, and a comparison `alone` of one cell after another."""
    root = tmp_path_factory.mktemp("world")
    tiny_base(root / "base")
    words_csv(root / "words.csv", 40)
    run(root, root / "alone")
    return root


def run(world: Path, out: Path, **more: Any) -> dict[str, Any]:
    return api.compare(
        world / "words.csv", methods=METHODS, out=out, seeds=2, epochs=(2,), base=world / "base", threads=1,
        test=world / "words.csv", objective="cross-entropy", **more,
    )  # fmt: skip


def cells(out: Path) -> dict[str, Any]:
    """By cell: its scores, also on the test file, and the digest of its task's weights."""
    found, store = {}, at.Store(out / "store")
    for path in (out / "cells").glob("*.json"):
        cell = json.loads(path.read_text())
        assert cell["state"] == "done"
        assert store.versions(path.stem) == [1]
        found[path.stem] = cell["found"]["metrics"], cell["tests"], store[path.stem].record.digest
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("how", [{"jobs": 2}, {"cluster": "ray"}], ids=["processes", "ray"])
def test_the_cells_are_the_same_bit_for_bit(world: Path, tmp_path: Path, how: dict[str, Any]) -> None:
    seen: list[Event] = []
    result = run(world, tmp_path / "out", on_event=seen.append, **how)
    assert cells(tmp_path / "out") == cells(world / "alone")
    assert len(cells(tmp_path / "out")) == 4
    assert sorted(event["number"] for event in seen if event["event"] == "cell") == [1, 2, 3, 4]
    assert all("scores" in row for row in result["methods"])


@pytest.mark.slow
def test_each_cell_is_there_once_though_a_machine_is_lost(ray_cluster: Any, world: Path, tmp_path: Path) -> None:
    node = ray_cluster.add_node(num_cpus=2)
    ray_cluster.wait_for_nodes()
    lost: list[Event] = []

    def lose(event: Event) -> None:
        if event["event"] == "cell" and event["number"] == 3 and not lost:
            lost.append(event)
            ray_cluster.remove_node(node, allow_graceful=False)

    run(world, tmp_path / "out", cluster="ray", on_event=lose)
    assert lost
    assert cells(tmp_path / "out") == cells(world / "alone")
