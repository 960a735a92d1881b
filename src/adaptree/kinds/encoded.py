"""The examples of a dataset, encoded when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.kinds.kind import Example, Kind, Targets

if TYPE_CHECKING:
    from adaptree.data.dataset import Dataset
    from adaptree.data.encode import Encoder

Array = np.ndarray[Any, Any]


class Encoded:
    """A dataset as a kind computes it; the encodings of a small one are kept."""

    KEEP = 100_000

    def __init__(self, dataset: Dataset, kind: Kind, encoder: Encoder, max_length: int) -> None:
        self.dataset = dataset
        self._kind = kind
        self._encoder = encoder
        self._max_length = max_length
        self._kept: dict[int, Example] | None = {} if len(dataset) <= self.KEEP else None
        self._truncated = np.zeros(len(dataset), dtype=bool)

    def examples(self, indices: Array) -> list[Example]:
        """Return some examples, encoded."""
        kept = self._kept
        missing = indices if kept is None else np.array([i for i in indices.tolist() if i not in kept], dtype=np.int64)
        fresh = (
            self._kind.examples(self._encoder, self.dataset.inputs(missing), self._max_length) if len(missing) else []
        )
        for i, example in zip(missing.tolist(), fresh, strict=True):
            self._truncated[i] = any(row.truncated for row in example)
        if kept is None:
            return fresh
        kept.update(zip(missing.tolist(), fresh, strict=True))
        return [kept[i] for i in indices.tolist()]

    def targets(self, indices: Array) -> Targets:
        """Return some examples' targets."""
        return self.dataset.targets(indices)

    def sampled(self, rows: Array, seed: Sequence[int]) -> Array:
        """Return the examples of an epoch, drawn by `seed`: of one dataset all of them."""
        return rows

    @property
    def truncated(self) -> int:
        """How many of the inputs seen so far were cut."""
        return int(self._truncated.sum())
