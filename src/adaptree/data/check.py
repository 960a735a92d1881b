"""What is in a labelled file, what training would do with it, and what looks wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptree.data.columns import listed
from adaptree.data.dataset import Dataset
from adaptree.data.events import Listener, note
from adaptree.data.labels import in_words, variants
from adaptree.data.split import among, overlap, split
from adaptree.errors import DataError

BATCH = 1000
FEW_ROWS = 100
FEW_PER_LABEL = 8
IMBALANCE = 20
SHOWN = 160  # characters of an example


@dataclass(frozen=True)
class Share:
    """How many rows, or words, have a label."""

    label: str | int
    rows: int
    percent: float


@dataclass(frozen=True)
class Spread:
    """The distribution of numeric targets."""

    min: float
    mean: float
    max: float
    std: float


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens of `measured` rows; `longer` of those are longer than `max_length`."""

    measured: int
    mean: float
    median: float
    p95: float
    max: int
    max_length: int | None
    longer: int
    longer_percent: float
    windowed: bool = False
    """Whether the longer ones are read whole, in windows."""


@dataclass(frozen=True)
class Conflict:
    """A text that occurs with different labels."""

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
    unused: list[str]
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
    dataset: Dataset,
    *,
    validation: Dataset | None = None,
    lengths: Callable[[list[Any]], Sequence[int]] | None = None,
    limit: int | None = None,
    max_length: int | None = None,
    seed: int = 0,
    sample: int = 20_000,
    windowed: bool = False,
    can_window: bool = False,
) -> Report:
    """Report on a dataset as training would see it; `lengths` counts tokens, `limit` is the base's longest input.

    `windowed`: longer inputs are read whole; `can_window`: they would be with --windows.
    """
    problems: list[str] = []
    if validation is not None:
        leakage, train_rows, validation_rows = overlap(dataset, validation), len(dataset), len(validation)
    else:
        leakage, train_rows, validation_rows = 0, len(dataset), 0
        try:
            train, held = split(dataset, seed=seed)
            train_rows, validation_rows = len(train), len(held)
        except DataError as error:
            problems.append(str(error))
    balance = _balance(dataset) if dataset.labels else None
    cut = min((n for n in (limit, max_length) if n is not None), default=None)
    measured = _lengths(dataset, lengths, cut, sample, windowed) if lengths is not None else None
    duplicates, conflicts, examples = _repeats(dataset)
    problems += about_columns(dataset)
    problems += _about_rows(dataset, duplicates)
    problems += about_spellings(dataset)
    problems += _about_labels(balance, dataset) if balance and dataset.form.labels_of == "rows" else []
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
    problems += _about_lengths(measured, limit, max_length, can_window)
    return Report(
        name=dataset.name,
        rows=len(dataset),
        left_out=dict(dataset.left_out),
        columns=dataset.columns,
        unused=dataset.unused,
        kind=dataset.kind,
        why=dataset.why,
        balance=balance,
        spread=None if dataset.values is None or dataset.labels else _spread(dataset.values),
        lengths=measured,
        duplicates=duplicates,
        conflicts=conflicts,
        conflict_examples=examples,
        leakage=leakage,
        train_rows=train_rows,
        validation_rows=validation_rows,
        problems=problems,
    )


def send_notes(train: Dataset, validation: Dataset | None, test: Dataset | None, on_event: Listener) -> None:
    """Send notes on what `check` would find: columns, labels and rows that are not used, and shared texts."""
    note_columns(train, on_event)
    note_spellings(train, on_event)
    parts = {"validation": validation, "test": test}
    others = {part: dataset for part, dataset in parts.items() if dataset is not None}
    for part, dataset in others.items():
        if shared := overlap(train, dataset):
            note(on_event, f"{shared:,} of the {len(dataset):,} {part} texts are in the training data too.")
    for dataset in (train, *others.values()):
        for why, count in dataset.left_out.items():
            if count:
                note(on_event, f"{dataset.name}: {count:,} rows {why} are left out.")
        for text in _about_blanks(dataset):
            note(on_event, f"{dataset.name}: {text}")


def note_columns(dataset: Dataset, on_event: Listener) -> None:
    """Send a note that names the columns which are not read, and a warning for each of them that holds texts."""
    if dataset.unused:
        note(on_event, f"not read in '{dataset.name}': {listed(dataset.unused)}.")
    for text in about_columns(dataset):
        note(on_event, text, warning=True)


def note_spellings(dataset: Dataset, on_event: Listener) -> None:
    """Send a warning on labels that are spelled in several ways, and notes on those that were merged."""
    for text in about_spellings(dataset):
        note(on_event, text, warning=True)
    for label, spellings in (dataset.merged or {}).items():
        note(on_event, f"merged as '{label}': {in_words(spellings)}.")


def about_columns(dataset: Dataset) -> list[str]:
    """Return a sentence for each column of texts that is not read, with the options that settle it."""
    first, *second = (dataset.columns.get(part) for part in dataset.form.input_columns[:2])
    alone = f"If it does not matter, say so: --text '{first}'"
    found = []
    for name in dataset.unused_texts:
        if second and second[0] is None:
            settle = f"To read it too: --text '{first}' --text-pair '{name}'. {alone}."
        else:
            beside = f" --text-pair '{second[0]}'" if second else ""
            settle = f"{alone}{beside}; else put it into the same column."
        found.append(f"'{name}' holds texts and is not read: it may be a part of the input. {settle}")
    return found


def about_spellings(dataset: Dataset) -> list[str]:
    """Return a sentence on labels that differ only in case, blanks or the like; they count as different ones."""
    found = variants(dataset.counts())
    if not found:
        return []
    shown = "; ".join(in_words(spellings) for spellings in found[:5]) + ("; …" if len(found) > 5 else "")
    remedy = "Use --merge-labels" if dataset.form.merges_labels else "Write each in one way"
    return [f"Labels that may be the same are spelled in several ways: {shown}. {remedy} if they are."]


