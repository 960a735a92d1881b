"""Time and memory at the shape of BERT-base: 12 layers, 768 wide, with random weights."""

from __future__ import annotations

from benchmarks.runs import FLOOR, OURS, Setup, memory, per_epoch, training
from benchmarks.table import Amount, Run, Table

QUICK = False
ROWS = 128


def before(setup: Setup) -> list[Run]:
    return [Run(("{python}", "{subjects}/make_bert_base.py", "--base", "{base}", "--out", "{scratch}/bert-base"))]


def tables(setup: Setup) -> list[Table]:
    def run(script: str, *more: str, method: str = "houlsby", epochs: int = 2) -> Run:
        return training(setup, script, method, rows=ROWS, epochs=epochs, base="{scratch}/bert-base", more=more)

    full, fast, sampler = "adaptree, full fine-tuning", "adaptree --fast", "adapters, tuned, own sampler"
    runs = {
        OURS: run("ours"),
        fast: run("ours", "--fast"),
        "adapters, as documented": run("adapters_documented"),
        sampler: run("adapters_tuned", "--sampler"),
        FLOOR: run("floor"),
    }
    held = {
        full: run("ours", method="full", epochs=1),
        OURS: run("ours", epochs=1),
        fast: run("ours", "--fast", epochs=1),
        sampler: run("adapters_tuned", "--sampler", epochs=1),
        FLOOR: run("floor", epochs=1),
    }
    return [
        Table("One epoch at the shape of BERT-base", "s", {label: Amount((r,), per_epoch) for label, r in runs.items()},
              aims={"adapters, as documented": ">= 2", sampler: ">= 0.95", FLOOR: ">= 0.952"},
              note=f"{ROWS} rows, two epochs, random weights: the second epoch's time; group_by_length has no effect."),
        Table("Peak memory above the loaded base at the shape of BERT-base", "MB",
              {label: Amount((r,), memory) for label, r in held.items()}, reference=full,
              aims={OURS: "<= 0.7", fast: "<= 0.35"}, scale=1e-6,
              note=f"{ROWS} rows, runs of one epoch; the base's weights are read before counting begins."),
    ]  # fmt: skip
