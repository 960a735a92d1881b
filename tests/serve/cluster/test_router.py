"""The order in which replicas are asked: a task has its place, and a replica that has too much is passed over."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'adaptree[cluster]'")

from adaptree.serve.cluster.router import FACTOR, FEW, in_order

REPLICAS = ["a1", "b2", "c3", "d4"]
TASKS = [f"acme/task{i}" for i in range(2000)]


def first(task: str, **loads: int) -> str:
    return in_order(task, {each: loads.get(each, 0) for each in REPLICAS})[0]


def test_tasks_are_spread_evenly_and_each_has_one_place_for_all_its_versions() -> None:
    places = Counter(map(first, TASKS))
    assert all(400 < places[each] < 600 for each in REPLICAS)
    for task in TASKS[:50]:
        assert first(task) == first(f"{task}@3") == first(f"{task}@live")
        assert in_order(task, dict.fromkeys(reversed(REPLICAS), 0)) == in_order(task, dict.fromkeys(REPLICAS, 0))


def test_a_replica_that_goes_moves_its_own_tasks_alone() -> None:
    left = dict.fromkeys(REPLICAS[:3], 0)
    for task in TASKS:
        if first(task) != "d4":
            assert in_order(task, left)[0] == first(task)


def test_a_busy_replica_is_passed_over_and_comes_last() -> None:
    for task in TASKS[:200]:
        mine, second = in_order(task, dict.fromkeys(REPLICAS, 0))[:2]
        assert first(task, **{mine: FEW - 1}) == mine, "a few at once are no load"
        assert first(task, **{mine: FEW}) == second
        assert first(task, **dict.fromkeys(REPLICAS, 100)) == mine, "all have as much"
        order = in_order(task, {each: 1000 if each == mine else 0 for each in REPLICAS})
        assert order[-1] == mine
        assert len(order) == len(REPLICAS)


def test_no_replica_gets_more_than_its_share_of_one_hot_task() -> None:
    loads = dict.fromkeys(REPLICAS, 0)
    for under_way in range(1, 401):
        loads[in_order("hot", loads)[0]] += 1
        assert max(loads.values()) <= max(FEW, FACTOR * (under_way + 1) / len(loads) + 1)
    assert min(loads.values()) > 0