def _balance(dataset: Dataset) -> tuple[Share, ...]:
    counts = dataset.counts()
    whole = len(dataset) if dataset.form.labels_of == "rows" else sum(counts.values())
    return tuple(
        Share(label, counts.get(str(label), 0), round(100 * counts.get(str(label), 0) / max(whole, 1), 2))
        for label in dataset.labels
    )


def _spread(targets: NDArray[Any]) -> Spread:
    mean, std = targets.mean(dtype=np.float64), targets.std(dtype=np.float64)
    return Spread(float(targets.min()), float(mean), float(targets.max()), float(std))


def _lengths(
    dataset: Dataset, count: Callable[[list[Any]], Sequence[int]], cut: int | None, sample: int, windowed: bool
) -> Lengths:
    chosen = np.unique(
        np.linspace(0, len(dataset) - 1, min(sample, len(dataset))).astype(np.int64)
    )  # spread over the file
    pieces = [
        count([dataset.form.measured(given) for given in dataset.inputs(chosen[at : at + BATCH])])
        for at in range(0, len(chosen), BATCH)
    ]
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
        windowed=windowed,
    )


def _repeats(dataset: Dataset) -> tuple[int, int, tuple[Conflict, ...]]:
    """Return how many examples repeat an earlier input, how many inputs have two targets, and three of those."""
    keys = np.sort(dataset.keys)
    repeated = keys[1:][keys[1:] == keys[:-1]]
    if not len(repeated) or dataset.values is None:
        return len(repeated), 0, ()
    rows = np.flatnonzero(among(dataset.keys, repeated))
    order = rows[np.lexsort((dataset.values[rows], dataset.keys[rows]))]
    keys, targets = dataset.keys[order], dataset.values[order]
    differing = np.unique(keys[1:][(keys[1:] == keys[:-1]) & (targets[1:] != targets[:-1])])
    if not len(differing):
        return len(repeated), 0, ()
    rows = rows[among(dataset.keys[rows], differing)]  # in the file's order
    _, firsts = np.unique(dataset.keys[rows], return_index=True)
    examples = [_conflict(dataset, dataset.values, int(row)) for row in np.sort(rows[firsts])[:3]]
    return len(repeated), len(differing), tuple(examples)


def _conflict(dataset: Dataset, values: NDArray[Any], row: int) -> Conflict:
    found = np.unique(values[dataset.keys == dataset.keys[row]])
    labels = tuple(dataset.labels[int(v)] if dataset.labels else float(v) for v in found)
    (text,) = dataset.texts([row])
    first, pair = (text, None) if isinstance(text, str) else (text[0], text[1][:SHOWN])
    return Conflict(first[:SHOWN], pair, labels)


def _about_blanks(dataset: Dataset) -> list[str]:
    return [
        f"{_many(count, 'row has', 'rows have')} nothing in '{column}', and a text in another column. Fill it in, or "
        f"remove the rows."
        for column, count in dataset.blank.items()
    ]


def _many(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _about_rows(dataset: Dataset, duplicates: int) -> list[str]:
    problems = []
    for reason, count in dataset.left_out.items():
        if count:
            problems.append(
                f"{_many(count, 'row is', 'rows are')} {reason} and will be left out. Fill them in or ignore this."
            )
    problems += _about_blanks(dataset)
    if len(dataset) < FEW_ROWS:
        problems.append(
            f"There are only {_many(len(dataset), 'row', 'rows')}: scores will be rough guesses. Add rows; a few "
            f"hundred make a useful task."
        )
    if duplicates > len(dataset) // 2:
        problems.append(
            f"{duplicates:,} of {len(dataset):,} rows repeat an earlier text: there is less to learn from than it "
            f"seems. Repeated texts stay on one side of the split."
        )
    return problems


def _about_labels(balance: Sequence[Share], dataset: Dataset) -> list[str]:
    problems = []
    most, least = max(balance, key=lambda s: s.rows), min(balance, key=lambda s: s.rows)
    if most.rows > IMBALANCE * least.rows:
        weights = "Use --class-weights and look at macro_f1." if dataset.values is not None else "Look at macro_f1."
        problems.append(
            f"'{most.label}' has {most.rows:,} rows and '{least.label}' {least.rows:,}: the rare label may never be "
            f"predicted, and accuracy hides it. {weights}"
        )
    few = [share for share in balance if share.rows < FEW_PER_LABEL]
    if few:
        listed = ", ".join(f"'{share.label}' ({share.rows})" for share in few[:5]) + (", …" if len(few) > 5 else "")
        problems.append(
            f"{_many(len(few), 'label has', 'labels have')} fewer than {FEW_PER_LABEL} rows: {listed}. Too few to "
            f"score, and hardly enough to learn. Add rows, or give several of them one name."
        )
    return problems


def _about_lengths(found: Lengths | None, limit: int | None, max_length: int | None, can_window: bool) -> list[str]:
    if found is None or not found.longer or found.windowed:
        return []
    ruled = limit is not None and found.max_length == limit
    cause = f"the base's limit of {limit}" if ruled else f"--max-length {max_length}"
    ways = ["" if ruled else "raise it", "read them whole with --windows" if can_window else "", "shorten the texts"]
    remedy = ", or ".join(way for way in ways if way).capitalize()
    return [
        f"{found.longer:,} of {found.measured:,} measured rows ({found.longer_percent} %) are longer than {cause} word "
        f"pieces: their ends will not be seen. {remedy}."
    ]
