"""The rows that every cell trains and validates on: split once, sampled once, kept as files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptree import api, kinds
from adaptree.analysis.compare.files import digest, write, writing
from adaptree.data.dataset import Dataset
from adaptree.data.encode import Encoder
from adaptree.data.split import split
from adaptree.errors import UsageError
from adaptree.kinds.reading import open_data
from adaptree.training import baselines

Event = dict[str, Any]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rows:
    """The rows that every cell trains and validates on, as tables and as files."""

    train: Dataset
    validation: Dataset
    files: dict[str, str]
    columns: dict[str, str | None]
    """how they are read, for `api.train`"""
    about: dict[str, Any]


def prepare(
    data: api.Source,
    validation: api.Source | None,
    folder: Path,
    most: int | None,
    asked: Mapping[str, str | None],
    kind: str | None,
    encoding: str,
    on_event: Callable[[Event], None],
) -> Rows:
    """Split once, draw the sample once, and write both parts where every cell finds them."""
    table = open_data(data, text=asked["text"], pair=asked["pair"], label=asked["label"], kind=kind, encoding=encoding)
    if table.values is None:
        raise UsageError(
            f"kind {table.kind} cannot be compared yet.", hint="compare is for one label or one number a text."
        )
    if validation is None:
        chosen, held = split(table, seed=0)
        held = sample(table, held, None if most is None else max(most // 2, len(table.labels), 2))
        other = table
    else:
        other = open_data(validation, encoding=encoding, like=table.schema)
        chosen, held = np.arange(len(table)), np.arange(len(other))
    kept = sample(table, chosen, most)
    if len(kept) < len(chosen):
        note = f"{len(kept):,} of the {len(chosen):,} training rows are used, a sample drawn with seed 0"
        note += "; as many as half of that to validate." if validation is None else "."
        on_event({"event": "note", "text": note})
    columns = table.columns
    files: dict[str, str] = {}
    tables: list[Dataset] = []
    for part, source, indices in (("train", table, kept), ("validation", other, held)):
        key = digest([source.digest, hashlib.sha256(np.asarray(indices, dtype=np.int64).tobytes()).hexdigest()])
        path = folder / f"{part}-{key}.jsonl"
        if not path.exists():
            _write_lines(path, source, indices, columns)
        files[part] = str(path.resolve())
        tables.append(open_data(path, like=tables[0].schema if tables else table.schema))
    about = {
        "name": table.name,
        "kind": table.kind,
        "labels": list(table.labels),
        "rows": len(table),
        "train": len(kept),
        "of": len(chosen),
        "validation": len(held),
        "digest": tables[0].digest,
        "validation_digest": tables[1].digest,
        "split_seed": 0 if validation is None else None,
    }
    said = {"text": columns["text"], "text_pair": columns["pair"], "label": columns["label"], "kind": table.kind}
    return Rows(tables[0], tables[1], files, said, about)


def sample(table: Dataset, chosen: Array, most: int | None) -> Array:
    """At most so many of the rows, in their order: one of each label first, the rest as they are drawn."""
    if most is None or most >= len(chosen):
        return chosen
    if most < max(2, len(table.labels)):
        raise UsageError(
            f"{most} rows are too few for {len(table.labels)} labels.", hint="Give --rows a larger number."
        )
    drawn = np.random.default_rng(0).permutation(chosen)
    first: Array = np.empty(0, dtype=np.int64)
    if table.labels:
        first = np.sort(np.unique(table.targets(drawn), return_index=True)[1])
    rest = np.setdiff1d(np.arange(len(drawn)), first)
    return np.sort(drawn[np.r_[first, rest][:most].astype(np.int64)])


def _write_lines(path: Path, table: Dataset, indices: Array, columns: Mapping[str, str | None]) -> None:
    """Rows under the training file's column names, whatever they are called in their own."""
    partial = path.with_suffix(f".{os.getpid()}")
    with writing(path), partial.open("w") as file:
        for i in indices.tolist():
            example = table.example(i)
            row = {columns[part]: example[part] for part in ("text", "label", "pair") if columns[part]}
            file.write(json.dumps(row) + "\n")
    partial.replace(path)


def floors(rows: Rows, other: Dataset, folder: Path, encoder: Encoder) -> dict[str, dict[str, float]]:
    """Majority and bag of words, fitted on the training rows; computed once."""
    path = folder / f"floors-{digest([rows.train.digest, other.digest])}.json"
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_text()))
    every = [np.arange(len(table)) for table in (rows.train, other)]
    kind = kinds.for_data(rows.train, every[0], encoder)
    found = baselines.baselines(
        kind, rows.train.texts(every[0]), rows.train.targets(every[0]), other.texts(every[1]), other.targets(every[1])
    )
    write(path, found)
    return found
