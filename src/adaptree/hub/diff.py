"""Two versions side by side: where their records differ, and which answers to the rows of a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.data.events import Listener, silent
from adaptree.data.read import Source
from adaptree.errors import DataError, UsageError
from adaptree.tasks.record import Record, read_record

if TYPE_CHECKING:
    from adaptree.data.dataset import Dataset
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store

LEFT_OUT = ("format", "name", "version", "history", "examples", "probe", "intervals", "checksum")
"""Of a record, what is not compared: numbers that differ whenever anything does."""
OF_EXTRA = ("insight", "search")
READING = ("text", "text_pair", "label", "encoding", "no_header")
CHUNK = 1024
"""Rows that are answered together."""
CLOSE = 1e-4
"""Numbers that are nearer to each other count as the same answer."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something in two records that differs; None where a record does not say."""

    what: str
    a: Any
    b: Any

    @property
    def change(self) -> float | None:
        """How much more b is than a, where both are numbers."""
        both = (self.a, self.b)
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in both):
            return None
        return float(self.b) - float(self.a)


@dataclass(frozen=True, kw_only=True)
class ChangedAnswer:
    """A row of a file that two versions answer differently."""

    row: int
    """from 1, among the rows that both read"""
    text: str
    a: Any
    b: Any
    gold: str | None = None
    better: str = ""
    """a or b: whose answer is nearer to the label; '' where neither is, or there is no label"""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What two versions answer to the same rows."""

    rows: int
    changed: list[ChangedAnswer]
    scores: dict[str, dict[str, float]]
    """{metric: {a, b}} where the rows have labels"""
    unlabelled: str = ""
    """why the rows count as unlabelled"""

    def better(self, side: str) -> int:
        """Return in how many rows the answer of `side` (a or b) is better than the other."""
        return sum(each.better == side for each in self.changed)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where version b differs from version a."""

    a: str
    b: str
    facts: list[Fact]
    same_weights: bool
    answers: Answers | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as plain values."""
        found: dict[str, Any] = {
            "a": self.a,
            "b": self.b,
            "same_weights": self.same_weights,
            "facts": [{**asdict(fact), "change": fact.change} for fact in self.facts],
        }
        if self.answers is not None:
            better = {"better_a": self.answers.better("a"), "better_b": self.answers.better("b")}
            found["answers"] = {**asdict(self.answers), "count": len(self.answers.changed), **better}
        return found


def diff(
    store: Store, a: str, b: str, data: Source | None = None, *, on_event: Listener = silent, **options: Any
) -> Difference:
    """Return where two stored versions differ; with `data`, also which of its rows they answer differently.

    `options` are those of reading (text, text_pair, label, encoding, no_header) and of computing (base, device,
    threads, trust_remote_code, allow_pickle).
    """
    first, second = _record(store, a), _record(store, b)
    facts = [*_facts(first.to_json(), second.to_json())]
    answers = None if data is None else _compared(store, first, second, data, on_event, options)
    same = first.digest == second.digest
    return Difference(a=first.reference, b=second.reference, facts=facts, same_weights=same, answers=answers)


def _record(store: Store, reference: str) -> Record:
    folder = store.path_of(reference)
    name, version = reference.partition("@")[0], int(folder.name)
    return replace(read_record(folder, called=f"{name}@{version}"), name=name, version=version)


def _facts(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Fact]:
    """Yield what differs, in the order of a record's fields."""
    one, other = (dict(_flat({key: value for key, value in each.items() if key not in LEFT_OUT})) for each in (a, b))
    for what in dict.fromkeys([*one, *other]):
        if one.get(what) != other.get(what):
            yield Fact(what=what, a=one.get(what), b=other.get(what))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if prefix == "extra." and key in OF_EXTRA:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# answers


@dataclass(frozen=True)
class _Side:
    """One version's answers to all rows."""

    bound: Bound
    inputs: list[Any]
    shown: list[Any]
    """as a table shows them"""
    answers: Any
    """as they are scored"""
    targets: Any = None
    """the labels that they are scored against, where there are such"""
    gold: list[str] = field(default_factory=list)
    """the labels in words"""

    @property
    def scores(self) -> dict[str, float]:
        return {} if self.targets is None else self.bound.kind.score(self.targets, self.answers)

    def error(self, i: int) -> float:
        """Return how far an answer is from its label: by how much, in how many places, or in the main metric."""
        target, answer = self.targets[i], self.answers[i]
        if isinstance(self.answers, np.ndarray):
            off = np.abs(np.asarray(answer, dtype=float) - np.asarray(target, dtype=float))
            return float(off.mean() if np.issubdtype(self.answers.dtype, np.floating) else np.count_nonzero(off))
        kind = self.bound.kind
        score = kind.score([target], [answer]).get(kind.metrics[0], math.nan)
        return score if kind.metrics[0] in kind.lower_is_better else -score


