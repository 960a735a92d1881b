"""Labels that are probably wrong, texts that are there twice, and texts with conflicting labels.

Every text is one vector, pooled from the bare base and computed once. Logistic regression on the vectors gives each row
probabilities from the other folds, duplicates in one fold, and confident learning doubts labels by them
(`core.confident`). Whether leaving the doubted rows out helps is measured on rows that had no part in finding them.
"""

from __future__ import annotations

import csv
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import kinds
from adaptree.analysis import duplicates
from adaptree.core.confident import likely_errors
from adaptree.data.dataset import Dataset
from adaptree.data.events import Listener, note, silent
from adaptree.data.read import Source, name_of
from adaptree.data.read import rows as read_rows
from adaptree.errors import DataError, UsageError
from adaptree.kinds import bootstrap
from adaptree.kinds.reading import open_data
from adaptree.models.forward import vectors
from adaptree.models.opening import base_of
from adaptree.training.settings import Settings

if TYPE_CHECKING:
    from adaptree.models.base import Base

Array = np.ndarray[Any, Any]

KINDS = ("classify", "multilabel")
FOLDS = 5
FEWEST = 20
"""The least number of different texts."""
FEWEST_OF_LABEL = 5
"""A label with fewer different texts is never doubted: nothing could tell its rows."""
STRENGTHS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Inverse strengths of the regularisation; the one with the best out-of-fold probabilities is taken."""
LABEL, CONFLICT, DUPLICATE = "label", "conflict", "duplicate"
COLUMNS = ("clean_issue", "clean_label", "clean_probability", "clean_duplicate_of", "clean_weight")
"""The columns that a cleaned file has beside its own."""


@dataclass(frozen=True)
class Finding:
    """A row that deserves a look."""

    row: int
    """The row's number in its file, as errors name it."""
    issue: tuple[str, ...]
    """label: probably another one; conflict: (nearly) the same text has other labels too; duplicate: of an earlier
    row."""
    text: str | tuple[str, str]
    label: Any
    suggested: Any
    """The label that it probably has; None where nothing speaks against its own."""
    probability: float
    """Of the suggested label, else of its own; by a model that saw neither the row nor its duplicates."""
    duplicate_of: int | None
    """The number of the first row with (nearly) the same text."""


