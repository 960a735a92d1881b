"""A dataset's inputs as encoded examples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.kinds.kind import Example, Kind, Targets, as_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.data.encode import Encoder

Array = np.ndarray[Any, Any]


class EncodedDataset:
    """A dataset whose inputs are encoded, as a kind needs them, when they are first used."""

    KEEP = 100_000
    """Datasets of at most this many rows keep their encodings in memory."""

    def __init__(self, dataset: Dataset, kind: Kind, encoder: Encoder, max_length: int) -> None:
        self.dataset = dataset
        self.kind = kind
        self._encoder = encoder
        self._max_length = max_length
        self._kept: dict[int, Example] | None = {} if len(dataset) <= self.KEEP else None
        self._truncated = np.zeros(len(dataset), dtype=bool)

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def digest(self) -> str:
        """The digest of the data."""
        return self.dataset.digest

    def examples(self, rows: Array) -> list[Example]:
        """Return the encoded examples of some rows."""
        kept = self._kept
        missing = rows if kept is None else np.array([i for i in rows.tolist() if i not in kept], dtype=np.int64)
        inputs = self.dataset.inputs(missing) if len(missing) else []
        fresh: list[Example] = []
        if len(missing):
            targets = self.dataset.targets(missing) if self.kind.generates else None
            fresh = self.kind.taught(self._encoder, inputs, targets, self._max_length)
        for i, example in zip(missing.tolist(), fresh, strict=True):
            self._truncated[i] = any(encoding.truncated for encoding in example)
        if kept is None:
            return fresh
        kept.update(zip(missing.tolist(), fresh, strict=True))
        return [kept[i] for i in rows.tolist()]

    def targets(self, rows: Array) -> Targets:
        """Return the targets of some rows."""
        return self.dataset.targets(rows)

    def strata(self, rows: Array) -> Array:
        """Return the stratum of some rows (`Dataset.strata`)."""
        return self.dataset.strata()[rows]

    def weights(self, rows: Array) -> Array | None:
        """Return how much some rows count in the loss, 1 on average; None where all count the same."""
        return None if self.dataset.weights is None else self.dataset.weights[rows]

    def weighted(self, losses: Tensor, rows: Array) -> Tensor:
        """Return the losses of some rows, each times its row's weight."""
        weights = self.weights(rows)
        return losses if weights is None else losses * as_tensor(weights, losses)

    def described(self, texts: Mapping[str, str]) -> DescribedDataset:
        """Return this dataset with one more example for each label that has a description."""
        return DescribedDataset(self.dataset, self.kind, self._encoder, self._max_length, texts)

    def sampled(self, rows: Array, seed: Sequence[int]) -> Array:
        """Return the rows of one epoch: all of them, where there is one dataset."""
        return rows

    @property
    def truncated(self) -> int:
        """How many of the inputs encoded so far were longer than `max_length`."""
        return int(self._truncated.sum())


class DescribedDataset(EncodedDataset):
    """A dataset with descriptions of its labels as further examples, behind its own: `more` are their numbers."""

    def __init__(
        self, dataset: Dataset, kind: Kind, encoder: Encoder, max_length: int, texts: Mapping[str, str]
    ) -> None:
        super().__init__(dataset, kind, encoder, max_length)
        known = {str(label): i for i, label in enumerate(dataset.labels)}
        self._labels = np.array([known[label] for label in texts], dtype=np.int64)
        self._texts = dict(texts)
        self._described = kind.examples(encoder, list(texts.values()), max_length)
        self.more: Array = np.arange(len(dataset), len(dataset) + len(texts))

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([super().digest, self._texts], sort_keys=True).encode()).hexdigest()

    def examples(self, rows: Array) -> list[Example]:
        own = iter(super().examples(rows[rows < len(self)]))
        return [next(own) if i < len(self) else self._described[i - len(self)] for i in rows.tolist()]

    def targets(self, rows: Array) -> Targets:
        return np.concatenate([np.asarray(self.dataset.values), self._labels])[rows]

    def strata(self, rows: Array) -> Array:
        return np.concatenate([self.dataset.strata(), self._labels])[rows]

    def weights(self, rows: Array) -> Array | None:
        own = self.dataset.weights
        return None if own is None else np.concatenate([own, np.ones(len(self.more), dtype=own.dtype)])[rows]
