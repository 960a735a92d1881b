"""Which rows of an unlabelled file are most worth labelling next, for a task that there is already.

Each row is predicted, and has a vector of the bare base. Rows are taken from places where there are many that the task
is unsure of, and that are far from each other (`core.acquisition`); numbers have no probability, so that their rows are
chosen by the vectors alone. Rows that are empty, repeat another row or are labelled already are not offered.
"""

from __future__ import annotations

import csv
import os
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import kinds
from adaptree.analysis.clean import csv_cell, writable
from adaptree.analysis.duplicates import normalised
from adaptree.core import acquisition
from adaptree.data.cells import is_absent, is_empty
from adaptree.data.events import Listener, note, silent
from adaptree.data.paths import asked_for, with_paths
from adaptree.data.read import Source, name_of
from adaptree.data.read import rows as read_rows
from adaptree.errors import DataError, UsageError
from adaptree.training.predict import columns_of, inputs_of

if TYPE_CHECKING:
    from adaptree.data.form import Form
    from adaptree.models.bound import Bound

STRATEGIES = ("diverse", "uncertain", "spread", "random")
ROWS = 20
MOST = 20_000
"""Rows of a file that are looked at: of a longer one, so many at random."""
CHUNK = 2048
PREFIX = "improve_"
"""What the columns of a written file begin with that are not the data's own."""


@dataclass(frozen=True)
class ToLabel:
    """A row that is worth a label."""

    row: int
    """Its number in its file, as errors name it."""
    text: str | tuple[str, str]
    prediction: dict[str, Any]
    """What the task says now, as `predict --format jsonl` prints it."""
    doubt: float | None
    """How unsure the task is, from 0 to 1; None for numbers."""


@dataclass(frozen=True)
class Improvement:
    """The rows to label next, those most worth it first."""

    task: str
    data: str
    kind: str
    strategy: str
    rows: int
    """How many rows were to choose from."""
    left_out: dict[str, int]
    """Rows that were not to choose from, by why: empty, repeated, labelled."""
    offered: list[ToLabel]

    def to_dict(self) -> dict[str, Any]:
        """Return what `--format json` prints."""
        return asdict(self)


@dataclass
class _Candidates:
    """The rows of a file that can be offered, and why others cannot."""

    numbers: list[int]
    inputs: list[Any]
    left_out: dict[str, int]


def improve(
    bound: Bound,
    data: Source,
    *,
    rows: int = ROWS,
    labelled: Source | None = None,
    out: str | Path | None = None,
    strategy: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    seed: int = 0,
    skip: Collection[int] = (),
    most: int | None = None,
    on_event: Listener = silent,
) -> Improvement:
    """Return the rows of an unlabelled file that are most worth labelling next.

    Rows whose text is in `labelled`, the data that the task learned from, are left out. With `out`, a csv is written
    with the chosen rows, all their columns and an empty one for the label. `strategy` is one of STRATEGIES; the default
    is what results/improve supports: diverse, and spread for numbers. `skip` are numbers of rows that are not to be
    offered; of more than `most` rows, so many at random are looked at.
    """
    kind, record = getattr(bound, "kind", None), bound.task.record
    if kind is None:
        raise UsageError("a composition of several tasks has no rows to label of its own.", hint="Name one task.")
    strategy = _checked(strategy, rows)
    data = list(data) if isinstance(data, Iterator) else data
    out = None if out is None else writable(Path(out), data)
    form = kinds.get(record.kind).form(dict(record.columns), "")
    reading: dict[str, Any] = {"text": text, "text_pair": text_pair, "encoding": encoding, "no_header": no_header}
    known = {} if labelled is None else _keys(bound, form, labelled, {**reading, "text": None, "text_pair": None})
    most = MOST if most is None else most
    found = _candidates(bound, form, data, known, reading, seed, on_event, frozenset(skip), most)
    if not found.inputs:
        why = ", ".join(f"{count:,} {reason}" for reason, count in found.left_out.items() if count) or "no row"
        raise DataError(
            f"'{name_of(data)}' has no row to label: {why}.",
            hint="Give a file of texts that the task was not trained on, with no label or an empty one.",
        )
    note(on_event, f"{len(found.inputs):,} texts to choose from.")
    predictions, doubt = _predict(bound, found.inputs, on_event)
    strategy = strategy or ("spread" if doubt is None else "diverse")
    if doubt is None and strategy in ("diverse", "uncertain"):
        raise UsageError(f"a {record.kind} task has no probabilities to doubt by.", hint="--strategy spread")
    texts = [form.text(given) for given in found.inputs]
    chosen = _choose(bound, strategy, texts, doubt, rows, seed)
    offered = [
        ToLabel(found.numbers[i], texts[i], predictions[i].to_dict(), None if doubt is None else float(doubt[i]))
        for i in chosen
    ]
    name = name_of(data)
    improvement = Improvement(record.reference, name, record.kind, strategy, len(texts), found.left_out, offered)
    if out is not None:
        _write(out, data, reading, improvement, _targets(form))
    return improvement


