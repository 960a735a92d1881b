"""What one node holds, ten, a hundred and a thousand; and what ten thousand tasks cost, as adapters and as full models.

    python -m benchmarks.scale.cost         results/scale/plan.json, from measured.json and prices.toml

Every figure comes from the simulation over measured times, or is a product of measured bytes and assumed prices.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.scale.load import Load
from benchmarks.scale.measure import FILLED, METHODS
from benchmarks.scale.measure import OUT as MEASURED
from benchmarks.scale.simulate import Result, Times, simulate

PLAN = MEASURED.parent / "plan.json"
PRICES = Path(__file__).parent / "prices.toml"
TASKS = 10_000
NODES = (1, 10, 100, 1000)
RATES = (100, 1000, 10_000)
"""Requests a second, for which adapters and full models are compared."""
SECONDS, MANY_SECONDS = 9.0, 2.0
"""How long a simulation runs, and how long with more than ten nodes; the first third is not counted."""
HOURS = 730
"""Of a month."""
GB = 1e9


@dataclass(frozen=True)
class Node:
    """A machine with a replica on each core, and what it costs."""

    prices: dict[str, Any]
    replica_bytes: float
    """Of a replica without any task."""
    task_bytes: float

    @classmethod
    def of(cls, measured: dict[str, Any], prices: dict[str, Any]) -> Node:
        services = measured["services"]
        size = services["loading"][METHODS[0]]["bytes"]
        return cls(prices, services["http"]["resident"] - FILLED * size, size)

    @property
    def cores(self) -> int:
        return int(self.prices["node"]["cores"])

    @property
    def room(self) -> float:
        """Return the bytes that it has for tasks."""
        node = self.prices["node"]
        return float((node["memory_gb"] - node["system_gb"]) * GB - self.cores * self.replica_bytes)

    @property
    def fit(self) -> int:
        """Return how many tasks a replica has room for."""
        return int(self.room / self.cores / self.task_bytes)

    def dollars(self) -> float:
        """Return what it costs a month."""
        return resources(self.prices, self.cores, self.prices["node"]["memory_gb"])


def resources(prices: dict[str, Any], cores: float, memory_gb: float) -> float:
    """Return what cores and memory cost a month."""
    return float(cores * prices["core_hour"] * HOURS + memory_gb * prices["memory_gb_month"])


def store_dollars(prices: dict[str, Any], calls: dict[str, float], result: Result, size: float) -> dict[str, float]:
    """Return what a store on S3 costs a month: what it keeps, and what it is asked a second, for ever."""
    seconds = HOURS * 3600
    listings = result.look_ups * calls["look_up_listings"] + result.loads * calls["load_listings"]
    return {
        "keeping": TASKS * size / GB * prices["storage_gb_month"],
        "looking up": listings * seconds / 1e6 * prices["store_listings_million"],
        "loading": result.loads * calls["load_reads"] * seconds / 1e6 * prices["store_reads_million"]
        + result.loads * size * seconds / GB * prices["transfer_gb"],
    }


def run(times: Times, nodes: int, rate: float, *, cores: int, fit: int) -> Result:
    """Simulate nodes at a rate of all of them together, with affinity."""
    seconds = SECONDS if nodes <= 10 else MANY_SECONDS
    load = Load(rate, seconds, TASKS)
    return simulate(load, times, replicas=nodes * cores, routing="affinity", fit=fit, warm=seconds / 3)


def capacity(at: Callable[[float], Result], limit: float, most: float, steps: int = 7) -> tuple[float, Result]:
    """Return the highest rate whose 95th percentile is within the limit, and what happens at it."""
    low, high, best = 0.0, most, None
    for _ in range(steps):
        middle = (low + high) / 2
        found = at(middle)
        if found.p95 <= limit and set(found.statuses) == {200}:
            low, best = middle, found
        else:
            high = middle
    if best is None:
        raise ValueError(f"not even {high:.1f} requests a second are answered within {limit} s")
    return low, best


def apart(times: Times) -> Times:
    """Return the times of full models, each of whose rows are computed in passes of their own."""

    def batch(rows: int, length: int, tasks: int) -> float:
        share, more = divmod(rows, tasks)
        return (tasks - more) * times.batch(share, length, 1) + (more and more * times.batch(share + 1, length, 1))

    return replace(times, batch=batch)


def nodes_hold(measured: dict[str, Any], prices: dict[str, Any], counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return what so many nodes answer a second within the limit, on a folder that all have and on S3."""
    node, limit, local = Node.of(measured, prices), prices["limit"]["p95_seconds"], Times.of(measured)
    calls, found, each = measured["s3"]["from_server"], [], 0.0
    for store, times in (("folder", local), ("s3", local.on_s3(measured, prices["limit"]["store_wait_seconds"]))):
        for count in counts:

            def at(rate: float, times: Times = times, count: int = count) -> Result:
                return run(times, count, rate, cores=node.cores, fit=node.fit)

            if count <= 10:
                rate, result = capacity(at, limit, 250.0 * count)
                each = rate / count
            else:  # a little below what ten nodes do each: is it within the limit?
                rate = 0.95 * each * count
                result = at(rate)
            found.append(
                {"store": store, "nodes": count, "rate": rate, "in_memory": count * node.cores * node.fit,
                 "dollars": count * node.dollars(), "result": asdict(result),
                 "store_dollars": store_dollars(prices, calls, result, node.task_bytes) if store == "s3" else {}}
            )  # fmt: skip
            print(json.dumps(found[-1]), flush=True)
    return found


def against_full_models(measured: dict[str, Any], prices: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what ten thousand tasks take as adapters and as a full model for each, all in memory, at some rates."""
    node, limit, times = Node.of(measured, prices), prices["limit"]["p95_seconds"], Times.of(measured)
    base, found = measured["services"]["base_bytes"], []
    for what, own, size in (("adapters", times, node.task_bytes), ("full models", apart(times), base)):
        per_node, _ = capacity(lambda rate, own=own: run(own, 1, rate, cores=node.cores, fit=TASKS), limit, 250.0)  # type: ignore[misc]
        for rate in RATES:
            cores = max(node.cores, math.ceil(node.cores * rate / per_node))
            memory = (TASKS * size + cores * node.replica_bytes) / GB + math.ceil(cores / node.cores) * prices["node"][
                "system_gb"
            ]
            stored = (TASKS * size + (base if what == "adapters" else 0)) / GB
            found.append(
                {"what": what, "rate": rate, "per_node": per_node, "cores": cores, "memory_gb": memory,
                 "stored_gb": stored, "nodes": max(math.ceil(rate / per_node), math.ceil(TASKS * size / node.room)),
                 "dollars": resources(prices, cores, memory) + stored * prices["storage_gb_month"]}
            )  # fmt: skip
    return found


def plan(measured: dict[str, Any], prices: dict[str, Any], counts: tuple[int, ...] = NODES) -> dict[str, Any]:
    node = Node.of(measured, prices)
    return {
        "prices": prices, "fit": node.fit, "node_dollars": node.dollars(), "replica_bytes": node.replica_bytes,
        "nodes": nodes_hold(measured, prices, counts), "models": against_full_models(measured, prices),
    }  # fmt: skip


def main() -> None:
    measured, prices = json.loads(MEASURED.read_text()), tomllib.loads(PRICES.read_text())
    PLAN.write_text(json.dumps(plan(measured, prices), indent=1) + "\n")


if __name__ == "__main__":
    main()
