"""What a card shows of a task beside its scores: mistakes, scores by label, calibration.

`Kind.findings` makes plain JSON of a task's predictions, small enough for its record; `Kind.sections` turns that into
the sections of a card, as data. This file has what several kinds share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from adaptree.kinds.kind import Example, Kind, Out
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
Found = dict[str, Any]

CUT = 200
"""The most characters of a text that are kept; of a label, CUT_LABEL."""
CUT_LABEL = 60
MOST_LABELS = 50
MOST_WRONG = 10
MOST_RIGHT = 5
MOST_POINTS = 500
BINS = 10
IN_FULL = 10
"""The most labels with which a confusion matrix is a table too."""
DIGITS = 6
"""Significant digits of a number that is kept."""


@dataclass(frozen=True)
class Evaluated:
    """Inputs with their targets, the head's output for them, and the answers that it was decoded to."""

    inputs: Sequence[Any]
    targets: Any
    out: Any
    examples: Sequence[Example]
    answers: Any


class Table(NamedTuple):
    """A table of a card, left out where it has no rows. Cells are texts, numbers, lists of texts, or None for NaN."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]
    scores: Sequence[str] = ()
    """The columns whose numbers are shown with four decimals."""
    row_names: bool = False
    """Whether the first column names the rows."""


class Figure(NamedTuple):
    """A figure of a card, by its file's name; there are confusion.svg, calibration.svg and scatter.svg."""

    name: str


class Section(NamedTuple):
    """A section of a card; without blocks it is left out."""

    title: str
    blocks: Sequence[str | Table | Figure]


def examine(
    kind: Kind, inputs: Sequence[Any], targets: Any, out: Out, examples: Sequence[Example], answers: Any = None
) -> Found:
    """Return the findings of a kind in evaluated inputs, as JSON values; {} where it has none.

    `answers` where they are known already. A `single` kind needs no examples.
    """
    if not len(inputs):
        return {}
    answers = kind.decode(out, examples) if answers is None else answers
    found = kind.findings(Evaluated(inputs, targets, out, examples, answers))
    return as_json({"rows": len(inputs), **found}) if found else {}


def by_label(labels: Sequence[str], right: Array, predicted: Array, gold: Array) -> list[Found]:
    """Return precision, recall and F1 of each label from its counts."""
    rows = []
    for label, *counts in zip(labels, right.tolist(), predicted.tolist(), gold.tolist(), strict=True):
        hits, claimed, there = counts
        scores = {
            "precision": hits / claimed if claimed else 0.0,
            "recall": hits / there if there else 0.0,
            "f1": 2 * hits / (claimed + there) if claimed + there else 0.0,
        }
        rows.append({"label": name(label), **scores, "gold": there, "predicted": claimed, "right": hits})
    return rows


def by_label_blocks(found: Mapping[str, Any]) -> list[str | Table | Figure]:
    """Return a table of scores by label, where a task's findings have them."""
    rows = found.get("by_label") or []
    if not rows:
        return []
    scores = ("precision", "recall", "f1")
    shown = Table(
        ("label", *scores, "gold", "predicted"),
        [(row["label"], *(row[score] for score in scores), row["gold"], row["predicted"]) for row in rows],
        scores,
    )
    more = found.get("labels", 0) - len(rows)
    note = f"The {len(rows)} labels with the most rows; there are {more:,} more."
    return [shown, note] if more > 0 else [shown]


def confusion_blocks(found: Mapping[str, Any]) -> list[str | Table | Figure]:
    """Return a confusion matrix as a figure, and of few labels as a table too."""
    matrix = found.get("confusion")
    if not matrix:
        return []
    labels, counts = matrix["labels"], matrix["counts"]
    rows = [(label, *row) for label, row in zip(labels, counts, strict=True)]
    table = [Table(("gold ↓ predicted →", *labels), rows, row_names=True)] if len(labels) <= IN_FULL else []
    return [Figure("confusion.svg"), *table]


def calibration(sure: Array, right: Array, before: Array | None = None) -> Found:
    """Return how often predictions are right by how sure they are (Guo et al. 2017, §2), in bins of equal width.

    `before` is how sure they were without a temperature, where there is one.
    """
    sure = np.nan_to_num(sure)
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    bins, error = [], 0.0
    for number in range(BINS):
        here = place == number
        count = int(here.sum())
        confidence, accuracy = (float(x[here].mean()) if count else None for x in (sure, right))
        bins.append({"count": count, "confidence": confidence, "accuracy": accuracy})
        error += count / max(len(sure), 1) * abs((accuracy or 0.0) - (confidence or 0.0))
    return {"bins": bins, "error": error} | (
        {} if before is None else {"error_before": calibration(before, right)["error"]}
    )


def calibration_blocks(found: Mapping[str, Any], record: Record) -> list[str | Table | Figure]:
    """Return how sure a task is against how often it is right, and what its temperature changed in that."""
    bins = (found.get("calibration") or {}).get("bins") or []
    if not bins:
        return []
    rows = [
        (f"{i / len(bins):.1f} to {(i + 1) / len(bins):.1f}", each["count"], each["confidence"], each["accuracy"])
        for i, each in enumerate(bins)
        if each["count"]
    ]
    head = ("probability", "rows", "mean probability", "share that is right")
    return [
        Figure("calibration.svg"),
        _in_words(found["calibration"], record),
        Table(head, rows, head[2:]),
    ]


