"""A labelled file as random access to (text, pair, target), in bounded memory whatever the file's size."""

from __future__ import annotations

import itertools
import math
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptree.data.buffer import Buffer
from adaptree.data.columns import Columns, guess
from adaptree.data.read import Row, Source, rows
from adaptree.errors import DataError, near

Kind = Literal["classify", "regress"]

SAMPLE_ROWS, SAMPLE_CHARACTERS = 500, 4 << 20  # what columns are guessed from
MOST_LABELS = 1000
MOST_NUMERIC_LABELS = 50  # more distinct numbers than this are a quantity, not classes


class Like(Protocol):
    """What a validation or test file must fit: a table, or what a task's record says of one."""

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> Columns: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def labels(self) -> tuple[str | int, ...]: ...


class Table:
    """The kept rows of one file, of which 24 bytes each stay in memory beside the texts' buffer."""

    def __init__(
        self,
        name: str,
        columns: Columns,
        kind: Kind,
        why: str,
        labels: tuple[str | int, ...],
        targets: NDArray[Any],
        texts: Buffer,
        digest: str,
        left_out: dict[str, int],
        rows: array[int],
    ) -> None:
        self.name = name
        self.columns = columns
        self.kind = kind
        self.why = why
        self.labels = labels
        self.values = targets
        self.digest = digest
        self.left_out = left_out
        self.rows: NDArray[np.uint64] = np.frombuffer(rows, dtype=np.uint64)
        """Which row of the source each kept one is, counted from 0."""
        self.unknown: dict[str, int] = {}
        """Labels that the task does not know, and how many rows have them; their target is behind the last label."""
        self.keys: NDArray[np.uint64] = np.frombuffer(texts.keys, dtype=np.uint64)
        self._bytes = texts.finish()
        self._starts: NDArray[np.uint64] = np.frombuffer(texts.starts, dtype=np.uint64)
        self._lengths: NDArray[np.uint32] = np.frombuffer(texts.lengths, dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.keys)

    def text(self, i: int) -> str:
        start = int(self._starts[i])
        return self._bytes[start : start + int(self._lengths[i])].decode()

    def pair(self, i: int) -> str:
        """The second text of row i; empty where there is none."""
        return self._bytes[int(self._starts[i]) + int(self._lengths[i]) : int(self._starts[i + 1])].decode()

    def targets(self, indices: NDArray[Any]) -> NDArray[Any]:
        """What is right for some rows: positions in the labels, or numbers."""
        return np.asarray(self.values[indices])

    @property
    def scored(self) -> str:
        """What it is scored as: its kind, or what that is called with several targets."""
        return self.kind

    @property
    def said(self) -> dict[str, str | None]:
        """Which columns are read, by what they are."""
        return {"text": self.columns.text, "pair": self.columns.pair, "label": self.columns.label}

    def strata(self) -> NDArray[Any]:
        """The label of each row, or for a quantity its tenth: fewer parts when there are too few texts for ten."""
        if self.kind == "classify":
            return self.values
        parts = int(np.clip(len(np.unique(self.keys)) // 10, 1, 10))
        edges = np.quantile(self.values, np.arange(1, parts) / parts)
        return np.searchsorted(edges, self.values, side="right")

    def counts(self) -> dict[str, int]:
        """How many rows have each label."""
        if self.kind != "classify":
            return {}
        counts = np.bincount(self.values, minlength=len(self.labels)).tolist()
        return {str(label): count for label, count in zip(self.labels, counts, strict=True)}

    def example(self, i: int) -> dict[str, Any]:
        """A row as a card shows it."""
        target = self.values[i].item()
        shown = {"text": self.text(i), "label": self.labels[target] if self.kind == "classify" else target}
        return shown | ({"pair": self.pair(i)} if self.columns.pair else {})

    def inputs(self, indices: Iterable[int]) -> list[Any]:
        """What a task is asked about."""
        return list(self.texts(indices))

    def texts(self, indices: Iterable[int]) -> list[str] | list[tuple[str, str]]:
        """The texts of some rows, or their (text, pair) tuples when the file has pairs."""
        if self.columns.pair is None:
            return [self.text(i) for i in indices]
        return [(self.text(i), self.pair(i)) for i in indices]


def load(
    source: Source,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    kind: Kind | None = None,
    encoding: str = "utf-8",
    like: Like | None = None,
    need_label: bool = True,
) -> Table:
    """Read a file once; `like` gives a validation or test file the columns, kind and labels of the training file.

    Without `need_label` the label column is not looked at, and every target is -1.
    """
    name = name_of(source)
    sample, stream = peek(rows(source, encoding=encoding))
    return of_rows(name, sample, stream, text=text, pair=pair, label=label, kind=kind, like=like, need_label=need_label)


def name_of(source: Source) -> str:
    return Path(source).name if isinstance(source, str | os.PathLike) else "the data"


def of_rows(
    name: str,
    sample: list[Row],
    stream: Iterator[Row],
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    kind: Kind | None = None,
    like: Like | None = None,
    need_label: bool = True,
    unknown: bool = False,
) -> Table:
    """A table of all rows of a stream, of which `sample` are the first."""
    columns = _columns(name, [row for _, row in sample], like, text, pair, label, need_label)
    labels = _Labels(name, kind, like, [row.get(columns.label) for _, row in sample] if columns.label else [])
    labels.unknown = Counter() if unknown else None
    texts, digest = Buffer(), sha256()
    left_out = {"without text": 0, "without label": 0}
    second, last = b"", b""
    kept = array("Q")
    for ordinal, (number, row) in enumerate(stream):
        first_text = as_text(row.get(columns.text), number, columns.text, name)
        plain = " ".join(first_text.split())
        first = first_text.encode(errors="replace")  # half a surrogate pair, which JSON can hold, is no text
        if columns.pair is not None:
            second_text = as_text(row.get(columns.pair), number, columns.pair, name)
            plain = f"{plain}\0{' '.join(second_text.split())}"
            second = second_text.encode(errors="replace")
        if plain in ("", "\0"):
            left_out["without text"] += 1
            continue
        if need_label and columns.label is not None:
            spelled = labels.add(row.get(columns.label), number)
            if spelled is None:
                left_out["without label"] += 1
                continue
            last = spelled.encode(errors="replace")
        key = blake2b(plain.encode(errors="replace"), digest_size=8).digest()
        texts.add(first, second, int.from_bytes(key, "little"))
        kept.append(ordinal)
        digest.update(b"%d %d %d\n" % (len(first), len(second), len(last)) + first + second + last)
    if not texts.keys:
        asked = f"a text in column '{columns.text}'" + (f" and a label in '{columns.label}'" if need_label else "")
        raise DataError(f"no row of '{name}' has {asked}.", hint="Choose with --text COL --label COL.")
    if need_label:
        found, why, known, targets = labels.finish()
    else:
        found, why, known = kind or (like.kind if like else "classify"), "labels were not asked for", ()
        targets = np.full(len(texts.keys), -1, dtype=np.int32)
    made = Table(name, columns, found, why, known, targets, texts, digest.hexdigest(), left_out, kept)
    made.unknown = dict(labels.unknown or {})
    return made


def peek(stream: Iterator[Row]) -> tuple[list[Row], Iterator[Row]]:
    """The first rows, and all rows from the first on."""
    sample: list[Row] = []
    characters = 0
    for item in stream:
        sample.append(item)
        characters += sum(len(value) for value in item[1].values() if isinstance(value, str))
        if len(sample) >= SAMPLE_ROWS or characters > SAMPLE_CHARACTERS:
            break
    return sample, itertools.chain(sample, stream)


def _columns(
    name: str,
    sample: list[dict[str, Any]],
    like: Like | None,
    text: str | None,
    pair: str | None,
    label: str | None,
    need_label: bool,
) -> Columns:
    names = list(dict.fromkeys(itertools.chain.from_iterable(sample)))
    if like is not None and text is None and pair is None and label is None:
        wanted = [like.columns.text, like.columns.pair, like.columns.label if need_label else None]
        if all(column is None or column in names for column in wanted):
            return like.columns
    columns = guess(names, sample, text=text, pair=pair, label=label, need_label=need_label)
    if like is not None and (columns.pair is None) != (like.columns.pair is None):
        one, two = ("one text", "two") if columns.pair is None else ("two texts", "one")
        raise DataError(
            f"'{name}' has {one} a row, '{like.name}' has {two}.", hint="Say which: --text COL --text-pair COL"
        )
    return columns


def as_text(value: Any, number: int, column: str, name: str = "the data") -> str:
    """A cell as a text; what is absent is empty, and what holds other values is none."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, int | float | np.generic):
        return str(value)
    raise DataError(
        f"row {number} of '{name}': column '{column}' holds a {type(value).__name__}, not a text.",
        hint="Choose another column with --text COL.",
    )


class _Labels:
    """Takes labels one by one; at the end says of what kind they are and turns them into targets.

    Every distinct spelling gets a code, until there are too many for classes; numbers are kept beside the codes.
    """

    def __init__(self, name: str, kind: Kind | None, like: Like | None, sample: Sequence[Any]) -> None:
        self.name = name
        self.kind = like.kind if like else kind
        self.like = like
        # pandas writes NaN where there is no label: among names that is an absent label, among numbers a bad one
        names = any(isinstance(value, str) and _number(value) is None for value in sample)
        self.nan_is_absent = names or self.kind == "classify"
        self.codes: dict[str, int] = {str(label): i for i, label in enumerate(like.labels)} if like else {}
        self.numbers: list[float] = [math.nan] * len(self.codes)
        self.code, self.value = array("i"), array("f")
        self.all_integers = self.all_numbers = True
        self.fraction = self.overflow = False
        self.odd: tuple[int, str] | None = None
        self.unknown: Counter[str] | None = None
        """Counts labels that `like` does not have, where those are taken."""

    def add(self, value: Any, number: int) -> str | None:
        """The label as it is spelled, or None when there is none in this row."""
        if isinstance(value, np.generic):
            value = value.item()
        spelled = self._spell(value, number)
        if spelled is None:
            return None
        if type(value) is not int:
            self.all_integers = False
        code = self.codes.get(spelled)
        if code is None and self.unknown is not None and self.like is not None and self.kind == "classify":
            self.unknown[spelled] += 1
            code, figure = len(self.like.labels), math.nan
        elif code is None:
            figure = self._first(spelled, number)
            code = self.codes.get(spelled, -1)
        else:
            figure = self.numbers[code]
        if self.kind != "regress":
            self.code.append(code)
        if self.kind != "classify":
            self.value.append(figure)
        return spelled

    def _spell(self, value: Any, number: int) -> str | None:
        if isinstance(value, str):
            return value.strip() or None
        if value is None or (isinstance(value, float) and math.isnan(value) and self.nan_is_absent):
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list | tuple | dict | set | np.ndarray):
            raise DataError(
                f"row {number} of '{self.name}': the label is a {type(value).__name__}; one label per row is needed.",
                hint="Choose another column with --label COL.",
            )
        return str(value)

    def _first(self, spelled: str, number: int) -> float:
        """Take note of a spelling that has not been met; its number, or NaN."""
        figure = _number(spelled)
        finite = figure is not None and abs(figure) <= float(np.finfo(np.float32).max)
        if self.kind == "regress" and not finite:
            raise self._not_a_number(number, spelled)
        if self.like is not None and self.kind == "classify":
            raise self._unknown(number, spelled)
        if figure is None:
            self.all_numbers = False
        elif not finite:
            self.odd = self.odd or (number, spelled)
        elif not figure.is_integer():
            self.fraction = True
        if self.kind != "regress" and len(self.codes) >= MOST_LABELS:
            self.overflow = True
            if self.kind == "classify" or not self.all_numbers:
                raise self._too_many(f"more than {MOST_LABELS} different labels")
        elif self.kind != "regress":
            self.codes[spelled] = len(self.codes)
            self.numbers.append(math.nan if figure is None else figure)
        return math.nan if figure is None else figure

    def finish(self) -> tuple[Kind, str, tuple[str | int, ...], NDArray[Any]]:
        """The kind, why it is that, the labels in order, and the target of each row."""
        kind, why = self._decide()
        if kind == "regress":
            return kind, why, (), np.frombuffer(self.value, dtype=np.float32)
        codes: NDArray[np.int32] = np.frombuffer(self.code, dtype=np.int32)
        if self.like is not None:
            return kind, why, self.like.labels, codes
        count = len(self.codes)
        if count == 1:
            only = next(iter(self.codes))
            raise DataError(f"'{self.name}' has only one label, '{only}'.", hint="Two or more are needed.")
        if len(codes) >= 10 and count > 0.8 * len(codes):
            raise self._too_many(f"{count} different labels in {len(codes)} rows")
        spelled = sorted(self.codes)
        if self.all_numbers and self.odd is None:
            spelled.sort(key=lambda label: self.numbers[self.codes[label]])
        place = np.empty(count, dtype=np.int32)
        place[[self.codes[label] for label in spelled]] = np.arange(count, dtype=np.int32)
        labels: tuple[str | int, ...] = tuple(int(label) for label in spelled) if self.all_integers else tuple(spelled)
        return kind, why, labels, place[codes]

    def _decide(self) -> tuple[Kind, str]:
        if self.like is not None:
            return self.like.kind, f"as in '{self.like.name}'"
        if self.kind is not None:
            return self.kind, "as asked"
        count = f"more than {MOST_LABELS}" if self.overflow else str(len(self.codes))
        if not self.all_numbers:
            return "classify", f"the labels are names, {count} different ones"
        if self.odd is not None:
            raise self._not_a_number(*self.odd)
        if self.fraction:
            return "regress", "every label is a number and some have a fractional part"
        if self.overflow or len(self.codes) > MOST_NUMERIC_LABELS:
            return "regress", f"every label is a number and there are {count} different ones"
        return "classify", f"the labels are whole numbers, only {count} different ones"

    def _not_a_number(self, number: int, spelled: str) -> DataError:
        return DataError(
            f"row {number} of '{self.name}': the label '{spelled[:60]}' is not a finite number.",
            hint="Correct or remove the row; for labels that are names: --kind classify",
        )

    def _unknown(self, number: int, spelled: str) -> DataError:
        assert self.like is not None
        known = [str(label) for label in self.like.labels]
        listed = ", ".join(f"'{label}'" for label in known[:10]) + (", …" if len(known) > 10 else "")
        return DataError(
            f"row {number} of '{self.name}': unknown label '{spelled[:60]}'; '{self.like.name}' has {listed}.",
            hint=near(spelled, known),
        )

    def _too_many(self, what: str) -> DataError:
        numbers = " or, as they are numbers, --kind regress" if self.all_numbers else ""
        return DataError(
            f"'{self.name}' has {what}, which no classifier can learn.",
            hint=f"Choose another column with --label COL{numbers}.",
        )


def _number(spelled: str) -> float | None:
    try:
        return None if "_" in spelled else float(spelled)
    except ValueError:
        return None
