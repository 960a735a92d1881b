"""Kinds of task, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.errors import UsageError
from adaptree.kinds.classify import Classify
from adaptree.kinds.kind import Kind, Out, Prediction, Unit, check_pooling
from adaptree.kinds.regress import Regress

if TYPE_CHECKING:
    from adaptree.data.table import Table
    from adaptree.task import Record

__all__ = ["Classify", "Kind", "Out", "Prediction", "Regress", "Unit", "check_pooling", "for_record", "for_table"]


def for_table(table: Table, rows: np.ndarray[Any, Any]) -> Kind:
    """The kind that fits a table of data, with what it learns from its training rows."""
    if table.kind == "classify":
        return Classify(table.labels)
    targets = table.golds(rows).astype(np.float64)
    return Regress(float(targets.mean()), float(targets.std()) or 1.0)


def for_record(record: Record) -> Kind:
    if record.kind == "classify":
        return Classify(tuple(record.labels))
    if record.kind == "regress":
        return Regress(record.extra["mean"], record.extra["std"])
    raise UsageError(f"the task '{record.name}' is of kind '{record.kind}', which answers no texts.")
