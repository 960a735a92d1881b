"""The same at the shape of BERT-base: 12 layers, 768 wide. Its weights are random, so only time and memory speak."""

from __future__ import annotations

from benchmarks.runs import FLOOR, OURS, Setup, memory, per_epoch, training
from benchmarks.table import Amount, Run, Table

QUICK = False
ROWS = 128


def before(setup: Setup) -> list[Run]:
    return [Run(("{python}", "{subjects}/make_bert_base.py", "--base", "{base}", "--out", "{scratch}/bert-base"))]


def tables(setup: Setup) -> list[Table]:
    def run(script: str, method: str = "houlsby", more: tuple[str, ...] = ()) -> Run:
        return training(setup, script, method, rows=ROWS, epochs=2, base="{scratch}/bert-base", more=more)

    full, fast = "adaptree, full fine-tuning", "adaptree --fast"
    runs = {
        OURS: run("ours"),
        fast: run("ours", more=("--fast",)),
        "adapters, as documented": run("adapters_documented"),
        "adapters, tuned, own sampler": run("adapters_tuned", more=("--sampler",)),
        FLOOR: run("floor"),
    }
    held = {full: run("ours", "full"), **{label: runs[label] for label in (OURS, fast, "adapters, tuned, own sampler")}}
    return [
        Table("One epoch at the shape of BERT-base", "s", {label: Amount((r,), per_epoch) for label, r in runs.items()},
              aims={"adapters, as documented": ">= 2", "adapters, tuned, own sampler": ">= 0.95", FLOOR: ">= 0.952"},
              note=f"{ROWS} rows, two epochs, random weights: the second epoch's time; group_by_length has no effect."),
        Table("Peak memory above the loaded base at the shape of BERT-base", "MB",
              {label: Amount((r,), memory) for label, r in held.items()}, reference=full,
              aims={OURS: "<= 0.7", fast: "<= 0.35"}, scale=1e-6),
    ]  # fmt: skip
