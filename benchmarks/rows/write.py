"""32 texts of 32 tasks, written at once and one after the other."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.runs import Setup
from benchmarks.table import Amount, Measurement, Run, Table

QUICK = False
ONE_BY_ONE = "one by one, transformers' generate"
AT_ONCE = "adaptree, all at once"


def tables(setup: Setup) -> list[Table]:
    return [_table(method) for method in ("lora:8", "houlsby:48")]


def _table(method: str) -> Table:
    run = Run(
        ("{python}", "{subjects}/write_ours.py", "--base", "{smollm}", "--out", "{out}", "--method", method)
    )  # fmt: skip
    return Table(
        f"32 texts of 32 tasks, 12 tokens each ({method}, smollm)", "s",
        {
            AT_ONCE: Amount((run,), _seconds("at_once")),
            ONE_BY_ONE: Amount((run,), _seconds("one_by_one")),
        },
        reference=AT_ONCE, aims={ONE_BY_ONE: ">= 5"},
        note="Prompts of 20 tokens, processor seconds of one thread. Both write the same tokens, which the run checks.",
    )  # fmt: skip


def _seconds(what: str) -> Callable[[Measurement], float]:
    return lambda measured: float(measured["found"][what])
