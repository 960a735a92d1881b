"""A file of inputs that are more than texts, as random access to (input, gold), in bounded memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b, sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptree.data.buffer import Buffer
from adaptree.data.forms.form import Form
from adaptree.data.read import Row
from adaptree.errors import DataError


class Records:
    """The kept rows of one file: each an input and a gold, as the file's form reads them."""

    def __init__(
        self, name: str, form: Form, labels: tuple[str, ...], counts: dict[str, int], texts: Buffer, digest: str,
        left_out: dict[str, int],
    ) -> None:  # fmt: skip
        self.name = name
        self.form = form
        self.kind = form.kind
        self.why = form.why
        self.labels = labels
        self.digest = digest
        self.left_out = left_out
        self.keys: NDArray[np.uint64] = np.frombuffer(texts.keys, dtype=np.uint64)
        self._counts = counts
        self.unknown = {label: count for label, count in counts.items() if label not in set(labels)}
        self._bytes = texts.finish()
        self._starts: NDArray[np.uint64] = np.frombuffer(texts.starts, dtype=np.uint64)
        self._lengths: NDArray[np.uint32] = np.frombuffer(texts.lengths, dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def scored(self) -> str:
        return next((name for name in ("labels", "numbers") if name in self.form.columns), self.kind)

    @property
    def said(self) -> dict[str, str | None]:
        return dict(self.form.columns)

    columns = said
    values = None

    def inputs(self, indices: Iterable[int]) -> list[Any]:
        return [json.loads(self._part(i, 0)) for i in indices]

    def targets(self, indices: Iterable[int]) -> list[Any]:
        return [json.loads(self._part(i, 1)) for i in indices]

    def texts(self, indices: Iterable[int]) -> list[str]:
        """The inputs as plain texts."""
        return [self.form.key(given) for given in self.inputs(indices)]

    def strata(self) -> NDArray[Any]:
        return np.zeros(len(self), dtype=np.int32)

    def counts(self) -> dict[str, int]:
        return self._counts

    def example(self, i: int) -> dict[str, Any]:
        return {"input": self.inputs([i])[0], "gold": self.targets([i])[0]}

    def _part(self, i: int, which: int) -> bytes:
        start, end = int(self._starts[i]), int(self._starts[i + 1])
        middle = start + int(self._lengths[i])
        return bytes(self._bytes[middle:end] if which else self._bytes[start:middle])


def of_rows(
    name: str, form: Form, stream: Iterator[Row], *, labels: tuple[str, ...] | None, need_label: bool
) -> Records:
    """The records of all rows of a stream; `labels` are known where another file has given them."""
    texts, digest = Buffer(), sha256()
    left_out = {"without text": 0, "without label": 0}
    counts: Counter[str] = Counter()
    for number, row in stream:
        given = form.input(row, number, name)
        if given is None:
            left_out["without text"] += 1
            continue
        gold = form.gold(row, given, number, name) if need_label else None
        if gold is None and need_label:
            left_out["without label"] += 1
            continue
        counts.update(form.labels(gold) if gold is not None else ())
        first, second = (json.dumps(value, ensure_ascii=False).encode(errors="replace") for value in (given, gold))
        key = blake2b(" ".join(form.key(given).split()).encode(errors="replace"), digest_size=8).digest()
        texts.add(first, second, int.from_bytes(key, "little"))
        digest.update(b"%d %d\n" % (len(first), len(second)) + first + second)
    if not texts.keys:
        listed = ", ".join(f"'{column}'" for column in form.columns.values() if column)
        raise DataError(f"no row of '{name}' has what kind {form.kind} needs in {listed}.", hint="adaptree check FILE")
    known = tuple(sorted(counts)) if labels is None else labels
    return Records(name, form, known, dict(counts), texts, digest.hexdigest(), left_out)
