"""Evaluation: a task's predictions for labelled rows, their scores, and the result as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.compose import Name
from adaptree.data.columns import listed
from adaptree.data.dataset import Dataset, Schema
from adaptree.data.events import Listener, silent
from adaptree.data.read import Source
from adaptree.errors import DataError, UsageError
from adaptree.kinds.reading import open_data
from adaptree.tasks.record import EVALUATED, REBASED, WARNINGS

if TYPE_CHECKING:
    from adaptree.kinds import Example, Out
    from adaptree.models.bound import Bound
    from adaptree.models.several import MultiTask
    from adaptree.tasks.store import Store
    from adaptree.tasks.task import Task

Array = np.ndarray[Any, Any]
CHUNK = 4096
OUTSIDE = "O"
"""The tag of words in no entity: a file of other entities has it too."""


@dataclass(frozen=True)
class Part:
    """Some rows of a dataset."""

    dataset: Dataset
    rows: Array

    def __len__(self) -> int:
        return len(self.rows)


def whole(dataset: Dataset) -> Part:
    """Return all rows of a dataset."""
    return Part(dataset, np.arange(len(dataset)))


@dataclass(frozen=True)
class Decoded:
    """A task's decoded answers for a part; for its first inputs also the examples and the head's output."""

    answers: Any
    out: Any
    examples: list[Example]


def decode(bound: Bound, part: Part, out: Out | None = None, keep: int = 0) -> Decoded:
    """Return a task's answers for labelled rows, with the output and examples of the first `keep`.

    `out` is the head's output where it is known already.
    """
    if out is not None:
        return Decoded(bound.kind.decode(out, []), out[:keep], [])
    answers: list[Any] = []
    outputs: list[Any] = []
    kept: list[Example] = []
    for start in range(0, len(part), CHUNK):
        rows = part.rows[start : start + CHUNK]
        inputs = bound.kind.inputs(part.dataset.inputs(rows), bound.task.record)
        targets = part.dataset.targets(rows) if bound.kind.generates else None
        examples, found = bound.run(inputs, batch_size=64, targets=targets)
        answers.append(bound.kind.decode(found, examples))
        if start < keep:  # even an empty slice of a tensor would keep all of it in memory
            some = examples[: keep - start]
            outputs.append(found[: keep - start if bound.kind.single else sum(map(len, some))])
            kept += [] if bound.kind.single else some
    return Decoded(concatenated(answers), concatenated(outputs), kept)


def concatenated(parts: list[Any]) -> Any:
    """Return what was decoded in parts as one: an array, a tensor or a list."""
    import torch

    if parts and isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if parts and isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    return [each for some in parts for each in some]


def score(bound: Bound, part: Part, answers: Any = None) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return a task's metrics on labelled rows and their 95 % intervals; `answers` where they are known already."""
    targets = part.dataset.targets(part.rows)
    answers = decode(bound, part).answers if answers is None else answers
    intervals = bound.kind.intervals(targets, answers)
    return bound.kind.score(targets, answers), {key: list(interval) for key, interval in intervals.items()}


