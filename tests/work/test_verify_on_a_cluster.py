"""A store is verified in processes and on a Ray cluster as in one process, and a machine must see it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree.data.events import Event
from adaptree.errors import StoreError
from adaptree.hub.verify import DAMAGED, OK, Verification, verify
from adaptree.tasks.store import Store
from adaptree.training.work.shared_store import check_known
from tests.bases import tiny_base, words_csv


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three tasks, of which one is damaged."""
    root = tmp_path_factory.mktemp("world")
    base, data = at.load_base(tiny_base(root / "base")), words_csv(root / "words.csv", 30)
    for name in ("apples", "bears", "chisels"):
        how: dict[str, Any] = {"base": base, "epochs": 1, "store": root / "store", "baselines": False, "threads": 1}
        at.train(data, name=name, method="houlsby:2", **how)
    weights = root / "store" / "tasks" / "bears" / "1" / "task.safetensors"
    content = bytearray(weights.read_bytes())
    content[-3] ^= 1
    weights.write_bytes(content)
    return root


def found(verification: Verification) -> tuple[Any, ...]:
    return verification.rows, verification.bases, verification.sentence


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("how", [{"jobs": 2}, {"cluster": "ray"}], ids=["processes", "ray"])
def test_what_is_found_is_the_same(world: Path, how: dict[str, Any]) -> None:
    seen: list[Event] = []
    alone = verify(Store(world / "store"), probes=True)
    spread = verify(Store(world / "store"), probes=True, on_event=seen.append, **how)
    assert found(spread) == found(alone)
    assert [row.state for row in spread.rows if "@" in row.task] == [OK, DAMAGED, OK]
    assert [event["number"] for event in seen if event["event"] == "verified"] == [1, 2, 3]
    assert sorted(event["task"] for event in seen if event["event"] == "probing") == ["apples@1", "chisels@1"]
    assert not (world / "store" / "streams").exists()


@pytest.mark.slow
def test_every_version_is_verified_though_a_machine_is_lost(ray_cluster: Any, world: Path) -> None:
    node = ray_cluster.add_node(num_cpus=2)
    ray_cluster.wait_for_nodes()
    lost: list[Event] = []

    def lose(event: Event) -> None:
        if not lost:
            lost.append(event)
            ray_cluster.remove_node(node, allow_graceful=False)

    spread = verify(Store(world / "store"), probes=True, cluster="ray", on_event=lose)
    assert lost
    assert found(spread) == found(verify(Store(world / "store"), probes=True))


def test_a_machine_that_sees_another_folder_says_so(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "store", tmp_path / "store")
    with pytest.raises(StoreError, match="does not see the folder of the store"):
        check_known(Store(tmp_path / "store"), "known-1")