def _compared(
    store: Store, a: Record, b: Record, data: Source, on_event: Listener, options: Mapping[str, Any]
) -> Answers:
    """Return what two versions answer to the rows of a file."""
    from adaptree.models.opening import open_task

    if a.kind != b.kind:
        raise UsageError(
            f"'{a.reference}' is of kind {a.kind}, '{b.reference}' of kind {b.kind}: their answers cannot be compared.",
            hint="Leave --data out.",
        )
    reading = {key: value for key, value in options.items() if key in READING}
    opening = {key: value for key, value in options.items() if key not in READING}
    first = open_task(store, a.reference, **opening)
    if a.base.get("fingerprint") == b.base.get("fingerprint"):
        opening["base"] = first.base
    bounds = (first, open_task(store, b.reference, **opening))
    why = ""
    try:
        one, other = (_labelled(bound, data, reading, on_event) for bound in bounds)
    except DataError as error:
        why = error.what
        one, other = (_unlabelled(bound, data, reading, on_event) for bound in bounds)
    if len(one.inputs) != len(other.inputs):
        raise DataError(
            f"of the file '{a.reference}' reads {len(one.inputs):,} rows and '{b.reference}' {len(other.inputs):,}.",
            hint="Name the column that both read: --text COL",
        )
    scores = {name: {"a": score, "b": other.scores.get(name, math.nan)} for name, score in one.scores.items()}
    return Answers(rows=len(one.inputs), changed=list(_changed(one, other)), scores=scores, unlabelled=why)


def _changed(one: _Side, other: _Side) -> Iterator[ChangedAnswer]:
    for i, given in enumerate(one.inputs):
        a, b = _answer(one.shown[i]), _answer(other.shown[i])
        if _same(a, b):
            continue
        gold, better = None, ""
        if one.targets is not None:
            gold = one.gold[i]
            errors = one.error(i), other.error(i)
            better = "a" if errors[0] < errors[1] else "b" if errors[1] < errors[0] else ""
        yield ChangedAnswer(row=i + 1, text=_words(given), a=a, b=b, gold=gold, better=better)


def _labelled(bound: Bound, data: Source, reading: Mapping[str, Any], on_event: Listener) -> _Side:
    """Return a task's answers to labelled rows; raise DataError if they have no labels that it can read."""
    from adaptree.models.evaluate import open_labelled

    dataset = open_labelled(bound, data, on_event=on_event, **reading)
    every = range(len(dataset))
    found = _answered(bound, dataset.inputs(every))
    gold = [_gold(bound, dataset, i) for i in every]
    return replace(found, targets=dataset.targets(every), gold=gold)


def _gold(bound: Bound, dataset: Dataset, i: int) -> str:
    """Return the label of an example in words; '?' for one that the task does not know."""
    if dataset.values is not None and dataset.labels and dataset.values[i] >= len(dataset.labels):
        return "?"
    example = dataset.example(i)
    return bound.kind.show(example["input"], example["gold"])[1] if "gold" in example else str(example["label"])


def _unlabelled(bound: Bound, data: Source, reading: Mapping[str, Any], on_event: Listener) -> _Side:
    from adaptree.training.predict import inputs_of

    columns = {key: value for key, value in reading.items() if key != "label"}
    return _answered(bound, [given for _, given in inputs_of(bound, data, on_event=on_event, **columns)])


def _answered(bound: Bound, inputs: list[Any]) -> _Side:
    from adaptree.models.evaluate import concatenated

    shown, answers = [], []
    for start in range(0, len(inputs), CHUNK):
        read = bound.kind.inputs(inputs[start : start + CHUNK], bound.task.record)
        examples, out = bound.run(read)
        shown += bound.respond(out, examples, read, None)
        answers.append(bound.kind.decode(out, examples))
    return _Side(bound, inputs, shown, concatenated(answers))


def _answer(prediction: Any) -> Any:
    """Return what a table shows of a prediction, without its score."""
    found = [value for key, value in prediction.columns().items() if key.startswith("prediction")]
    return found[0] if len(found) == 1 else found


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return all(map(_same, a, b)) if len(a) == len(b) else False
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=CLOSE, abs_tol=CLOSE)
    return bool(a == b)


def _words(given: Any) -> str:
    """Return an input as one text."""
    parts = given.values() if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else [given]
    return " · ".join(str(part) for part in parts)
