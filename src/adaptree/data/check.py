"""What is in a labelled file, what training would do with it, and what looks wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptree.data.source import Data
from adaptree.data.split import among, overlap, split
from adaptree.data.table import Table
from adaptree.errors import DataError

BATCH = 1000
FEW_ROWS = 100
FEW_PER_LABEL = 8
IMBALANCE = 20
SHOWN = 160  # characters of an example


@dataclass(frozen=True)
class Share:
    """How many rows have a label."""

    label: str | int
    rows: int
    percent: float


@dataclass(frozen=True)
class Spread:
    """How the numbers of a regression lie."""

    min: float
    mean: float
    max: float
    std: float


@dataclass(frozen=True)
class Lengths:
    """Lengths in word pieces, measured on `measured` rows; `longer` of those would be cut at `max_length`."""

    measured: int
    mean: float
    median: float
    p95: float
    max: int
    max_length: int | None
    longer: int
    longer_percent: float


@dataclass(frozen=True)
class Conflict:
    """A text that is there with different labels."""

    text: str
    pair: str | None
    labels: tuple[str | int | float, ...]


@dataclass(frozen=True)
class Report:
    """All that `adaptree check` shows; `problems` are sentences, each with what it means and what to do."""

    name: str
    rows: int
    left_out: dict[str, int]
    columns: dict[str, str | None]
    kind: str
    why: str
    balance: tuple[Share, ...] | None
    spread: Spread | None
    lengths: Lengths | None
    duplicates: int
    conflicts: int
    conflict_examples: tuple[Conflict, ...]
    leakage: int
    train_rows: int
    validation_rows: int
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(
    table: Data,
    *,
    validation: Data | None = None,
    lengths: Callable[[list[Any]], Sequence[int]] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    sample: int = 20_000,
) -> Report:
    """Look at a table as training would see it; `lengths` counts word pieces, `limit` is the base's, both optional."""
    problems: list[str] = []
    if validation is not None:
        leakage, train_rows, validation_rows = overlap(table, validation), len(table), len(validation)
    else:
        leakage, train_rows, validation_rows = 0, len(table), 0
        try:
            train, held = split(table, seed=seed)
            train_rows, validation_rows = len(train), len(held)
        except DataError as error:
            problems.append(str(error))
    balance = _balance(table) if table.labels else None
    cut = min((n for n in (limit, max_length) if n is not None), default=None)
    measured = _lengths(table, lengths, cut, sample) if lengths is not None else None
    duplicates, conflicts, examples = _repeats(table) if isinstance(table, Table) else (_repeated(table), 0, ())
    problems += _about_rows(table, duplicates)
    problems += _about_labels(balance) if balance and table.scored in ("classify", "labels") else []
    if conflicts:
        problems.append(
            f"{_many(conflicts, 'text is', 'texts are')} there with different labels: no model can get all of those "
            f"rows right. Decide on one label each."
        )
    if leakage:
        problems.append(
            f"{_many(leakage, 'validation row has', 'validation rows have')} a text that is also trained on: the score "
            f"would be too good. Remove them from one of the files."
        )
    problems += _about_lengths(measured, limit, max_length)
    return Report(
        name=table.name,
        rows=len(table),
        left_out=dict(table.left_out),
        columns=table.said,
        kind=table.kind,
        why=table.why,
        balance=balance,
        spread=_spread(table) if isinstance(table, Table) and table.kind == "regress" else None,
        lengths=measured,
        duplicates=duplicates,
        conflicts=conflicts,
        conflict_examples=examples,
        leakage=leakage,
        train_rows=train_rows,
        validation_rows=validation_rows,
        problems=problems,
    )


def tell(table: Data, other: Data | None, tester: Data | None, on_event: Callable[[dict[str, Any]], None]) -> None:
    """What a user should know of the data before training starts."""
    for part, of in (("validation", other), ("test", tester)):
        if of is not None and (shared := overlap(table, of)):
            text = f"{shared:,} of the {len(of):,} {part} texts are in the training data too."
            on_event({"event": "note", "text": text})
    for of in (t for t in (table, other, tester) if t is not None):
        for what, count in of.left_out.items():
            if count:
                on_event({"event": "note", "text": f"{of.name}: {count:,} rows {what} are left out."})


def _balance(table: Data) -> tuple[Share, ...]:
    counts = table.counts()
    whole = len(table) if table.scored != "tag" else sum(counts.values())
    return tuple(
        Share(label, counts.get(str(label), 0), round(100 * counts.get(str(label), 0) / max(whole, 1), 2))
        for label in table.labels
    )


