"""The examples of one file: random access to inputs and targets, in bounded memory whatever the file's size."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptree.data.buffer import Buffer
from adaptree.data.cells import as_weight
from adaptree.data.columns import listed
from adaptree.data.form import Form
from adaptree.data.labels import merged_names, variants
from adaptree.data.read import Row
from adaptree.data.target_column import TargetColumn
from adaptree.errors import DataError

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

TEXT, LABEL, WEIGHT = "without text", "without label", "of weight 0"
MERGED = "merged_labels"
"""In what a task's record says of its data: by label, the spellings merged in it; only with --merge-labels."""


@dataclass(frozen=True)
class Schema:
    """The kind, columns and labels that a validation or test file must have."""

    name: str
    """The file or task that the schema is of, for messages."""
    kind: str
    columns: Mapping[str, Any]
    labels: tuple[Any, ...] = ()
    merged: bool = False
    """Whether labels are known in any case and with any blanks (--merge-labels)."""

    @classmethod
    def of_task(cls, record: Record) -> Schema:
        """Return what a file must look like for a task to be evaluated on it."""
        merged = record.data.get(MERGED) is not None
        return cls(f"the task {record.name}", record.kind, record.columns, tuple(record.labels), merged)


class Target(Protocol):
    """What a dataset needs to know about a kind of task."""

    name: str
    numeric: bool
    """Whether a target is a number and not one of several labels."""

    @staticmethod
    def takes(column: TargetColumn) -> str | None:
        """Return why a column of labels is of this kind; None when it is not."""


