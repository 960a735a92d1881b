"""How training time grows with rows, with length and with the layers trained."""

from __future__ import annotations

from benchmarks.runs import OURS, Setup, per_epoch, score, training
from benchmarks.table import Amount, Growth

QUICK = False
ROWS = (250, 500, 1000, 2000)
LENGTHS = (16, 32, 64, 128, 256)
LONG = 128
"""Rows of long texts: what is cut at a length then has that length."""


def tables(setup: Setup) -> list[Growth]:
    scripts = {OURS: "ours", "adapters, tuned": "adapters_tuned"}
    tops = [k for k in (1, 2, 3, 4, 6, 8, 12) if k <= setup.depth]
    layers = {k: training(setup, "ours", epochs=4, more=("--layers", f"top:{k}")) for k in tops}
    off = ("--activation-cache", "off")
    uncached = {k: training(setup, "ours", epochs=2, more=("--layers", f"top:{k}", *off)) for k in tops}
    return [
        Growth("One epoch against rows", "s", "training rows",
               {label: {n: Amount((training(setup, script, rows=n, epochs=2),), per_epoch) for n in ROWS}
                for label, script in scripts.items()}, aims={OURS: "<= 1.05"}),
        Growth("One epoch against length", "s", "tokens in each text",
               {label: {n: Amount((training(setup, script, rows=LONG, data="long", epochs=2, max_length=n),), per_epoch)
                        for n in LENGTHS} for label, script in scripts.items()}, aims={OURS: "<= 1.1"},
               note="Attention alone is quadratic; at these lengths the linear maps are the larger part."),
        Growth("One epoch against layers trained", "s", "layers trained, from the top",
               {f"{OURS}, lower layers cached": {k: Amount((run,), per_epoch) for k, run in layers.items()},
                f"{OURS}, --activation-cache off": {k: Amount((run,), per_epoch) for k, run in uncached.items()}}),
        Growth("Validation accuracy against layers trained", "accuracy", "layers trained, from the top",
               {OURS: {k: Amount((run,), score) for k, run in layers.items()}}, fitted=False),
    ]  # fmt: skip