@dataclass(frozen=True)
class Cleaning:
    """What `adaptree clean` found, the worst first, and what leaving out the rows with a suggested label changes."""

    data: str
    base: str
    kind: str
    rows: int
    findings: list[Finding]
    scores: dict[str, float]
    """Cross-validated, trained on all rows."""
    without: dict[str, float]
    """The same, trained without the doubted rows of each training part; scored on all rows."""
    gain: tuple[float, float]
    """The 95 % interval of what that adds to the share of rows that are right."""
    not_judged: dict[str, int]
    """Labels with too few texts to doubt, and their rows."""

    @property
    def doubted(self) -> int:
        """How many rows have a suggested label."""
        return sum(found.suggested is not None for found in self.findings)

    def count(self, issue: str) -> int:
        """Return how many rows have an issue."""
        return sum(issue in found.issue for found in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return what `--format json` prints."""
        counts = {issue: self.count(issue) for issue in (LABEL, CONFLICT, DUPLICATE)}
        return {**asdict(self), "doubted": self.doubted, "counts": counts}


def clean(
    data: Source,
    *,
    out: str | Path | None = None,
    base: Base | str | Path = "minilm",
    kind: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    max_length: int | None = None,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    on_event: Listener = silent,
) -> Cleaning:
    """Return the rows whose labels are probably wrong, that repeat another row or contradict it.

    With `out`, a csv is written with all rows and columns of the data, and what was found in further columns. In it,
    `clean_weight` is 0 for the doubted rows, so that `train --weight clean_weight` trains without them.
    """
    data = list(data) if isinstance(data, Iterator) else data  # it is read more than once
    out = None if out is None else writable(Path(out), data)
    dataset = open_data(data, text=text, pair=text_pair, label=label, kind=kind, encoding=encoding, on_event=on_event)
    if dataset.kind not in KINDS:
        raise UsageError(
            f"'{dataset.name}' is of kind {dataset.kind}: clean judges labels of whole texts, one or several each.",
            hint="adaptree check DATA shows conflicts and repeated texts of any kind.",
        )
    base = base_of(base, device, threads, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    texts = dataset.texts(range(len(dataset)))
    note(on_event, f"{len(texts):,} texts on {base.name}, then {FOLDS} folds.")
    if len(texts) > duplicates.MOST:
        note(on_event, f"of more than {duplicates.MOST:,} texts only those are duplicates that have the same words.")
    longest = Settings(max_length=max_length).longest(base.limit)
    with base.hooked.running({}):
        x = vectors(base, base.encoder.encode(texts, longest), base.pooling).double().numpy()
    judged = _Judged(dataset, x, duplicates.groups(texts, x), duplicates.same(texts), seed)
    numbers: list[int] = []
    names: dict[str, None] = {}
    for number, row in read_rows(data, encoding=encoding):
        numbers.append(number)
        names |= dict.fromkeys(row)
    findings = judged.findings(texts, np.array(numbers)[dataset.rows])
    if out is not None:
        _write(out, data, encoding, list(names), {found.row: found for found in findings})
    return Cleaning(
        name_of(data), base.name, dataset.kind, len(dataset), findings, *judged.scores(),
        not_judged=judged.not_judged,
    )  # fmt: skip


class _Judged:
    """A dataset's vectors, (n, d), folds and out-of-fold probabilities, and what follows from them.

    `first` has for each row the position of the first row with nearly the same text, `same` with the same text.
    """

    def __init__(self, dataset: Dataset, x: Array, first: Array, same: Array, seed: int) -> None:
        if (distinct := len(np.unique(first))) < FEWEST:
            raise DataError(f"'{dataset.name}' has {distinct} different texts, and at least {FEWEST} are needed.")
        self.x, self.first = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), first
        self.same = same
        self.kind, self.labels = dataset.kind, dataset.labels
        self.several = dataset.values is None
        self.targets = dataset.targets(range(len(dataset)))
        place = {label: i for i, label in enumerate(self.labels)}
        self.y = np.zeros((len(x), len(place)), dtype=bool)
        """Whether each row has each label."""
        for row, target in zip(self.y, self.targets, strict=True):
            row[[place[label] for label in target] if self.several else target] = True
        self.folds = self._stratified(seed)
        tried = [(self._loss(p := self._out_of_fold(strength)), strength, p) for strength in STRENGTHS]
        _, self.strength, self.p = min(tried, key=lambda each: each[:2])

    def _stratified(self, seed: int) -> Array:
        """Return each row's fold: duplicates are in one, and the rarest label of each text is spread over all."""
        texts, place = np.unique(self.first, return_inverse=True)
        rarest = np.where(self.y, self.y.sum(0), len(self.y) + 1).argmin(1)[texts]
        fold = np.empty(len(texts), dtype=np.int64)
        shuffled = np.random.default_rng(seed).permutation(len(texts))
        for label in range(self.y.shape[1]):
            mine = shuffled[rarest[shuffled] == label]
            fold[mine] = (np.arange(len(mine)) + label) % FOLDS
        return np.asarray(fold[place])

    def _out_of_fold(self, strength: float) -> Array:
        """Return the probability of each label for each row, learned from the other folds."""
        p = np.empty(self.y.shape)
        for fold in range(FOLDS):
            held = self.folds == fold
            p[held] = self._learn(~held, held, strength)
        return p

    def _learn(self, rows: Array, others: Array, strength: float) -> Array:
        """Return the probabilities of the labels for `others` by logistic regression on `rows`."""
        mean = self.x[rows].mean(0)
        spread = max(float((self.x[rows] - mean).std()), 1e-12)  # one for all: columns that vary little tell little
        x, x_others = ((self.x[which] - mean) / spread for which in (rows, others))
        if not self.several:
            return _logistic(x, self.y[rows].argmax(1), x_others, self.y.shape[1], strength)
        columns = [_logistic(x, y.astype(np.int64), x_others, 2, strength)[:, 1] for y in self.y[rows].T]
        return np.stack(columns, axis=1)

    def _loss(self, p: Array) -> float:
        """Return the mean cross-entropy of the labels."""
        own = np.where(self.y, p, 1 - p) if self.several else p[self.y]
        return float(-np.log(np.maximum(own, 1e-12)).mean())

    def _few(self, rows: Array) -> Array:
        """Return which labels have too few different texts among some rows to be doubted."""
        return np.array([len(np.unique(self.first[rows][y])) < FEWEST_OF_LABEL for y in self.y[rows].T])

    @property
    def not_judged(self) -> dict[str, int]:
        """The labels that are never doubted, with their number of rows."""
        few = self._few(np.arange(len(self.y)))
        return {str(label): int(y.sum()) for label, y, rare in zip(self.labels, self.y.T, few, strict=True) if rare}

    def suggest(self, rows: Array, p: Array) -> tuple[Array, Array]:
        """Return the probable labels of some rows, (n, k), by their probabilities, and which rows are in conflict.

        Rows with the same text have the label of most of them. One word more or less may well mean another label, so
        that rows with nearly the same text are in conflict but keep theirs, unless probabilities speak against it.
        """
        y, few = self.y[rows], self._few(rows)
        found = y.copy()
        if self.several:
            for j in np.flatnonzero(~few):
                found[:, j] ^= likely_errors(y[:, j].astype(np.int64), np.stack([1 - p[:, j], p[:, j]], axis=1))
        else:
            wrong = likely_errors(y.argmax(1), p) & ~(y & few).any(1)
            found[wrong] = np.eye(y.shape[1], dtype=bool)[p[wrong].argmax(1)]
        for group in _disagreeing(y, self.same[rows]):
            votes = y[group].mean(0) + p[group].mean(0) / (2 * len(group))  # probabilities decide among equals
            agreed = votes > 0.5 + 0.25 / len(group) if self.several else np.arange(len(votes)) == votes.argmax()
            found[group] = agreed
        conflict = np.zeros(len(y), dtype=bool)
        for group in _disagreeing(y, self.first[rows]):
            conflict[group] = True
        return found, conflict

    def findings(self, texts: list[Any], numbers: Array) -> list[Finding]:
        """Return the rows that deserve a look, the worst first; `numbers` are those of the rows in their file."""
        suggested, conflict = self.suggest(np.arange(len(self.y)), self.p)
        doubted = (suggested != self.y).any(1)
        repeats = self.first != np.arange(len(self.first))
        own, other = self._probability(self.y, suggested), self._probability(suggested, suggested)
        found = []
        for i in np.flatnonzero(doubted | conflict | repeats).tolist():
            issues = {LABEL: doubted[i] and not conflict[i], CONFLICT: conflict[i], DUPLICATE: repeats[i]}
            finding = Finding(
                row=int(numbers[i]),
                issue=tuple(issue for issue, there in issues.items() if there),
                text=texts[i],
                label=self._names(self.y[i]),
                suggested=self._names(suggested[i]) if doubted[i] else None,
                probability=float(other[i]),
                duplicate_of=int(numbers[self.first[i]]) if repeats[i] else None,
            )
            found.append(((not doubted[i], not conflict[i], own[i] - other[i], i), finding))
        return [finding for _, finding in sorted(found, key=lambda each: each[0])]

    def _probability(self, y: Array, suggested: Array) -> Array:
        """Return the probability of each row's labels `y`: of several, of the least likely that is in doubt."""
        if not self.several:
            return np.asarray(self.p[y])
        changed = self.y != suggested
        asked = changed | ~changed.any(1, keepdims=True)
        return np.asarray(np.where(asked, np.where(y, self.p, 1 - self.p), 1.0).min(1))

    def _names(self, y: Array) -> Any:
        names = [self.labels[j] for j in np.flatnonzero(y)]
        return names if self.several else names[0]

    def scores(self) -> tuple[dict[str, float], dict[str, float], tuple[float, float]]:
        """Return the cross-validated scores with and without the doubted rows, and the interval of the difference.

        The rows left out of a training part are those that the folds of this part doubt among themselves.
        """
        inner = np.empty((FOLDS, *self.y.shape))  # by fold: of the rows outside it, without that fold and their own
        for a in range(FOLDS):
            for b in range(a):
                both = (self.folds == a) | (self.folds == b)
                p = np.empty(self.y.shape)
                p[both] = self._learn(~both, both, self.strength)
                inner[a][self.folds == b], inner[b][self.folds == a] = p[self.folds == b], p[self.folds == a]
        without = np.empty(self.y.shape)
        for fold in range(FOLDS):
            held, rows = self.folds == fold, np.flatnonzero(self.folds != fold)
            suggested, _ = self.suggest(rows, inner[fold][rows])
            kept = np.zeros(len(self.y), dtype=bool)
            kept[rows] = (suggested == self.y[rows]).all(1)
            without[held] = self._learn(kept, held, self.strength)
        answers = [p >= 0.5 if self.several else p.argmax(1) for p in (self.p, without)]
        before, after = ((answer == self.y).all(1) if self.several else answer == self.targets for answer in answers)
        better = np.stack([after.astype(np.float64) - before, np.ones(len(before))], axis=1)
        gain = bootstrap.intervals(better, lambda sums: {"gain": sums[:, 0] / sums[:, 1]})["gain"]
        kind: Any = kinds.get(self.kind)
        first, second = (kind(labels=self.labels).score(self.targets, answer) for answer in answers)
        return first, second, gain


def _disagreeing(y: Array, first: Array) -> Iterator[Array]:
    """Yield the positions of the rows that belong together, where their labels `y` differ."""
    order = np.argsort(first, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(first[order])) + 1):
        if (y[group] != y[group[0]]).any():
            yield group


