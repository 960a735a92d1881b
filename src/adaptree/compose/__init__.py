"""Compositions: small expressions over tasks, and what they mean in one model.

`expression` is what a person types, `compile` looks its tasks up, `merge` makes one plan of them.
"""

from __future__ import annotations

from adaptree.compose.compile import Composition, Tasks, compile_, dropped, of_task, own
from adaptree.compose.expression import (
    BLOCKS,
    Average,
    AverageOutputs,
    Drop,
    Expression,
    Fuse,
    Name,
    Parallel,
    Rows,
    Stack,
    average,
    average_outputs,
    drop,
    from_json,
    fuse,
    parallel,
    parse,
    rows,
    stack,
)
from adaptree.compose.merge import Parts, plan_of, together, weights_of

__all__ = [
    "BLOCKS",
    "Average",
    "AverageOutputs",
    "Composition",
    "Drop",
    "Expression",
    "Fuse",
    "Name",
    "Parallel",
    "Parts",
    "Rows",
    "Stack",
    "Tasks",
    "average",
    "average_outputs",
    "compile_",
    "drop",
    "dropped",
    "from_json",
    "fuse",
    "of_task",
    "own",
    "parallel",
    "parse",
    "plan_of",
    "rows",
    "stack",
    "together",
    "weights_of",
]