def _checked(strategy: str | None, rows: int) -> str | None:
    if rows < 1:
        raise UsageError(f"at least 1 row, not {rows}.", hint="--rows 20")
    if strategy is not None and strategy not in STRATEGIES:
        raise UsageError(f"no strategy '{strategy}'.", hint=f"There are: {', '.join(STRATEGIES)}.")
    return strategy


def _targets(form: Form) -> list[str]:
    """Return the columns that hold the label."""
    inputs = {form.columns.get(part) for part in form.input_columns}
    return [name for name in form.column_names(form.columns) if name not in inputs]


def _key(form: Form, given: Any) -> tuple[str, ...]:
    return normalised(form.text(given))


def _keys(bound: Bound, form: Form, data: Source, reading: Mapping[str, Any]) -> dict[tuple[str, ...], str]:
    """Return the texts of a labelled file, as `normalised` has them."""
    return {_key(form, given): "labelled" for _, given in inputs_of(bound, data, **reading)}


def _candidates(
    bound: Bound,
    form: Form,
    data: Source,
    known: Mapping[tuple[str, ...], str],
    reading: Mapping[str, Any],
    seed: int,
    on_event: Listener,
    skip: Collection[int],
    most: int,
) -> _Candidates:
    """Return the rows that can be offered: each text once, none empty or labelled; of many, `most` at random."""
    seen = dict(known)
    targets, rng = _targets(form), random.Random(seed)
    left_out = dict.fromkeys(("empty", "repeated", "labelled"), 0)
    kept: list[tuple[int, Any]] = []
    count = 0
    for number, row, given in _inputs(bound, data, reading, on_event):
        key = () if _is_blank(form, given) else _key(form, given)
        has_label = number in skip or (bool(targets) and not any(_blank_cell(row.get(name)) for name in targets))
        why = "empty" if not key else "labelled" if has_label else seen.get(key)
        if why:
            left_out[why] += 1
            continue
        seen[key] = "repeated"
        count += 1
        if len(kept) < most:
            kept.append((number, given))
        elif (at := rng.randrange(count)) < most:
            kept[at] = (number, given)
    if count > most:
        note(on_event, f"of {count:,} rows, {most:,} at random are looked at.")
    kept.sort(key=lambda each: each[0])
    return _Candidates([number for number, _ in kept], [given for _, given in kept], left_out)


