"""Texts that are longer than the base takes: windows over all of it, whose votes are pooled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from adaptree.data.encode import Encoder, Layout, spans_of
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

    def layout(self, encoder: Encoder, given: Any, example: Example, max_length: int) -> Layout:
        if not self.windows:
            return super().layout(encoder, given, example, max_length)
        (pieces,) = encoder.pieces([given])
        room, places = _room(encoder, max_length), spans_of(0, pieces.spans)
        rows = [encoder.row_places(places[start : start + room]) for start in _starts(len(places), room)]
        return Layout([given], rows)


def examples(encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
    """Return rows that hold each text whole."""
    if any(not isinstance(text, str) for text in inputs):
        raise UsageError("windows are for single texts, and this task takes pairs.", hint="Leave out --windows.")
    room = _room(encoder, max_length)
    return [
        [encoder.row(pieces.ids[start : start + room]) for start in _starts(len(pieces.ids), room)]
        for pieces in encoder.pieces(list(inputs))
    ]


def _room(encoder: Encoder, max_length: int) -> int:
    return max(1, encoder.room(max_length, pair=False))


def _starts(count: int, room: int) -> list[int]:
    """Return where each window of a text of `count` tokens begins."""
    last = max(0, count - room)
    return [*range(0, last, max(1, room - room // OVERLAP)), last] if last else [0]


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