def _logistic(x: Array, y: Array, others: Array, classes: int, strength: float) -> Array:
    """Return the probabilities of all classes for `others`, (m, classes); those that y lacks have none."""
    from sklearn.linear_model import LogisticRegression

    p = np.zeros((len(others), classes))
    seen = np.unique(y)
    if len(seen) < 2:
        p[:, seen] = 1.0
        return p
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one that has not fully converged serves as well
        p[:, seen] = LogisticRegression(C=strength, max_iter=300).fit(x, y).predict_proba(others)
    return p


def writable(out: Path, data: Source) -> Path:
    """Return the file to write; raise UsageError, before all the work, where it cannot be written."""
    if isinstance(data, str | os.PathLike) and out.exists() and out.samefile(data):
        raise UsageError(f"'{out}' is the data itself.", hint="Choose another file with --out FILE.")
    if out.is_dir() or not out.parent.is_dir():
        why = "it is a folder" if out.is_dir() else f"there is no folder '{out.parent}'"
        raise UsageError(f"cannot write '{out}': {why}.", hint="--out cleaned.csv")
    return out


def _write(out: Path, data: Source, encoding: str, names: list[str], found: Mapping[int, Finding]) -> None:
    """Write all rows of the data with what was found, whole or not at all."""
    names = [name for name in names if name not in COLUMNS]
    partial = out.with_name(f"{out.name}.{os.getpid()}")
    try:
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*names, *COLUMNS], lineterminator="\n")
            writer.writeheader()
            for number, row in read_rows(data, encoding=encoding):
                cells = {name: csv_cell(row.get(name)) for name in names}
                writer.writerow(cells | dict(zip(COLUMNS, _cells(found.get(number)), strict=True)))
        partial.replace(out)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DataError(f"cannot write '{out}': {error.strerror or error}.", hint="--out FILE") from error


def _cells(found: Finding | None) -> tuple[Any, ...]:
    if found is None:
        return "", "", "", "", 1
    issue, again = " ".join(found.issue), "" if found.duplicate_of is None else found.duplicate_of
    if found.suggested is None:
        return issue, "", "", again, 1
    return issue, csv_cell(found.suggested), f"{found.probability:.4f}", again, 0


def csv_cell(value: Any) -> Any:
    """Return a value as a csv holds it: a list of labels with | between them, other nested values as JSON."""
    if isinstance(value, list | tuple) and all(isinstance(part, str | int | float) for part in value):
        return "|".join(map(str, value))
    nested = isinstance(value, bool | dict | list | tuple)
    return json.dumps(value, ensure_ascii=False, default=str) if nested else value
