"""Real datasets from a folder of packed files, always cut into training and test rows in the same way."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from adaptree.data.squad import read_squad
from adaptree.errors import DataError

TEST = 1000
"""At most this many test rows: a sample with seed 0."""
SHARE = 3
"""Of a dataset in one file at most one row in so many is held out to test."""


@dataclass(frozen=True)
class Corpus:
    """A dataset in DATA/NAME/{train,test}.jsonl.xz, or in one file of which a part is held out."""

    name: str
    train: str = "train"
    test: str | None = None
    """None: rows of the training file that are held out."""
    ending: str = "jsonl"
    """`json` for files in SQuAD's own format."""

    def rows(self, data: Path, part: str) -> list[str]:
        """Return the rows of a file, each as one line of JSON: texts with their label, or questions."""
        path = data / self.name / f"{part}.{self.ending}.xz"
        return read_lines(path) if self.ending == "json" else _labelled(path)


def one_file(name: str) -> Corpus:
    """Return the corpus in DATA/NAME/all.jsonl.xz."""
    return Corpus(name, train="all")


def cut(corpus: Corpus, data: Path, out: Path) -> tuple[Path, Path]:
    """Write a corpus as OUT/NAME-train.jsonl and OUT/NAME-test.jsonl; return both."""
    rows = corpus.rows(data, corpus.train)
    if corpus.test is None:
        random.Random(0).shuffle(rows)
        held = min(TEST, len(rows) // SHARE)
        test, rows = rows[:held], rows[held:]
    else:
        test = sample(corpus.rows(data, corpus.test), TEST)
    return write_lines(out / f"{corpus.name}-train.jsonl", rows), write_lines(out / f"{corpus.name}-test.jsonl", test)


def parts(corpus: Corpus, data: Path, out: Path, rows: int | None, held: int) -> dict[str, Path]:
    """Write a corpus as OUT/NAME-{train,validation,test}.jsonl; return the files by part.

    Of the training rows, shuffled with seed 0, the first `held` are for validation, at most a fifth of them, and of
    the others at most `rows` for training.
    """
    train, test = cut(corpus, data, out)
    lines = train.read_text().splitlines()
    random.Random(0).shuffle(lines)
    held = min(held, len(lines) // 5)
    last = None if rows is None else held + rows
    return {
        "train": write_lines(out / f"{corpus.name}-train.jsonl", lines[held:last]),
        "validation": write_lines(out / f"{corpus.name}-validation.jsonl", lines[:held]),
        "test": test,
    }


def _labelled(path: Path) -> list[str]:
    """Return the rows that have a label, each as one line of JSON with its texts or its choices, and its label."""
    kept = ("text", "text_a", "text_b", "question", "choices", "label")
    rows = [json.loads(line) for line in read_lines(path)]
    return [json.dumps({key: row[key] for key in kept if key in row}) for row in rows if row.get("label") is not None]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a packed file that are not blank; of SQuAD's JSON, one line of JSON per question."""
    try:
        with lzma.open(path, "rt") as file:
            if ".json" in path.suffixes:
                return [json.dumps(row) for _, row in read_squad(json.load(file))]
            return [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise DataError(
            f"{path.parent.name}/{path.name} is not there: {error.strerror or error}.",
            hint="Give the folder of the datasets: --data DIR, or ADAPTREE_DATA.",
        ) from None


def sample(lines: Sequence[str], most: int | None) -> list[str]:
    """Return at most `most` of the lines: all in their order, or a sample with seed 0."""
    return list(lines) if most is None or len(lines) <= most else random.Random(0).sample(list(lines), most)


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write lines to a file; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def count_lines(path: Path) -> int:
    """Return how many lines a file has."""
    with path.open() as file:
        return sum(1 for _ in file)
