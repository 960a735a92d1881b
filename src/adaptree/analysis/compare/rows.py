"""The rows that every cell trains and validates on: split once, sampled once, kept as files."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptree.analysis.compare.files import digest, write, writing
from adaptree.data.columns import Columns
from adaptree.data.events import Listener
from adaptree.data.read import Source
from adaptree.data.source import kind_of
from adaptree.data.split import split
from adaptree.data.table import Table, load
from adaptree.errors import UsageError
from adaptree.training import baselines

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Rows:
    """The rows that every cell trains and validates on, as tables and as files."""

    train: Table
    validation: Table
    files: dict[str, str]
    columns: dict[str, str | None]
    """how they are read, for a `Run`"""
    about: dict[str, Any]


def prepare(
    data: Source,
    validation: Source | None,
    folder: Path,
    most: int | None,
    asked: Mapping[str, str | None],
    kind: str | None,
    encoding: str,
    on_event: Listener,
) -> Rows:
    """Split once, draw the sample once, and write both parts where every cell finds them."""
    if kind_of(kind) not in (None, "classify", "regress"):
        raise UsageError(f"kind {kind} cannot be compared yet.", hint="compare is for classify and regress.")
    table = load(
        data,
        text=asked["text"],
        pair=asked["pair"],
        label=asked["label"],
        kind=kind,  # type: ignore[arg-type]
        encoding=encoding,
    )
    if validation is None:
        chosen, held = split(table, seed=0)
        held = sample(table, held, None if most is None else max(most // 2, len(table.labels), 2))
        other = table
    else:
        other = load(validation, encoding=encoding, like=table)
        chosen, held = np.arange(len(table)), np.arange(len(other))
    kept = sample(table, chosen, most)
    if len(kept) < len(chosen):
        note = f"{len(kept):,} of the {len(chosen):,} training rows are used, a sample drawn with seed 0"
        note += "; as many as half of that to validate." if validation is None else "."
        on_event({"event": "note", "text": note})
    columns = table.columns
    files: dict[str, str] = {}
    tables: list[Table] = []
    for part, source, indices in (("train", table, kept), ("validation", other, held)):
        key = digest([source.digest, hashlib.sha256(np.asarray(indices, dtype=np.int64).tobytes()).hexdigest()])
        path = folder / f"{part}-{key}.jsonl"
        if not path.exists():
            _write_lines(path, source, indices, columns)
        files[part] = str(path.resolve())
        names = {"text": columns.text, "pair": columns.pair, "label": columns.label}
        tables.append(load(path, like=tables[0]) if tables else load(path, **names, kind=table.kind))  # type: ignore[arg-type]
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
    said = {"text": columns.text, "text_pair": columns.pair, "label": columns.label, "kind": table.kind}
    return Rows(tables[0], tables[1], files, said, about)


def sample(table: Table, chosen: Array, most: int | None) -> Array:
    """At most so many of the rows, in their order: one of each label first, the rest as they are drawn."""
    if most is None or most >= len(chosen):
        return chosen
    if most < max(2, len(table.labels)):
        raise UsageError(
            f"{most} rows are too few for {len(table.labels)} labels.", hint="Give --rows a larger number."
        )
    drawn = np.random.default_rng(0).permutation(chosen)
    first: Array = np.empty(0, dtype=np.int64)
    if table.kind == "classify":
        first = np.sort(np.unique(table.values[drawn], return_index=True)[1])
    rest = np.setdiff1d(np.arange(len(drawn)), first)
    return np.sort(drawn[np.r_[first, rest][:most].astype(np.int64)])


def _write_lines(path: Path, table: Table, indices: Array, columns: Columns) -> None:
    """Rows under the training file's column names, whatever they are called in their own."""
    partial = path.with_suffix(f".{os.getpid()}")
    with writing(path), partial.open("w") as file:
        for i in indices.tolist():
            target = table.values[i].item()
            row = {columns.text: table.text(i), columns.label: table.labels[target] if table.labels else target}
            file.write(json.dumps(row | ({columns.pair: table.pair(i)} if columns.pair else {})) + "\n")
    partial.replace(path)


def floors(rows: Rows, other: Table, folder: Path) -> dict[str, dict[str, float]]:
    """Majority and bag of words, fitted on the training rows; computed once."""
    path = folder / f"floors-{digest([rows.train.digest, other.digest])}.json"
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(path.read_text()))
    every = [np.arange(len(table)) for table in (rows.train, other)]
    found = baselines.baselines(
        rows.train.kind, rows.train.texts(every[0]), rows.train.values.tolist(), other.texts(every[1]),
        other.values.tolist(), range(len(rows.train.labels)),
    )  # fmt: skip
    write(path, found)
    return found
