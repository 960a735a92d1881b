"""--fast: the top two thirds of the layers, in bf16 where that is quicker; the states below are computed once."""

from __future__ import annotations

import statistics

from adaptree.methods.layers import top_layers
from benchmarks.runs import FLOOR, OURS, Setup, answering, bottlenecks, command, kept, per_epoch, score, training, wall
from benchmarks.table import Amount, Measurement, Run, Table

QUICK = True


def tables(setup: Setup) -> list[Table]:
    fast = "adaptree --fast"
    peers = {label: run for label, run in bottlenecks(setup).items() if label.startswith("adapters")}
    whole = {fast: command(setup, "--fast"), OURS: command(setup), **peers}
    top = top_layers(setup.depth)
    found = [
        Table(
            title=f"{setup.epochs} epochs with --fast, from start to saved task",
            unit="s",
            amounts={label: Amount((run,), wall) for label, run in whole.items()},
            scores={label: Amount((run,), score) for label, run in whole.items()},
            reference=fast,
            aims={} if setup.quick else {"adapters, tuned": ">= 2.5", "adapters, as documented": ">= 5"},
            note="The activation cache is empty before each run; the others train all layers.",
        ),
        Table(
            title=f"One epoch with --fast, {top} of {setup.depth} layers",
            unit="s",
            amounts={
                fast: Amount((training(setup, "ours", more=("--fast",)),), per_epoch),
                OURS: Amount((training(setup, "ours"),), per_epoch),
            },
            reference=fast,
            aims={OURS: f">= {0.8 * setup.depth / top:g}"},
            note="Once the lower layers are cached: the median of the epochs after the first.",
        ),
    ]
    if not setup.quick:
        forward = f"the {FLOOR}: one forward pass"
        common = (
            "{python}",
            "{subjects}/predict_floor.py",
            "--base",
            "{base}",
            "--out",
            "{out}",
            "--task",
            "{scratch}/floor",
        )
        files = (f"train-{setup.rows}", f"validation-{setup.validation}")
        passes = tuple(Run((*common, "--texts", f"{{data}}/{file}.jsonl")) for file in files)
        found.append(
            Table(
                title="Filling the activation cache",
                unit="s",
                amounts={
                    forward: Amount(passes, answering, times=len(passes)),
                    fast: Amount((training(setup, "ours", more=("--fast",)),), filling),
                },
                reference=forward,
                aims={fast: "<= 1"},
                note="What the first epoch takes more than a later one, tokenising included, against tokenising and "
                "answering the same training and validation texts once with all layers.",
            )
        )
    return found


def before(setup: Setup) -> list[Run]:
    return [] if setup.quick else [kept(setup, "floor")]


def filling(m: Measurement) -> float:
    first, *rest = m["found"]["epochs"]
    return float(first - statistics.median(rest))
