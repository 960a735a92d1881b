"""Write results/scale/table.md and its figures: what was measured, what the simulation makes of it, and the plan.

python -m benchmarks.scale.page
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.scale.cost import PLAN, TASKS
from benchmarks.scale.load import Load
from benchmarks.scale.measure import FILLED, METHODS
from benchmarks.scale.measure import OUT as MEASURED
from benchmarks.scale.simulate import Result, Times, simulate

CLOSE = 0.15
"""How far the simulation may be from what was measured before it is believed."""
COMPARED = ("throughput", "p50", "p95")
"""What must be that close."""
WORSE = {
    ("affinity", 20, "p95"), ("affinity", 40, "p95"), ("affinity", 60, "p50"), ("affinity", 60, "p95"),
    ("affinity", 0, "p95"), ("random", 20, "p50"), ("random", 20, "p95"), ("random", 80, "p50"), ("random", 80, "p95"),
    ("random", 0, "p50"),
}  # fmt: skip
"""What is not, as docs/scale.md says."""
SHOWN = (*COMPARED, "p99", "rows_per_batch", "hit_rate")
HOW = """    python -m benchmarks.scale.measure services --store FOLDER
    python -m benchmarks.scale.measure s3 --store FOLDER
    python -m benchmarks.scale.measure replicas --store FOLDER --routing affinity --rate 30 …
    python -m benchmarks.scale.cost
    python -m benchmarks.scale.page
