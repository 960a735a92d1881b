"""Per epoch of training: the same method, in all layers."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.runs import FLOOR, Setup, bottlenecks, loras, per_epoch, score
from benchmarks.table import Amount, Run, Table

QUICK = True
NOTE = (
    "Evaluation left aside; the median of the epochs after the first. Tuned: no dropout in the base, group_by_length, "
    "batches padded to their longest text. Own sampler: beyond what its Trainer offers, one written for this benchmark "
    "orders all texts by length, where group_by_length orders them in parts."
)


def tables(setup: Setup) -> list[Table]:
    runs = bottlenecks(setup)
    aims = {"adapters, as documented": ">= 2", "adapters, tuned": ">= 0.95", "adapters, tuned, own sampler": ">= 0.95"}
    aims[FLOOR] = ">= 0.952"
    if setup.quick:
        return [table("Houlsby's bottlenecks of 64", runs, aims)]
    return [
        table("Houlsby's bottlenecks of 64", runs, aims),
        table(
            "LoRA of rank 8 in query and value",
            loras(setup),
            {"peft, tuned": ">= 0.95", "peft, tuned, own sampler": ">= 0.95", FLOOR: ">= 0.952"},
        ),
    ]


def table(method: str, runs: Mapping[str, Run], aims: Mapping[str, str]) -> Table:
    return Table(
        title=f"One epoch of training, {method}, all layers",
        unit="s",
        amounts={label: Amount((run,), per_epoch) for label, run in runs.items()},
        scores={label: Amount((run,), score) for label, run in runs.items()},
        aims=aims,
        note=NOTE,
    )
