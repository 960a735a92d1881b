"""The same files for every subject: cut from one labelled dataset, always in the same way."""

from __future__ import annotations

import json
import lzma
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.table import Run

DATASET = Path("sms_spam") / "all.jsonl.xz"
FILE = re.compile(r"\{data\}/(train|validation|texts|long)-(\d+)\.jsonl")
HELD = 1000
"""Rows of the dataset that are kept for validation."""
LONG_WORDS = 400

Rows = list[dict[str, Any]]


class NoData(Exception):
    """The data cannot be read; the message says why in one line."""


def rows_of(folder: Path | None) -> Rows:
    """Return the dataset's rows with distinct texts, shuffled with seed 0."""
    if folder is None:
        raise NoData("no data: give the folder that holds sms_spam/all.jsonl.xz with --data DIR or ADAPTREE_DATA.")
    try:
        with lzma.open(folder / DATASET, "rt") as file:
            found = {row["text"]: row for row in map(json.loads, file)}
    except OSError as error:
        raise NoData(f"no data: {folder / DATASET}: {error.strerror or error} (--data DIR or ADAPTREE_DATA).") from None
    rows = [{"text": row["text"], "label": row["label"]} for row in found.values()]
    random.Random(0).shuffle(rows)
    return rows


def write(rows: Rows, runs: Iterable[Run], folder: Path) -> None:
    """Write the files that these runs read, replacing those of an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    _put(folder / "labels.json", json.dumps(sorted({row["label"] for row in rows})))
    wanted = {(kind, int(count)) for run in runs for word in run.words for kind, count in FILE.findall(word)}
    for kind, count in sorted(wanted):
        _put(folder / f"{kind}-{count}.jsonl", "".join(json.dumps(row) + "\n" for row in cut(rows, kind, count)))


def _put(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def cut(rows: Rows, kind: str, count: int) -> Rows:
    """Return `count` rows for training, for validation, to predict (repeated if they are too few), or made long."""
    held, rest = rows[:HELD], rows[HELD:]
    if kind == "texts":
        return [rows[i % len(rows)] for i in range(count)]
    if kind == "long":
        return [{"text": _long(rest, i), "label": rest[i]["label"]} for i in range(count)]
    part = held if kind == "validation" else rest
    if count > len(part):
        raise NoData(f"the dataset has {len(part):,} rows for {kind}, not {count:,}.")
    return part[:count]


def _long(rows: Rows, at: int) -> str:
    """Return a row's text followed by those of the next rows, LONG_WORDS words in all."""
    words: list[str] = []
    while len(words) < LONG_WORDS:
        words += rows[at % len(rows)]["text"].split()
        at += 1
    return " ".join(words[:LONG_WORDS])
