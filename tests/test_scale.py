"""The simulation of replicas: it agrees with what was measured and with theory; its page says what its figures do."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from benchmarks.scale import cost, page
from benchmarks.scale.load import Load, Router
from benchmarks.scale.simulate import Result, Times, simulate

Json = dict[str, Any]


@cache
def measured() -> Json:
    return json.loads(page.MEASURED.read_text())  # type: ignore[no-any-return]


@cache
def results() -> list[Result]:
    return page.simulated(measured())


def steady(seconds: float) -> Times:
    """A server whose batches, of one row each, take always the same; all else takes no time."""
    return Times(lambda rows, length, tasks: seconds, loop=0.0, lengths=(512,))


def test_the_simulation_is_close_to_the_measured_replicas() -> None:
    """Within 15 %, but for what is known to be worse; docs/scale.md says why."""
    off = {
        (run["routing"], run["rate"], name): page.error(run, result, name)
        for run, result in zip(measured()["replicas"], results(), strict=True)
        for name in page.COMPARED
    }
    assert {each for each in off if abs(off[each]) > page.CLOSE} == page.WORSE, off
    assert all(abs(each) <= page.CLOSE for (_, _, name), each in off.items() if name == "throughput")
    assert all(abs(each) <= 0.35 for each in off.values()), off


def test_the_replicas_were_measured_at_saturation_and_below() -> None:
    runs = [run for run in measured()["replicas"] if run["routing"] == "affinity"]
    assert len(runs) >= 4
    assert min(run["busy"] for run in runs) < 0.5
    assert max(run["busy"] for run in runs) > 0.95
    assert all(run["client_busy"] < 0.1 for run in runs), "the client took part of their cores"


@pytest.mark.parametrize("busy", [0.3, 0.7])
def test_a_queue_with_constant_service_waits_as_theory_says(busy: float) -> None:
    service = 0.01
    found = simulate(Load(busy / service, 400, 1), steady(service), replicas=1, routing="random", fit=1, wait=0.0)
    waiting = busy * service / (2 * (1 - busy))  # Pollaczek and Khinchine, M/D/1
    assert found.mean == pytest.approx(service + waiting, rel=0.05)
    assert found.busy == pytest.approx(busy, rel=0.02)


def test_those_who_run_share_a_core_evenly() -> None:
    """Jobs of the event loop and of the computing thread that run together take twice as long."""
    times = replace(steady(0.1), loop=0.2)
    one = simulate(Load(0.01, 1000, 1, seed=3), times, replicas=1, routing="random", fit=1, wait=0.0)
    assert one.p50 == pytest.approx(0.3)
    assert one.shares["HTTP"] == pytest.approx(2 / 3)


def test_it_gives_the_same_for_the_same_seed() -> None:
    load, times = Load(80, 5, 400), Times.of(measured())
    one, same, other = (
        simulate(replace(load, seed=seed), times, replicas=2, routing="affinity", fit=100) for seed in (0, 0, 1)
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize("routing", ["affinity", "random"])
@pytest.mark.parametrize("rate", [50, 1500])
def test_every_request_is_answered_or_refused_once(rate: float, routing: str) -> None:
    load = Load(rate, 4, 400)
    found = simulate(load, Times.of(measured()), replicas=2, routing=routing, fit=20)
    assert sum(found.statuses.values()) == len(list(load.arrivals()))
    assert (429 in found.statuses) == (rate > 1000), "the limit of requests under way refuses the rest"


def test_affinity_keeps_a_task_where_it_is_unless_that_replica_is_behind() -> None:
    router = Router(4, "affinity")
    (home,) = router.homes(7)
    assert [router.choose(7) for _ in range(4)] == [home] * 4
    assert router.choose(7) != home
    assert sum(router.under_way) == 5
    for replica in range(4):
        while router.under_way[replica]:
            router.done(replica)
    assert router.choose(7) == home


def test_affinity_needs_fewer_loads_than_chance() -> None:
    load, times = Load(80, 10, 400), Times.of(measured())
    near, anywhere = (simulate(load, times, replicas=2, routing=how, fit=100) for how in ("affinity", "random"))
    assert near.loads < 0.8 * anywhere.loads


def test_costs_add_up() -> None:
    prices = tomllib.loads(cost.PRICES.read_text())
    node = cost.Node.of(measured(), prices)
    assert node.dollars() == pytest.approx(
        2 * 730 * prices["core_hour"] + prices["node"]["memory_gb"] * prices["memory_gb_month"]
    )
    assert node.cores * (node.fit * node.task_bytes + node.replica_bytes) <= 1e9 * (
        prices["node"]["memory_gb"] - prices["node"]["system_gb"]
    )
    full = cost.apart(Times.of(measured()))
    assert full.batch(4, 24, 4) == pytest.approx(4 * full.batch(1, 24, 1))
    assert full.batch(4, 24, 1) == Times.of(measured()).batch(4, 24, 1)
    plan = json.loads(cost.PLAN.read_text())
    assert plan["prices"] == prices, "python -m benchmarks.scale.cost"
    by = {(each["what"], each["rate"]): each for each in plan["models"]}
    base = measured()["services"]["base_bytes"]
    assert by["full models", 100]["stored_gb"] == pytest.approx(cost.TASKS * base / 1e9)
    for each in plan["models"]:
        assert each["dollars"] == pytest.approx(
            cost.resources(prices, each["cores"], each["memory_gb"]) + each["stored_gb"] * prices["storage_gb_month"]
        )


def test_the_page_says_what_was_measured_and_simulated() -> None:
    plan = json.loads(cost.PLAN.read_text())
    assert page.page(measured(), plan, results()) == (page.MEASURED.parent / "table.md").read_text()