"""


def simulated(measured: dict[str, Any]) -> list[Result]:
    """Return what the simulation gives for each run of the two replicas, over the times that were measured alone."""
    times, usual = Times.of(measured), measured["services"].get("speed", 1.0)
    return [
        simulate(
            Load(**each["load"]), times.at_speed(each.get("speed", usual) / usual), replicas=2, routing=each["routing"],
            fit=each["fit"],
        )
        for each in measured["replicas"]
    ]  # fmt: skip


def error(run: dict[str, Any], result: Result, name: str) -> float:
    """Return by what part a simulated figure is above the measured one."""
    return float(getattr(result, name) / run[name] - 1)


def page(measured: dict[str, Any], plan: dict[str, Any], results: Sequence[Result]) -> str:
    machine = measured["machine"]
    return "\n\n".join(
        [
            "# One node, ten, a hundred",
            f"minilm, random weights, 12 to 28 tokens a text; {machine['cores']} cores of {machine['processor']}. "
            "What it means is in docs/scale.md.",
            "## Services, each alone on one core",
            services(measured),
            "## Two replicas, measured and simulated",
            "Each cell: measured, simulated, and by how much the simulation is off. Replicas are `adaptree serve "
            "--threads 1`, each on a core of its own, with room for 100 of 400 tasks; requests come at random times "
            f"(Poisson) for {measured['replicas'][0]['load']['seconds']:.0f} s at each rate.",
            replicas(measured, results),
            *measured["notes"],
            "![Latencies, measured and simulated](figure.png)",
            "## What nodes hold (simulated)",
            nodes(plan),
            "## Ten thousand tasks, as adapters and as full models (simulated)",
            models(plan),
            "## Commands",
            HOW.rstrip(),
        ]
    ) + "\n"  # fmt: skip


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def services(measured: dict[str, Any]) -> str:
    found, s3 = measured["services"], measured["s3"]
    cells = {(e["length"], e["rows"], e["tasks"]): e["seconds"] for e in found["batches"][METHODS[0]]}
    every = sorted({length for length, _, _ in cells})
    rows = [
        [f"{rows} rows" if rows > 1 else "1 row"]
        + [
            f"{ms(cells[length, rows, 1])}, {ms(cells[length, rows, rows])}"
            if (length, rows, rows) in cells else ""
            for length in every
        ]
        for rows in sorted({rows for _, rows, _ in cells})
    ]  # fmt: skip
    http, busy = found["http"], found["http_busy"]
    missing = found["http_missing"]
    load = (missing["cpu"] - http["cpu"]) / missing["loads"]
    other = [
        ["loading a task in a server, with all that it slows down", ms(load), "of a core"],
        ["HTTP and reading the text, a request", ms(http["loop"]), f"{ms(busy['loop'])} with 16 clients at once"],
        ["making the answer, a request", ms(http["rest"]), ""],
        ["a request of one client that waits, median", ms(http["p50"]), f"99th percentile {ms(http['p99'])}"],
    ]
    for method in METHODS:
        each = found["loading"][method]
        other.append([f"loading a task from a folder ({method})", ms(each["load"]),
                      f"{ms(each['load_processor'])} of it computing; {each['bytes'] / 1e6:.2f} MB"])  # fmt: skip
    other.append(["looking up a name in a folder", ms(found["loading"][METHODS[0]]["look_up"]), ""])
    for name, where in (("from_server", "from S3"), ("from_copy", "from S3, with a copy on the disk")):
        each = s3[name]
        other.append([f"loading a task {where}", ms(each["load"]), f"{ms(each['load_processor'])} of it computing; "
                      f"{each['load_listings']:.0f} listings and {each['load_reads']:.0f} reads"])  # fmt: skip
    other.append(["looking up a name on S3", ms(s3["from_server"]["look_up"]),
                  f"{ms(s3['from_server']['look_up_processor'])} of it computing; 1 listing"])  # fmt: skip
    return "\n\n".join(
        [
            "Milliseconds of a batch, on one core while the other one computes: all rows of one task; each of another.",
            table(["", *(f"{length} tokens" for length in every)], rows),
            "S3 is a server on this machine: its own time is not Amazon's.",
            table(["", "ms", ""], other),
            f"A replica with {FILLED} tasks takes {http['resident'] / 1e6:.0f} MB, of which the base's weights are "
            f"{found['base_bytes'] / 1e6:.1f} MB. A request and its answer are {http['bytes']:.0f} bytes.",
        ]
    )  # fmt: skip


def replicas(measured: dict[str, Any], results: Sequence[Result]) -> str:
    rows = []
    for run, result in zip(measured["replicas"], results, strict=True):
        row = [run["routing"], f"{run['rate']:.0f}" if run["rate"] else f"{run['load']['clients']} clients that wait"]
        for name in SHOWN:
            one, other = run[name], getattr(result, name)
            shown = (ms(one), ms(other)) if name.startswith("p") else (f"{one:.3g}", f"{other:.3g}")
            row.append(f"{shown[0]}, {shown[1]} ({error(run, result, name):+.0%})")
        rows.append([*row, f"{run['busy']:.0%}", f"{run['client_busy']:.1%}", f"{run['others_busy']:.0%}"])
    head = ["routing", "requests a second", "answers a second", "p50, ms", "p95, ms", "p99, ms", "rows a batch",
            "task in memory", "cores busy", "client, of a core", "others, of a core"]  # fmt: skip
    return table(head, rows)


def nodes(plan: dict[str, Any]) -> str:
    prices, rows, used = plan["prices"], [], []
    node, limit = prices["node"], 1e3 * prices["limit"]["p95_seconds"]
    for each in plan["nodes"]:
        result, store = each["result"], each["store_dollars"]
        place = ["a folder" if each["store"] == "folder" else "S3", f"{each['nodes']:,}"]
        rows.append(
            [*place, f"{each['in_memory']:,}", f"{each['rate']:,.0f}", ms(result["p50"]), ms(result["p95"]),
             f"{result['hit_rate']:.1%}", f"{each['dollars']:,.0f}",
             *(f"{store[name]:,.0f}" if store else "" for name in ("looking up", "loading", "keeping"))]
        )  # fmt: skip
        shares = (f"{result['shares'][name]:.1%}" for name in ("computing", "HTTP", "loading", "looking up"))
        used.append([*place, *shares, f"{result['look_ups']:,.0f}", f"{result['loads']:,.1f}"])
    dollars = ["nodes, $ a month", "looking up, $", "loading, $", "keeping, $"]
    head = ["store", "nodes", "room for tasks", "requests a second", "p50, ms", "p95, ms", "task in memory", *dollars]
    return "\n\n".join(
        [
            f"A node: {node['cores']} cores with a replica on each and {node['memory_gb']} GB, room for {plan['fit']:,}"
            f" tasks of size 48 in each replica, {plan['node_dollars']:.0f} $ a month at the assumed prices. {TASKS:,} "
            "tasks are asked for, and routed by affinity. For 1 and 10 nodes the rate is the highest with a p95 of at "
            f"most {limit:.0f} ms; for more, 95 % of ten nodes' rate for each ten.",
            table(head, rows),
            "Where the used time of the cores goes, and what the store is asked for:",
            table(["store", "nodes", "computing", "HTTP", "loading", "looking up", "look-ups a second",
                   "loads a second"], used),
        ]
    )  # fmt: skip


def models(plan: dict[str, Any]) -> str:
    rows = [
        [f"{each['rate']:,}", each["what"], f"{each['stored_gb']:,.1f}", f"{each['per_node']:.0f}",
         f"{each['cores']:,}", f"{each['memory_gb']:,.0f}", f"{each['nodes']:,}", f"{each['dollars']:,.0f}"]
        for each in sorted(plan["models"], key=lambda each: each["rate"])
    ]  # fmt: skip
    head = ["requests a second", "", "stored, GB", "requests a second of two cores", "cores", "memory, GB",
            "nodes as above", "$ a month"]  # fmt: skip
    return (
        "All tasks are in memory. Dollars are for as many cores and as much memory as it takes, in whatever machines; "
        "nodes as above must have both.\n\n" + table(head, rows)
    )


def ms(seconds: float) -> str:
    """Return milliseconds with three digits."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw(measured: dict[str, Any], plan: dict[str, Any], results: Sequence[Result], into: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    both = zip(measured["replicas"], results, strict=True)
    runs = [(run, result) for run, result in both if run["routing"] == "affinity" and run["rate"]]
    rates = [run["rate"] for run, _ in runs]
    for name, colour in (("p50", "#0f766e"), ("p95", "#b45309")):
        left.plot(rates, [1e3 * run[name] for run, _ in runs], "o", color=colour, label=f"{name}, measured")
        left.plot(rates, [1e3 * getattr(r, name) for _, r in runs], "-", color=colour, label=f"{name}, simulated")
    left.set(title="Two replicas, affinity", xlabel="requests a second", ylabel="ms", ylim=(0, None))
    left.legend(frameon=False)
    for what, colour in (("adapters", "#0f766e"), ("full models", "#b45309")):
        those = [each for each in plan["models"] if each["what"] == what]
        right.plot([e["rate"] for e in those], [e["dollars"] for e in those], "o-", color=colour, label=what)
    right.set(title=f"{TASKS:,} tasks, at assumed prices", xlabel="requests a second", ylabel="$ a month", xscale="log",
              yscale="log")  # fmt: skip
    right.legend(frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    figure.savefig(into, dpi=110)
    plt.close(figure)


def main() -> None:
    measured, plan = json.loads(MEASURED.read_text()), json.loads(PLAN.read_text())
    results = simulated(measured)
    (MEASURED.parent / "table.md").write_text(page(measured, plan, results))
    draw(measured, plan, results, MEASURED.parent / "figure.png")


if __name__ == "__main__":
    main()
