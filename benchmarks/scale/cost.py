"""What one node holds, ten, a hundred and a thousand; and what ten thousand tasks cost, as adapters and as full models.

    python -m benchmarks.scale.cost         results/scale/plan.json, from measured.json and prices.toml

Every figure comes from the simulation over measured times, or is a product of measured bytes and assumed prices.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.scale.load import Load
from benchmarks.scale.measure import OUT as MEASURED
from benchmarks.scale.simulate import Result, Times, simulate

PLAN = MEASURED.parent / "plan.json"
PRICES = Path(__file__).parent / "prices.toml"
TASKS = 10_000
NODES = (1, 10, 100, 1000)
REQUESTS = 40_000
"""Requests of a simulation, and at least `SPELL` seconds of them."""
SPELL = 10.0
MONTH = 730 * 3600
"""Seconds."""
GB = 1e9


@dataclass(frozen=True)
class Fleet:
    """Nodes of one kind, and how many tasks a replica of theirs has room for."""

    prices: dict[str, Any]
    replica_bytes: float
    task_bytes: float
    full_bytes: float
    request_bytes: float = 1000.0

    @classmethod
    def of(cls, measured: dict[str, Any], prices: dict[str, Any], method: str = "houlsby:48") -> Fleet:
        services = measured["services"]
        return cls(
            prices, services["resident"], services["loading"][method]["bytes"], services["base_bytes"],
            services["request_bytes"],
        )  # fmt: skip

    @property
    def cores(self) -> int:
        return int(self.prices["node"]["cores"])

    @property
    def fit(self) -> int:
        """Tasks that a replica has room for."""
        node = self.prices["node"]
        room = (node["memory_gb"] - node["system_gb"]) * GB - self.cores * self.replica_bytes
        return int(room / self.cores / self.task_bytes)

    def node_dollars(self, memory_gb: float | None = None) -> float:
        """Return what a node costs a month."""
        memory = self.prices["node"]["memory_gb"] if memory_gb is None else memory_gb
        return float(self.cores * self.prices["core_hour"] * MONTH / 3600 + memory * self.prices["memory_gb_month"])

    def store_dollars(self, tasks: int, task_bytes: float, look_ups: float, loads: float, calls: dict[str, float]) -> dict[str, float]:
        """Return what the store costs a month: kept bytes, look-ups and loads a second, and what loads transfer."""
        p = self.prices
        listings = look_ups * calls["look_up"] + loads * calls["load_listings"]
        return {
            "storage": tasks * task_bytes / GB * p["storage_gb_month"],
            "listings": listings * MONTH / 1e6 * p["store_listings_million"],
            "reads": loads * calls["load_reads"] * MONTH / 1e6 * p["store_reads_million"],
            "loads": loads * task_bytes * MONTH / GB * p["transfer_gb"],
        }


def holds(times: Times, fleet: Fleet, nodes: int, rate: float, tasks: int = TASKS) -> Result:
    """Simulate nodes at a rate of all of them together, with affinity."""
    load = Load(rate, max(SPELL, min(60.0, REQUESTS / rate)), tasks)
    return simulate(load, times, replicas=nodes * fleet.cores, routing="affinity", fit=fleet.fit)


def capacity(run: Callable[[float], Result], limit: float, most: float, steps: int = 7) -> tuple[float, Result]:
    """Return the highest rate whose 95th percentile is within the limit, and what happens at it."""
    low, high, best = 0.0, most, None
    for _ in range(steps):
        middle = (low + high) / 2
        found = run(middle)
        if found.p95 <= limit and set(found.statuses) == {200}:
            low, best = middle, found
        else:
            high = middle
    if best is None:
        raise ValueError(f"not even {high:.1f} requests a second are answered within {limit} s")
    return low, best


def apart(times: Times) -> Times:
    """Return the times of full models: rows of different models are in different passes."""

    def batch(rows: int, length: int, tasks: int) -> float:
        return tasks * times.batch(1, length, 1) if tasks == rows else (
            (tasks - 1) * times.batch(1, length, 1) + times.batch(rows - tasks + 1, length, 1)
        )  # fmt: skip

    return replace(times, batch=batch)


def plan(measured: dict[str, Any], prices: dict[str, Any], nodes: tuple[int, ...] = NODES) -> dict[str, Any]:
    fleet, limit = Fleet.of(measured, prices), prices["limit"]["p95_seconds"]
    calls = {
        "look_up": measured["s3"]["look_up_listings"], "load_listings": measured["s3"]["load_listings"],
        "load_reads": measured["s3"]["load_reads"],
    }  # fmt: skip
    local = Times.of(measured)
    shared = local.on_s3(measured, prices["limit"]["store_wait_seconds"])
    most = 2.0 * fleet.cores / local.batch(16, 24, 16) * 16
    found: dict[str, Any] = {"fit": fleet.fit, "node_dollars": fleet.node_dollars(), "nodes": [], "limit": limit}
    for name, times in (("folder", local), ("s3", shared)):
        for count in nodes:
            if count <= 10:
                rate, result = capacity(lambda r, c=count, t=times: holds(t, fleet, c, r), limit, most * count)  # type: ignore[misc]
                each = rate / count
            else:  # the rate of ten nodes, a little below it: is it still within the limit?
                rate, result = 0.97 * each * count, holds(times, fleet, count, 0.97 * each * count)
            store = fleet.store_dollars(TASKS, fleet.task_bytes, result.look_ups, result.loads, calls)
            found["nodes"].append(
                {"store": name, "nodes": count, "rate": rate, "in_memory": count * fleet.cores * fleet.fit,
                 "dollars": count * fleet.node_dollars(), "store_dollars": store, **asdict(result)}
            )  # fmt: skip
            print(json.dumps(found["nodes"][-1]), flush=True)
    found["models"] = models(local, fleet, limit, most)
    return found


def models(times: Times, fleet: Fleet, limit: float, most: float) -> list[dict[str, Any]]:
    """Return what ten thousand tasks take at some rates, as adapters and as one full model for each, all in memory."""
    found = []
    for name, own, size, shared in (
        ("adapters", times, fleet.task_bytes, fleet.full_bytes), ("full models", apart(times), fleet.full_bytes, 0.0),
    ):  # fmt: skip
        one = replace(fleet, task_bytes=fleet.prices["node"]["memory_gb"] * GB / TASKS / 10)  # all fit: compute alone
        per_node, _ = capacity(lambda r, t=own, f=one: holds(t, f, 1, r), limit, most)  # type: ignore[misc]
        for rate in (100.0, 1000.0, 10_000.0):
            by_rate = rate / per_node
            by_memory = TASKS / ((fleet.prices["node"]["memory_gb"] - fleet.prices["node"]["system_gb"]) * GB - fleet.cores * fleet.replica_bytes) * size
            nodes = max(1, -(-max(by_rate, by_memory) // 1))
            found.append(
                {"what": name, "rate": rate, "per_node": per_node, "stored_gb": (TASKS * size + shared) / GB,
                 "memory_gb": TASKS * size / GB, "nodes_by_rate": by_rate, "nodes_by_memory": by_memory,
                 "nodes": nodes, "dollars": nodes * fleet.node_dollars()
                 + (TASKS * size + shared) / GB * fleet.prices["storage_gb_month"]}
            )  # fmt: skip
    return found


def main() -> None:
    measured, prices = json.loads(MEASURED.read_text()), tomllib.loads(PRICES.read_text())
    PLAN.write_text(json.dumps(plan(measured, prices), indent=1) + "\n")


if __name__ == "__main__":
    main()
