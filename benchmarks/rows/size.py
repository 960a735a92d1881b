"""The size of a task on disk."""

from __future__ import annotations

from benchmarks.runs import Setup, bottlenecks, loras, size
from benchmarks.table import Amount, Table

QUICK = True


def tables(setup: Setup) -> list[Table]:
    note = "All files of the saved task; the peers' heads and ours are not the same."
    kinds = {"Houlsby's bottlenecks of 64": bottlenecks(setup)}
    if not setup.quick:
        kinds["LoRA of rank 8"] = loras(setup)
    return [
        Table(
            title=f"A task on disk, {kind}",
            unit="kB",
            amounts={label: Amount((run,), size) for label, run in runs.items() if "documented" not in label},
            scale=1e-3,
            note=note,
        )
        for kind, runs in kinds.items()
    ]
