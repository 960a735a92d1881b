"""The rows that every cell trains and validates on: split once, sampled once, and kept as files.

The files are JSON Lines with the source's own rows, so that data of any kind is read back as `train` reads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptree import kinds
from adaptree.analysis.compare.files import digest, write, writing
from adaptree.data.check import note_columns, note_spellings
from adaptree.data.dataset import Dataset
from adaptree.data.encode import Encoder
from adaptree.data.events import Listener
from adaptree.data.paths import asked_for
from adaptree.data.read import Source
from adaptree.data.read import rows as read_rows
from adaptree.data.split import split
from adaptree.errors import DataError, UsageError
from adaptree.kinds.reading import open_data
from adaptree.reports.json_text import json_text
from adaptree.training import baselines

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Splits:
    """The rows to train and to validate on, as datasets and as files."""

    train: Dataset
    validation: Dataset
    files: dict[str, str]
    """by part: train, validation"""
    columns: dict[str, str | bool | None]
    """the options of `train` that read the files: text, text_pair, label, kind, merge_labels"""
    about: dict[str, Any]
    """what results.json says of the data"""


def prepare(
    source: Source,
    validation: Source | None,
    folder: Path,
    most: int | None,
    columns: Mapping[str, str | None],
    kind: str | None,
    reading: Mapping[str, Any],
    merge_labels: bool,
    on_event: Listener,
) -> Splits:
    """Split the data, sample at most `most` training rows and half as many to validate on, and write both parts.

    A `validation` source of its own is used whole. `columns` are those that the user names: text, pair, label.
    """
    source = _rereadable(source)
    text, pair, label = (columns[name] for name in ("text", "pair", "label"))
    data = open_data(
        source, text=text, pair=pair, label=label, kind=kind, merge_labels=merge_labels, on_event=on_event, **reading
    )
    note_columns(data, on_event)
    note_spellings(data, on_event)
    if validation is None:
        chosen, held = split(data, seed=0)
        held = sample(data, held, None if most is None else max(most // 2, _fewest(data)))
        kept = sample(data, chosen, most)
        parts = {"train": (source, data, kept), "validation": (source, data, held)}
    else:
        validation = _rereadable(validation)
        other = open_data(validation, like=data.schema, on_event=on_event, **reading)
        chosen, held = np.arange(len(data)), np.arange(len(other))
        kept = sample(data, chosen, most)
        parts = {"train": (source, data, kept), "validation": (validation, other, held)}
    if len(kept) < len(chosen):
        note = f"{len(kept):,} of the {len(chosen):,} training rows are used, a sample with seed 0"
        note += "; at most half as many to validate." if validation is None else "."
        on_event({"event": "note", "text": note})
    files = {part: _write_part(folder, part, *which, reading) for part, which in parts.items()}
    text, pair, label = (columns[name] or data.columns.get(name) for name in ("text", "pair", "label"))
    train = open_data(files["train"], text=text, pair=pair, label=label, kind=data.kind, merge_labels=merge_labels)
    if train.kind != data.kind:  # no row of the sample shows what the whole file is
        raise DataError(
            f"{len(kept):,} rows of '{data.name}' are too few to tell that it is of kind {data.kind}.",
            hint="Give --rows a larger number.",
        )
    held_out = open_data(files["validation"], like=train.schema)
    about = {
        "name": data.name,
        "kind": data.kind,
        "labels": list(data.labels),
        "rows": len(data),
        "train": len(kept),
        "of": len(chosen),
        "validation": len(held),
        "digest": train.digest,
        "validation_digest": held_out.digest,
        "split_seed": 0 if validation is None else None,
    }
    options = {"text": text, "text_pair": pair, "label": label, "kind": data.kind, "merge_labels": merge_labels}
    return Splits(train, held_out, files, options, about)


def sample(data: Dataset, chosen: Array, most: int | None) -> Array:
    """Return at most `most` of the chosen examples, ascending: a sample with seed 0 that has each label at least once.

    Only where an example has one label, as in kind classify, can each be there; other kinds are sampled as they come.
    """
    if most is None or most >= len(chosen):
        return chosen
    if most < _fewest(data):
        raise UsageError(f"{most} rows are too few for {len(data.labels)} labels.", hint="Give --rows a larger number.")
    shuffled = np.random.default_rng(0).permutation(chosen)
    first: Array = np.empty(0, dtype=np.int64)
    if _one_label(data):
        first = np.sort(np.unique(data.targets(shuffled), return_index=True)[1])
    rest = np.setdiff1d(np.arange(len(shuffled)), first)
    return np.sort(shuffled[np.r_[first, rest][:most].astype(np.int64)])


def _one_label(data: Dataset) -> bool:
    """Return whether each example has one of several labels."""
    return data.values is not None and bool(data.labels)


def _fewest(data: Dataset) -> int:
    """Return the least number of rows that a sample may have."""
    return max(2, len(data.labels) if _one_label(data) else 0)


def _rereadable(source: Source) -> Source:
    """Return the source, or its rows as a list if it is an iterator, which could be read only once."""
    return [row for _, row in read_rows(source)] if isinstance(source, Iterator) else source


def _write_part(
    folder: Path, part: str, source: Source, data: Dataset, indices: Array, reading: Mapping[str, Any]
) -> str:
    """Write the source's rows of some examples as JSON Lines, unless a file with the same ones is there; return it."""
    key = digest([data.digest, hashlib.sha256(np.asarray(indices, dtype=np.int64).tobytes()).hexdigest()])
    path = folder / f"{part}-{key}.jsonl"
    if not path.exists():
        ordinals = data.rows[indices]
        asked = asked_for(data.columns.values())
        wanted = np.zeros(int(ordinals.max()) + 1, dtype=bool)
        wanted[ordinals] = True
        partial = path.with_suffix(f".{os.getpid()}")
        with writing(path), partial.open("w", encoding="utf-8") as file:
            for ordinal, (_, row) in enumerate(read_rows(source, columns=asked, **reading)):
                if ordinal == len(wanted):
                    break
                if wanted[ordinal]:
                    file.write(json_text(row, default=str) + "\n")
            partial.replace(path)
    return str(path.resolve())


def baseline_scores(splits: Splits, data: Dataset, folder: Path, encoder: Encoder) -> dict[str, dict[str, float]]:
    """Return the scores of majority and TF-IDF, fitted on the training rows; none for kinds that have no baselines."""
    train = splits.train
    if not kinds.get(train.kind).baselines:
        return {}
    path = folder / f"floors-{digest([train.digest, data.digest])}.json"
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_text()))
    every = [np.arange(len(each)) for each in (train, data)]
    found = baselines.baselines(
        kinds.for_data(train, every[0], encoder), train.texts(every[0]), train.targets(every[0]),
        data.texts(every[1]), data.targets(every[1]),
    )  # fmt: skip
    write(path, found)
    return found