def _repeated(table: Data) -> int:
    """Rows whose input stands before."""
    return len(table) - len(np.unique(table.keys))


def _spread(table: Table) -> Spread:
    targets = table.values
    mean, std = targets.mean(dtype=np.float64), targets.std(dtype=np.float64)
    return Spread(float(targets.min()), float(mean), float(targets.max()), float(std))


def _lengths(table: Data, count: Callable[[list[Any]], Sequence[int]], cut: int | None, sample: int) -> Lengths:
    chosen = np.unique(np.linspace(0, len(table) - 1, min(sample, len(table))).astype(np.int64))  # spread over the file
    pieces = [count(list(table.texts(chosen[at : at + BATCH]))) for at in range(0, len(chosen), BATCH)]
    found: NDArray[np.int64] = np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])
    longer = int((found > cut).sum()) if cut is not None else 0
    return Lengths(
        measured=len(found),
        mean=round(float(found.mean()), 2),
        median=float(np.median(found)),
        p95=float(np.percentile(found, 95)),
        max=int(found.max()),
        max_length=cut,
        longer=longer,
        longer_percent=round(100 * longer / len(found), 2),
    )


def _repeats(table: Table) -> tuple[int, int, tuple[Conflict, ...]]:
    """Rows whose text stands before; texts with more than one label, and the first three of those."""
    keys = np.sort(table.keys)
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if not len(repeated):
        return 0, 0, ()
    rows = np.flatnonzero(among(table.keys, repeated))
    order = rows[np.lexsort((table.values[rows], table.keys[rows]))]
    keys, targets = table.keys[order], table.values[order]
    differing = np.unique(keys[1:][(keys[1:] == keys[:-1]) & (targets[1:] != targets[:-1])])
    if not len(differing):
        return len(repeated), 0, ()
    rows = rows[among(table.keys[rows], differing)]  # in the file's order
    _, firsts = np.unique(table.keys[rows], return_index=True)
    return len(repeated), len(differing), tuple(_conflict(table, int(row)) for row in np.sort(rows[firsts])[:3])


def _conflict(table: Table, row: int) -> Conflict:
    found = np.unique(table.values[table.keys == table.keys[row]])
    labels = tuple(float(v) if table.kind == "regress" else table.labels[int(v)] for v in found)
    pair = None if table.columns.pair is None else table.pair(row)[:SHOWN]
    return Conflict(table.text(row)[:SHOWN], pair, labels)


def _many(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _about_rows(table: Data, duplicates: int) -> list[str]:
    problems = []
    for reason, count in table.left_out.items():
        if count:
            problems.append(
                f"{_many(count, 'row is', 'rows are')} {reason} and will be left out. Fill them in or ignore this."
            )
    if len(table) < FEW_ROWS:
        problems.append(
            f"There are only {_many(len(table), 'row', 'rows')}: scores will be rough guesses. Add rows; a few hundred "
            f"make a useful task."
        )
    if duplicates > len(table) // 2:
        problems.append(
            f"{duplicates:,} of {len(table):,} rows repeat an earlier text: there is less to learn from than it seems. "
            f"Repeated texts stay on one side of the split."
        )
    return problems


def _about_labels(balance: Sequence[Share]) -> list[str]:
    problems = []
    most, least = max(balance, key=lambda s: s.rows), min(balance, key=lambda s: s.rows)
    if most.rows > IMBALANCE * least.rows:
        problems.append(
            f"'{most.label}' has {most.rows:,} rows and '{least.label}' {least.rows:,}: the rare label may never be "
            f"predicted, and accuracy hides it. Use class weights and look at macro_f1."
        )
    few = [share for share in balance if share.rows < FEW_PER_LABEL]
    if few:
        listed = ", ".join(f"'{share.label}' ({share.rows})" for share in few[:5]) + (", …" if len(few) > 5 else "")
        problems.append(
            f"{_many(len(few), 'label has', 'labels have')} fewer than {FEW_PER_LABEL} rows: {listed}. Too few to "
            f"learn or to score. Add rows, or merge labels."
        )
    return problems


def _about_lengths(found: Lengths | None, limit: int | None, max_length: int | None) -> list[str]:
    if found is None or not found.longer:
        return []
    ruled = limit is not None and found.max_length == limit
    cause = f"the base's limit of {limit}" if ruled else f"--max-length {max_length}"
    remedy = "Shorten the texts or split them up." if ruled else "Raise it, or shorten the texts."
    return [
        f"{found.longer:,} of {found.measured:,} measured rows ({found.longer_percent} %) are longer than {cause} word "
        f"pieces: their ends will not be seen. {remedy}"
    ]
