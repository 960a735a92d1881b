"""From the command to the saved task, and to a given score."""

from __future__ import annotations

import math

from benchmarks.runs import OURS, Setup, bottlenecks, command, cpu, score, wall
from benchmarks.table import Amount, Measurement, Table

QUICK = True
ENOUGH = 0.97
"""A validation accuracy that all of them should reach."""


def tables(setup: Setup) -> list[Table]:
    scripts = bottlenecks(setup)
    whole = {**scripts, OURS: command(setup)}
    scores = {label: Amount((run,), score) for label, run in whole.items()}
    note = "Start-up, tokenisation, evaluation after each epoch and saving included; adaptree from the command line."
    found = [
        Table(f"{setup.epochs} epochs from start to saved task, all layers", "s",
              {label: Amount((run,), wall) for label, run in whole.items()}, scores=scores,
              aims={} if setup.quick else {"adapters, tuned": ">= 1.2"}, note=note),
        Table("The same in CPU seconds", "CPU s", {label: Amount((run,), cpu) for label, run in whole.items()}),
    ]  # fmt: skip
    if not setup.quick:
        found.append(
            Table(f"From start to a validation accuracy of {ENOUGH:g}", "s",
                  {label: Amount((run,), until) for label, run in scripts.items()},
                  note="At the end of the first epoch that has it, in every round; from Python for all.")
        )  # fmt: skip
    return found


def until(m: Measurement) -> float:
    """Return the seconds from the process's start to the end of the first epoch with that score; inf if none has it."""
    return next((seconds for seconds, score in m["found"]["course"] if score >= ENOUGH), math.inf)
