"""32 texts of 32 tasks, written at once and one after the other."""

from __future__ import annotations

from benchmarks.rows.tasks import reader
from benchmarks.runs import Setup
from benchmarks.table import Amount, Run, Table

QUICK = False
ONE_BY_ONE = "one by one, transformers' generate"
AT_ONCE = "adaptree, all at once"


def tables(setup: Setup) -> list[Table]:
    run = Run(("{python}", "{subjects}/write_ours.py", "--base", "smollm", "--out", "{out}"))
    return [
        Table(
            f"32 texts of 32 tasks, 24 tokens each ({method}, smollm)", "s",
            {
                AT_ONCE: Amount((run,), reader("at_once", method)),
                ONE_BY_ONE: Amount((run,), reader("one_by_one", method)),
                "one by one, adaptree's own steps": Amount((run,), reader("loop", method)),
            },
            reference=AT_ONCE, aims={ONE_BY_ONE: ">= 5"},
            note="Prompts of 20 tokens. The three write the same tokens, which the run checks.",
        )
        for method in ("lora:8", "houlsby:48")
    ]  # fmt: skip