def score_texts(bound: Bound, part: Part) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Let a task write a text for each different input; return how they agree with the targets."""
    from adaptree.kinds import written

    inputs = part.dataset.inputs(part.rows)
    keys = [part.dataset.form.key(given) for given in inputs]
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    asked = [inputs[i] for i in first.values()]
    said = bound.write(bound.kind.inputs(asked, bound.task.record))
    texts = dict(zip(first, (each.text for each in said), strict=True))
    return written.score(*written.grouped(keys, [texts[key] for key in keys], part.dataset.targets(part.rows)))


def evaluate(
    bound: Bound | MultiTask,
    data: Source,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    store: Store | None = None,
    on_event: Listener = silent,
) -> dict[str, Any]:
    """Return a task's scores on labelled data with 95 % intervals, and its price.

    In its `store`, a task that was rebased then counts as evaluated.
    """
    from adaptree.models.several import MultiTask

    if isinstance(bound, MultiTask):
        raise UsageError(
            f"{bound.expression!r} gives several answers, and a row of a file is labelled for one.",
            hint=f'Evaluate each part: adaptree evaluate "{next(iter(bound.parts))}" DATA',
        )
    dataset = open_labelled(
        bound, data, text=text, text_pair=text_pair, label=label, encoding=encoding, no_header=no_header,
        on_event=on_event,
    )  # fmt: skip
    record = bound.task.record
    scores, intervals = score(bound, whole(dataset))
    if bound.kind.generates:
        more = score_texts(bound, whole(dataset))
        scores, intervals = scores | more[0], intervals | more[1]
    alone = isinstance(bound.composition.expression, Name) and len(bound.composition.tasks) == 1
    if store is not None and REBASED in record.extra and alone and record.reference in store:
        store.mark(record.reference, EVALUATED)
    found = _result_of(bound)
    del found["baselines"], found["warnings"]  # those are of other rows
    if bound.int8:
        found["int8"] = True
        found["int8_compared"], found["int8_changed"] = bound.int8_compared
    if dataset.unknown:
        found["unknown_labels"] = dataset.unknown
    if left_out := {why: count for why, count in dataset.left_out.items() if count}:
        found["left_out"] = left_out
    return {**found, "rows": len(dataset), "metrics": {"test": scores}, "intervals": {"test": intervals}}


def open_labelled(
    bound: Bound, data: Source, *, text_pair: str | None = None, on_event: Listener = silent, **reading: Any
) -> Dataset:
    """Return labelled data as a task reads it; raise DataError if it has no label that the task knows."""
    record = bound.task.record
    dataset = open_data(data, pair=text_pair, like=Schema.of_task(record), unknown=True, on_event=on_event, **reading)
    _check_labels(dataset, record.name)
    return dataset


def _check_labels(dataset: Dataset, task: str) -> None:
    """Raise DataError if a file has labels, and none that the task knows: every score would be zero."""
    counts = dataset.counts()
    known = [str(label) for label in dataset.labels if str(label) != OUTSIDE or dataset.form.labels_of == "rows"]
    if dataset.unknown and not any(counts.get(label) for label in known):
        raise DataError(
            f"'{dataset.name}' has no label that the task '{task}' knows: it has {listed(list(dataset.unknown)[:5])}, "
            f"the task {listed(known[:5])}.",
            hint="Choose the column with --label COL, or evaluate another task.",
        )


def result(task: Task) -> dict[str, Any]:
    """Return a trained task's scores and price as plain numbers: the contract of `--format json`."""
    record = task.record
    return {
        "task": record.name,
        "version": record.version,
        "kind": record.kind,
        "base": record.base["name"],
        "method": record.method,
        "metrics": record.metrics,
        "intervals": record.intervals,
        "baselines": record.baselines,
        "warnings": record.extra.get(WARNINGS, []),
        "parameters": record.parameters,
        "trained_percent": record.trained_percent,
        "bytes": task.bytes,
        "seconds": record.seconds,
        "seed": record.seed,
    }


def _result_of(bound: Bound) -> dict[str, Any]:
    """Return the result of a bound task; that of a composition has its text as name, and the price of all its tasks."""
    found = result(bound.task)
    expression = bound.composition.expression
    if isinstance(expression, Name):
        return found
    tasks = {(task.record.reference, task.record.digest or id(task)): task for task in bound.composition.tasks}
    records = [task.record for task in tasks.values()]
    summed = {
        part: sum(r.parameters.get(part, 0) for r in records) for part in ("adapters", "norms", "head", "trained")
    }
    return {
        **found,
        "task": repr(expression),
        "version": None,
        "parts": [record.reference for record in records],
        "method": bound.spelling,
        "parameters": {**found["parameters"], **summed},
        "trained_percent": sum(record.trained_percent for record in records),
        "bytes": sum(task.bytes for task in tasks.values()),
        "seconds": sum(record.seconds for record in records),
        "seed": None,
    }
