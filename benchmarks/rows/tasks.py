"""Adding and loading a task beside 1 to 1,000 others."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.runs import OURS, Setup, stored
from benchmarks.table import Amount, Growth, Measurement, Run, Table, constant

QUICK = False
COUNTS = {"ours": (1, 10, 100, 1000), "adapters": (1, 10, 100), "peft": (1, 10, 100)}


def before(setup: Setup) -> list[Run]:
    return [stored(setup)]


def tables(setup: Setup) -> list[Table | Growth]:
    runs = {
        peer: Run(
            ("{python}", f"{{subjects}}/tasks_{peer}.py", "--base", "{base}", "--out", "{out}", "--task",
             "{scratch}/store", "--counts", ",".join(map(str, counts))),
            "ours" if peer == "ours" else "peers",
        )
        for peer, counts in COUNTS.items()
    }  # fmt: skip
    names = {"ours": OURS, "adapters": "adapters", "peft": "peft, LoRA"}
    limit = "the aim, 10 ms"
    found: list[Table | Growth] = [
        Growth(
            title=title,
            unit="ms",
            along="tasks that are there",
            lines={
                names[peer]: {n: Amount((run,), reader(what, n)) for n in COUNTS[peer]} for peer, run in runs.items()
            },
            aims={OURS: "<= 0.1"},
            scale=1e3,
            note=note,
        )
        for what, title, note in (
            ("load", "Loading a stored task", "Ours: read from the store, checked, and bound to the base; the peers': "
             "load_adapter into a model that holds the others. Peers up to 100."),
            ("add", "Adding a new task", "Ours: written to the store; the peers': add_adapter in memory only."),
        )
    ]  # fmt: skip
    most = COUNTS["ours"][-1]
    loads = {OURS: Amount((runs["ours"],), reader("load", most))}
    loads |= {names[peer]: Amount((runs[peer],), reader("load", COUNTS[peer][-1])) for peer in ("adapters", "peft")}
    return [
        *found,
        Table(f"Loading a stored task when {most:,} are there (peers: 100)", "ms", {limit: constant(0.01), **loads},
              reference=limit, aims={OURS: "<= 1"}, scale=1e3),
    ]  # fmt: skip


def reader(what: str, n: int | str) -> Callable[[Measurement], float | None]:
    def read(m: Measurement) -> float | None:
        return float(seconds) if (seconds := m["found"][what].get(str(n))) is not None else None

    return read
