"""Per epoch of training on an idle machine, and on one where other work keeps every core busy."""

from __future__ import annotations

import dataclasses
import os

from benchmarks.runs import OURS, TUNED, Setup, per_epoch, training
from benchmarks.table import Amount, Run, Table

QUICK = False
EPOCHS = 3
LOAD = ("--load", str(os.cpu_count()))


def tables(setup: Setup) -> list[Table]:
    setup = dataclasses.replace(setup, epochs=EPOCHS)
    ours, peer = training(setup, "ours"), training(setup, "adapters_tuned", more=("--sampler",))
    spinning, single = f"{OURS}, threads that spin", f"{OURS}, one thread"
    busy = {
        OURS: _while(ours, *LOAD),
        single: _while(ours, *LOAD, "--threads", "1"),
        spinning: _while(ours, *LOAD, "--spin"),
        f"adapters, {TUNED}, own sampler": _while(peer, *LOAD),
    }
    idle = {OURS: _while(ours), spinning: _while(ours, "--spin"), f"adapters, {TUNED}, own sampler": _while(peer)}
    return [
        _table("One epoch while other work keeps every core busy", busy, {single: ">= 0.95"}),
        _table("One epoch on an idle machine", idle, {spinning: ">= 0.9"}),
    ]


def _while(run: Run, *options: str) -> Run:
    """Return a run under a load of other work."""
    return Run(("{python}", "{subjects}/busy.py", *options, "--", *run.words), run.place)


def _table(title: str, runs: dict[str, Run], aims: dict[str, str]) -> Table:
    return Table(
        title=title,
        unit="s",
        amounts={label: Amount((run,), per_epoch) for label, run in runs.items()},
        aims=aims,
        note="The same training with Houlsby's bottlenecks. Threads that spin for long while they wait for each other "
        "are what OpenMP does where nothing is set; adaptree has them sleep on a busy machine and spin shortly on an "
        "idle one, unless the user says otherwise. Busy: as many further processes as cores compute all the time.",
    )