def _in_words(known: Mapping[str, Any], record: Record) -> str:
    """Return the expected calibration error in words, with and without the temperature of the task."""
    error = f"Expected calibration error: {known['error']:.4f} (0 where it is right as often as it is sure)."
    if known.get("error_before") is None:
        return error
    temperature = record.extra.get("temperature", 1.0)
    where = "other rows than these" if record.metrics.get("test") else "these very rows, so it flatters"
    before = f"{known['error_before']:.4f} without the temperature of {temperature:.4g}"
    return f"{error} It would be {before}, which has the highest likelihood on {where}."


def number_errors(label: str, gold: Array, predicted: Array, most: int) -> Found:
    """Return how far predicted numbers are off, and at most so many points, evenly spread over the rows."""
    off = predicted - gold
    at = np.unique(np.linspace(0, len(gold) - 1, min(most, len(gold))).round().astype(np.int64))
    points = {"gold": gold[at].tolist(), "predicted": predicted[at].tolist()}
    return {"name": name(label), "mean": off.mean(), "spread": off.std(), **points}


def number_blocks(found: Mapping[str, Any]) -> list[str | Table | Figure]:
    targets = found.get("targets") or []
    if not targets:
        return []
    head: tuple[str, ...] = ("number", "mean of predicted - gold", "spread of it")
    rows: list[tuple[Any, ...]] = [(each["name"], each["mean"], each["spread"]) for each in targets]
    if not any(each["name"] for each in targets):
        head, rows = head[1:], [row[1:] for row in rows]
    return [Table(head, rows), Figure("scatter.svg")]


def number_sections(found: Mapping[str, Any], record: Record) -> list[Section]:
    """Return the sections on predicted numbers: how far off they are, and the largest misses."""
    return [
        Section("How far off it is", number_blocks(found)),
        mistakes(found, record, "", {"gold": "gold", "predicted": "predicted"}),
    ]


def mistakes(
    found: Mapping[str, Any], record: Record, which: str, columns: Mapping[str, str], scores: Sequence[str] = ()
) -> Section:
    """Return the section on mistakes; `which` says which ones are shown, '' where every number is somewhat off.

    `columns` are the keys of a mistake with their headings, `scores` the headings of those with four decimals.
    """
    title, rows = "Where it goes wrong", found.get("mistakes") or []
    if not rows:
        return Section(title, [])
    part = "test" if record.metrics.get("test") else "validation"
    first = "first " if found["rows"] < int(record.data.get(part) or 0) else ""
    seen = f"the {first}{found['rows']:,} rows of the {part} part"
    intro = f"{found['wrong']:,} of {seen} are wrong. {which}:" if which else f"The largest misses in {seen}:"
    return Section(title, [intro, examples_table(rows, columns, scores)])


def examples_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], scores: Sequence[str] = ()) -> Table:
    """Return predictions beside their texts."""
    cells = [
        ([row[key] for key in ("text", "pair") if key in row], *(_or_none(row.get(key)) for key in columns))
        for row in rows
    ]
    return Table(("text", *columns.values()), cells, scores)


def _or_none(value: Any) -> Any:
    return value.strip() or "none" if isinstance(value, str) else value


def worst(wrong: Array, badness: Array) -> list[int]:
    """Return the examples that are wrong, the worst first; of equal ones the first."""
    at = np.flatnonzero(wrong)
    order: list[int] = at[np.argsort(-badness[at], kind="stable")].tolist()
    return order


def most_frequent(counts: Array) -> Array:
    """Return the labels with the most rows, in their own order."""
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_LABELS])


def largest(misses: Array) -> list[int]:
    """Return the examples with the largest misses, those that are NaN first."""
    sized = np.nan_to_num(misses, nan=np.inf, posinf=np.inf)
    return worst(sized > 0, sized)[:MOST_WRONG]


def texts(given: Any) -> Found:
    """Return the text of an input, or both texts of a pair, cut."""
    if isinstance(given, str):
        return {"text": cut(given)}
    return {"text": cut(given[0]), "pair": cut(given[1])}


def joined(labels: Iterable[Any]) -> str:
    """Return labels on one line, cut."""
    return cut(", ".join(map(str, labels)))


def name(text: object) -> str:
    """Return a label or a word of at most CUT_LABEL characters."""
    return cut(text, CUT_LABEL)


def without_rows(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return findings without the rows that they quote, for those who may not read the data."""
    return {name: value for name, value in found.items() if not _quotes(value)}


def _quotes(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(row, dict) and {"text", "prompt"} & row.keys() for row in value)


def cut(text: object, most: int = CUT) -> str:
    """Return a text of at most so many characters."""
    line = str(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def as_json(value: Any) -> Any:
    """Return a JSON value with numbers rounded to DIGITS digits; None for those that are not finite."""
    if isinstance(value, Mapping):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
