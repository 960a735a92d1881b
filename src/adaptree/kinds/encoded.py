"""Some inputs of a table, encoded when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.kinds.kind import Example, Kind, Targets

if TYPE_CHECKING:
    from adaptree.data.encode import Encoder
    from adaptree.data.source import Data

Array = np.ndarray[Any, Any]


class Encoded:
    """A table as a kind computes it; a small table's encodings are kept."""

    KEEP = 100_000

    def __init__(self, table: Data, kind: Kind, encoder: Encoder, max_length: int) -> None:
        self.table = table
        self._kind = kind
        self._encoder = encoder
        self._max_length = max_length
        self._kept: dict[int, Example] | None = {} if len(table) <= self.KEEP else None
        self._truncated = np.zeros(len(table), dtype=bool)

    def examples(self, indices: Array) -> list[Example]:
        kept = self._kept
        missing = indices if kept is None else np.array([i for i in indices.tolist() if i not in kept], dtype=np.int64)
        fresh = self._kind.examples(self._encoder, self.table.inputs(missing), self._max_length) if len(missing) else []
        for i, example in zip(missing.tolist(), fresh, strict=True):
            self._truncated[i] = any(row.truncated for row in example)
        if kept is None:
            return fresh
        kept.update(zip(missing.tolist(), fresh, strict=True))
        return [kept[i] for i in indices.tolist()]

    def targets(self, indices: Array) -> Targets:
        return self.table.targets(indices)

    def sampled(self, rows: Array, seed: Sequence[int]) -> Array:
        """The rows of an epoch, drawn by `seed`: all of them, where they are of one table."""
        return rows

    @property
    def truncated(self) -> int:
        """How many of the inputs seen so far were cut."""
        return int(self._truncated.sum())
