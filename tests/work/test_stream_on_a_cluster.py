"""A stream on a Ray cluster makes the tasks that one process makes, bit for bit, also when a machine is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree.data.events import Event
from adaptree.training.stream import StreamReport, stream
from tests.bases import tiny_base, words_csv

FILES = ("apples", "bears", "chisels")
SETTINGS: dict[str, Any] = {
    "epochs": 2, "lr": 3e-3, "method": "houlsby:4", "batch_size": 16, "objective": "cross-entropy", "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a folder `in` with three files, and a store `alone` of what one process makes of them."""
    root = tmp_path_factory.mktemp("world")
    tiny_base(root / "base")
    (root / "in").mkdir()
    for seed, name in enumerate(FILES):
        words_csv(root / "in" / f"{name}.csv", 30, seed=seed)
    words_csv(root / "in" / "bears.test.csv", 12, seed=9)
    run(root, root / "alone")
    return root


def run(world: Path, store: Path, **more: Any) -> StreamReport:
    return stream(world / "in", base=world / "base", store=store, baselines=False, **SETTINGS, **more)


def digests(store: Path) -> dict[str, str]:
    kept = at.Store(store)
    return {f"{name}@{n}": kept[f"{name}@{n}"].record.digest for name in kept for n in kept.versions(name)}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_cluster_makes_the_same_bits_and_knows_what_is_done(world: Path, tmp_path: Path) -> None:
    shown: list[str] = []

    def listen(event: Event) -> None:
        if event["event"] == "file" and "progress" in event:
            shown.append(event["progress"])

    report = run(world, tmp_path / "store", cluster="ray", on_event=listen)
    assert [row.why for row in report.failed] == []
    assert digests(tmp_path / "store") == digests(world / "alone")
    assert "epoch 1/2" in shown
    assert at.Store(tmp_path / "store")["bears"].record.metrics.get("test")
    again = run(world, tmp_path / "store", cluster="ray")
    assert {row.state for row in again.rows} == {"unchanged"}
    assert not list((tmp_path / "store").rglob("known-*"))


@pytest.mark.slow
def test_every_file_has_one_version_though_a_machine_is_lost(ray_cluster: Any, world: Path, tmp_path: Path) -> None:
    node = ray_cluster.add_node(num_cpus=2)
    ray_cluster.wait_for_nodes()
    lost: list[str] = []

    def lose(event: Event) -> None:
        if event["event"] == "file" and event["state"] == "training" and not lost:
            lost.append(event["task"])
            ray_cluster.remove_node(node, allow_graceful=False)

    report = run(world, tmp_path / "store", cluster="ray", on_event=lose)
    assert lost
    assert [row.why for row in report.failed] == []
    assert digests(tmp_path / "store") == digests(world / "alone")
