"""Texts that are longer than the base takes: windows over all of it, whose votes are pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adaptree.data.encode import Encoder
from adaptree.errors import UsageError
from adaptree.kinds.kind import Example, Kind

if TYPE_CHECKING:
    from torch import Tensor

OVERLAP = 8
"""A window shares one part in this many with the next one."""


class Windowed(Kind):
    """A kind with a setting `windows`: whether long texts are read whole."""

    windows: bool

    @property
    def single(self) -> bool:
        return not self.windows

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        return (examples if self.windows else super().examples)(encoder, inputs, max_length)


def examples(encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
    """Return rows that hold each text whole."""
    if any(not isinstance(text, str) for text in inputs):
        raise UsageError("windows are for single texts, and this task takes pairs.", hint="Leave out --windows.")
    room = max(1, encoder.room(max_length, pair=False))
    step = max(1, room - room // OVERLAP)
    found = []
    for pieces in encoder.pieces(list(inputs)):
        last = max(0, len(pieces.ids) - room)
        starts = [*range(0, last, step), last] if last else [0]
        found.append([encoder.row(pieces.ids[start : start + room]) for start in starts])
    return found


def votes(out: Tensor, examples: Sequence[Example]) -> Tensor:
    """Return the logarithm of each input's mean probabilities over its windows, (n, labels)."""
    import torch

    parts = out.log_softmax(-1).split([len(example) for example in examples])  # type: ignore[no-untyped-call]
    return torch.stack([part.logsumexp(0) - math.log(len(part)) for part in parts]) if parts else out


def means(out: Tensor, examples: Sequence[Example]) -> Tensor:
    """Return each input's mean over its windows, (n, width)."""
    import torch

    parts = out.split([len(example) for example in examples])  # type: ignore[no-untyped-call]
    return torch.stack([part.mean(0) for part in parts]) if parts else out