class Dataset:
    """The examples that were kept of one file, of which 24 bytes each stay in memory beside the buffer of texts.

    `values` holds all targets where each is one number or one label (then as its position in `labels`), else None.
    """

    def __init__(
        self, name: str, kind: str, why: str, form: Form, *, labels: tuple[Any, ...], values: NDArray[Any] | None,
        buffer: Buffer, digest: str, counts: dict[str, int], unknown: dict[str, int], skipped: Mapping[str, array[int]],
        blank: dict[str, int], names: Mapping[str, str] | None, merged: dict[str, dict[str, int]] | None,
        weight: str | None = None, weights: NDArray[np.float32] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.kind = kind
        self.why = why
        self.form = form
        self.labels = labels
        self.values = values
        self.digest = digest
        self.unknown = unknown
        """Labels that the task does not know, with their counts; in `values` they are behind the last label."""
        self.weight = weight
        """The column that the weights were read from."""
        self.weights = weights
        """How much each example counts in the training loss, 1 on average; None where all count the same."""
        self.left_out = {why: len(rows) for why, rows in skipped.items()}
        """How many rows of the file are no examples, by the reason."""
        self.blank = blank
        """By column, how many examples have nothing in it but a text in another."""
        self.merged = merged
        """By label, how often each of the spellings occurs that were merged in it; None where none are merged."""
        self.unused: list[str] = []
        """The file's columns that are not read."""
        self.unused_texts: list[str] = []
        """Those of them that hold sentences, unless the user named the texts to read."""
        self.keys: NDArray[np.uint64] = np.frombuffer(buffer.keys, dtype=np.uint64)
        """Equal for examples with the same input."""
        self._counts = counts
        self._names = names or {}
        self._skipped = np.sort(np.concatenate([np.asarray(rows, dtype=np.int64) for rows in skipped.values()]))
        self._bytes = buffer.finish()
        self._starts: NDArray[np.uint64] = np.frombuffer(buffer.starts, dtype=np.uint64)
        self._lengths: NDArray[np.uint32] = np.frombuffer(buffer.lengths, dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def columns(self) -> dict[str, str | None]:
        """Which columns were read, by their part: text, pair and label, or what the kind's files have."""
        return dict(self.form.columns)

    @property
    def schema(self) -> Schema:
        """The kind, columns and labels that a second file must have."""
        return Schema(self.name, self.kind, self.columns, self.labels, self.merged is not None)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The ordinal of each example's row in its source, from 0."""
        return np.delete(np.arange(len(self) + len(self._skipped)), self._skipped)

    def inputs(self, indices: Iterable[int]) -> list[Any]:
        """Return some examples' inputs."""
        if not self.form.one_value:
            return [json.loads(self._part(i, 0)) for i in indices]
        if self.form.columns.get("pair") is None:
            return [self._part(i, 0).decode() for i in indices]
        return [(self._part(i, 0).decode(), self._part(i, 1).decode()) for i in indices]

    def targets(self, indices: Iterable[int]) -> Any:
        """Return some examples' targets: an array of `values`, or a list of what the kind's files hold."""
        if self.values is not None:
            return self.values[np.asarray(indices, dtype=np.int64)]
        found = [json.loads(self._part(i, 1)) for i in indices]
        return [self.form.renamed(target, self._names) for target in found] if self._names else found

    def texts(self, indices: Iterable[int]) -> list[Any]:
        """Return some examples' inputs as plain texts or pairs of texts."""
        return [self.form.text(given) for given in self.inputs(indices)]

    def strata(self) -> NDArray[Any]:
        """Return the stratum of each example: its label, or its tenth of the numbers (fewer with too few texts)."""
        if self.values is None:
            return np.zeros(len(self), dtype=np.int32)
        if self.labels:
            return self.values
        parts = int(np.clip(len(np.unique(self.keys)) // 10, 1, 10))
        edges = np.quantile(self.values, np.arange(1, parts) / parts)
        return np.searchsorted(edges, self.values, side="right")

    def counts(self) -> dict[str, int]:
        """Return how often each label occurs."""
        if self.values is None or not self.labels:
            return self._counts
        counts = np.bincount(self.values, minlength=len(self.labels)).tolist()
        return {str(label): count for label, count in zip(self.labels, counts, strict=False)}

    def example(self, i: int) -> dict[str, Any]:
        """Return an example as a task's record keeps it."""
        (given,) = self.inputs([i])
        if self.values is None:
            return {"input": given, "gold": self.targets([i])[0]}
        target = self.values[i].item()
        shown = {"text": given if isinstance(given, str) else given[0]}
        shown["label"] = self.labels[target] if self.labels else target
        return shown if isinstance(given, str) else {**shown, "pair": given[1]}

    def _part(self, i: int, which: int) -> bytes:
        start, end = int(self._starts[i]), int(self._starts[i + 1])
        middle = start + int(self._lengths[i])
        return bytes(self._bytes[middle:end] if which else self._bytes[start:middle])


def build(
    name: str, form: Form, kinds: Sequence[Target], stream: Iterator[Row], *, sample: Sequence[Mapping[str, Any]] = (),
    schema: Schema | None = None, unknown: bool = False, merge: bool = False, weight: str | None = None,
) -> Dataset:  # fmt: skip
    """Read all rows of a stream, in one pass, as a form reads them.

    Of several `kinds` that have this form, the one is taken that fits the labels; `sample` are the first rows. With
    `unknown`, labels that the schema does not have are counted and not refused. With `merge`, spellings of a label that
    differ only in case, blanks or the like are one. `weight` is the column with the rows' weights; a row of weight 0 is
    left out.
    """
    merge = merge or (schema is not None and schema.merged)
    column = None
    if form.one_value:
        first = [row.get(str(form.columns["label"])) for row in sample]
        numeric = [kind.numeric for kind in kinds]
        column = TargetColumn(
            name, first, as_labels=not all(numeric), as_numbers=any(numeric), schema=schema, unknown=unknown,
            merge=merge,
        )  # fmt: skip
    buffer, digest = Buffer(), sha256()
    skipped = {TEXT: array("q"), LABEL: array("q")}
    weights = array("d")
    if weight is not None:
        skipped[WEIGHT] = array("q")
    counts: Counter[str] = Counter()
    blank: Counter[str] = Counter()
    for ordinal, (number, row) in enumerate(stream):
        given = form.input(row, number, name)
        if given is None:
            skipped[TEXT].append(ordinal)
            continue
        heavy = 1.0 if weight is None else as_weight(row.get(weight), number, weight, name)
        if not heavy:
            skipped[WEIGHT].append(ordinal)
            continue
        target = form.target(row, given, number, name)
        if column is not None:
            target = column.add(target, number)
        if target is None:
            skipped[LABEL].append(ordinal)
            continue
        if column is None:
            counts.update(form.labels(target))
        if empty := form.blank_columns(given):
            blank.update(empty)
        parts = form.pack(given, target)
        key = blake2b(form.key(given).encode(errors="replace"), digest_size=8).digest()
        buffer.add(parts[0], parts[1], int.from_bytes(key, "little"))
        digest.update(b" ".join([b"%d" % len(part) for part in parts]) + b"\n" + b"".join(parts))
        if weight is not None:
            weights.append(heavy)
    if not buffer.keys:
        raise _nothing(name, form, kinds)
    names, merged = None, None
    if merge and column is None:
        names = merged_names(counts, () if schema is None else schema.labels)
        merged = {next(iter(spellings)): spellings for spellings in variants(counts)}
        counts = _renamed(counts, names)
    if weight is not None:
        digest.update(weights.tobytes())
    kind, why, labels, values = _targets(column, kinds, form, schema, counts)
    if merge and column is not None:
        merged = column.merged
    if merged and schema is None:
        digest.update(b"merged labels")  # the same rows, but other targets
    strange = dict(column.unknown or {}) if column is not None else {
        label: count for label, count in counts.items() if label not in set(labels)
    }  # fmt: skip
    return Dataset(
        name, kind, why, form, labels=labels, values=values, buffer=buffer, digest=digest.hexdigest(),
        counts=dict(counts), unknown=strange, skipped=skipped, blank=dict(blank), names=names, merged=merged,
        weight=weight, weights=_mean_of_one(weights) if weight is not None else None,
    )  # fmt: skip


def _renamed(counts: Mapping[str, int], names: Mapping[str, str]) -> Counter[str]:
    """Return the counts of labels under other names."""
    found: Counter[str] = Counter()
    for label, count in counts.items():
        found[names[label]] += count
    return found


def _mean_of_one(weights: array[float]) -> NDArray[np.float32]:
    """Return weights scaled to a mean of 1: only their ratios count."""
    found = np.frombuffer(weights, dtype=np.float64)
    scaled: NDArray[np.float32] = (found / found.mean()).astype(np.float32)
    return scaled


def _targets(
    column: TargetColumn | None, kinds: Sequence[Target], form: Form, schema: Schema | None, counts: Mapping[str, int]
) -> tuple[str, str, tuple[Any, ...], NDArray[Any] | None]:
    """Return the kind, why it is that, its labels, and the targets where each is one value."""
    if column is None:
        return kinds[0].name, form.why, tuple(sorted(counts)) if schema is None else tuple(schema.labels), None
    if len(kinds) == 1:
        kind, why = kinds[0], "as asked" if schema is None else f"as in '{schema.name}'"
    else:
        kind, why = next((each, found) for each in kinds if (found := each.takes(column)) is not None)
    if kind.numeric:
        return kind.name, why, (), column.numbers()
    labels, values = column.labels()
    return kind.name, why, labels, values


def _nothing(name: str, form: Form, kinds: Sequence[Target]) -> DataError:
    columns = form.columns
    if form.one_value:
        return DataError(
            f"no row of '{name}' has a text in column '{columns['text']}' and a label in '{columns['label']}'.",
            hint="Choose with --text COL --label COL.",
        )
    needed = listed([column for column in columns.values() if column])
    return DataError(f"no row of '{name}' has what kind {kinds[0].name} needs in {needed}.", hint="adaptree check FILE")