def _inputs(
    bound: Bound, data: Source, reading: Mapping[str, Any], on_event: Listener
) -> Iterator[tuple[int, Mapping[str, Any], Any]]:
    """Yield the number of each row of a file, the row, and the input that it holds; None where it holds none."""
    text, pair = reading["text"], reading["text_pair"]
    asked, reader = columns_of(bound, text, pair), None
    nested = [column for column in asked_for(asked) if "." in column]
    how = {key: reading[key] for key in ("encoding", "no_header")}
    for number, row in read_rows(data, columns=asked, on_event=on_event, **how):
        whole = with_paths(row, nested)
        if reader is None:
            form = kinds.get(bound.task.record.kind).form(dict(bound.columns), "")
            reader = form.for_prediction(whole, {"text": text, "pair": pair, "label": None}, bound.task.record.name)
        yield number, whole, reader.input(whole, number, name_of(data))


def _is_blank(form: Form, given: Any) -> bool:
    if given is None:
        return True
    text = form.text(given)
    return all(map(is_empty, [text] if isinstance(text, str) else text))


def _blank_cell(value: Any) -> bool:
    return is_absent(value) or (isinstance(value, str) and not value.strip()) or value == []


def _predict(bound: Bound, inputs: list[Any], on_event: Listener) -> tuple[list[Any], np.ndarray[Any, Any] | None]:
    """Return the prediction of each input and how unsure it is; None where the kind has no probabilities."""
    predictions: list[Any] = []
    doubts: list[np.ndarray[Any, Any]] = []
    for start in range(0, len(inputs), CHUNK):
        some = bound.kind.inputs(inputs[start : start + CHUNK], bound.task.record)
        examples, out = bound.run(some)
        predictions += bound.respond(out, examples, some, None)
        if (doubt := bound.kind.doubts(out, examples)) is not None:
            doubts.append(doubt)
        done = min(start + CHUNK, len(inputs))
        if len(inputs) > CHUNK:
            on_event({"event": "reading", "name": "texts", "rows": done, "done": done == len(inputs)})
    return predictions, np.concatenate(doubts) if doubts else None


def _choose(
    bound: Bound, strategy: str, texts: list[Any], doubt: np.ndarray[Any, Any] | None, rows: int, seed: int
) -> list[int]:
    """Return the places of the rows to label, those most worth it first."""
    count = min(rows, len(texts))
    if strategy == "random":
        return [int(i) for i in np.random.default_rng(seed).permutation(len(texts))[:count]]
    if strategy == "spread":
        return [int(i) for i in acquisition.spread(bound.base.features(texts).numpy(), count, seed)]
    assert doubt is not None
    if strategy == "uncertain":
        return [int(i) for i in acquisition.uncertain(doubt, count)]
    return [int(i) for i in acquisition.diverse(doubt, bound.base.features(texts).numpy(), count, seed)]


def _write(out: Path, data: Source, reading: Mapping[str, Any], found: Improvement, targets: list[str]) -> None:
    """Write the chosen rows with their columns, the label's empty ones and what the task says; whole or not at all."""
    how = {key: reading[key] for key in ("encoding", "no_header")}
    wanted = {each.row: each for each in found.offered}
    rows = {number: row for number, row in read_rows(data, **how) if number in wanted}
    names = list(dict.fromkeys([*(name for row in rows.values() for name in row), *targets]))
    extra = [f"{PREFIX}{name}" for name in ("row", "prediction", "doubt")]
    partial = out.with_name(f"{out.name}.{os.getpid()}")
    try:
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*names, *extra], lineterminator="\n")
            writer.writeheader()
            for number, each in wanted.items():
                doubt = "" if each.doubt is None else f"{each.doubt:.4f}"
                cells = {name: csv_cell(rows[number].get(name)) for name in names}
                said = csv_cell(answer(each.prediction))
                writer.writerow(cells | dict(zip(extra, (number, said, doubt), strict=True)))
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(f"cannot write '{out}': {error.strerror or error}.", hint="--out FILE") from error


def answer(prediction: Mapping[str, Any]) -> Any:
    """Return the label, labels, number, numbers or tags of a prediction as `to_dict` gives it."""
    for key in ("label", "labels", "value", "values", "choice", "tags"):
        if key in prediction:
            return prediction[key]
    return None
