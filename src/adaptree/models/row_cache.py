"""Keys and values of texts that are written together, and that join and leave at any step.

Each text has a slot, a row of the cache, with its tokens from column 0 on, however long its neighbours are: a text that
joins is written into its slot, and one that leaves is forgotten, while the others stay where they are. A step appends
one token to each row at its own column, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

ROWS, COLUMNS = 8, 64
"""The cache grows in steps of so many rows and columns."""
Put = Callable[[Tensor, Tensor], Tensor]


class RowCache(Cache):  # type: ignore[misc]
    """A cache of transformers with a slot for each text. What a forward pass computes is said before it."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=lambda: _Layer(self))
        self.rows = self.columns = 0
        """How many there is memory for."""
        self.seen = 0
        """Tokens before those of the pass, in the longest of its rows."""
        self._put: Put | None = None

    def reserve(self, rows: int, columns: int) -> None:
        """Make room for so many rows and columns; keep what is there."""
        columns = -(-columns // COLUMNS) * COLUMNS
        if rows <= self.rows and columns <= self.columns:
            return
        rows = -(-rows // ROWS) * ROWS
        self.rows, self.columns = max(rows, self.rows), max(columns, self.columns)
        for layer in self.layers:
            layer.grow()

    def prompts(self, slots: Sequence[int], lengths: Sequence[int]) -> None:
        """Prepare for a pass over whole prompts, padded at the left, each into its slot."""

        def put(whole: Tensor, new: Tensor) -> Tensor:
            for slot, row, length in zip(slots, new, lengths, strict=True):
                whole[slot, :, :length] = row[:, row.shape[1] - length :]
                whole[slot, :, length:] = 0  # what is not a number there would stay none, times a weight of 0
            return new

        self.seen, self._put = 0, put

    def piece(self, slot: int, seen: int) -> None:
        """Prepare for a pass over the next piece of one row, of which so many tokens are there already."""

        def put(whole: Tensor, new: Tensor) -> Tensor:
            end = seen + new.shape[2]
            whole[slot, :, seen:end] = new[0]
            whole[slot, :, end:] = 0
            return whole[slot : slot + 1, :, :end]

        self.seen, self._put = seen, put

    def step(self, first: int, lengths: Tensor) -> Tensor:
        """Prepare for a pass over one more token of each row from a slot on; return the mask, (rows, columns).

        `lengths` are how many tokens each row has.
        """
        seen = int(lengths.max())
        rows = torch.arange(first, first + len(lengths), device=lengths.device)

        def put(whole: Tensor, new: Tensor) -> Tensor:
            whole[rows, :, lengths] = new[:, :, 0]
            return whole[first : first + len(lengths), :, : seen + 1]

        self.seen, self._put = seen, put
        return (torch.arange(seen + 1, device=lengths.device) <= lengths[:, None]).long()

    def put(self, whole: Tensor, new: Tensor) -> Tensor:
        """Write new keys or values of a layer into their slots; return all that the rows of the pass attend to."""
        assert self._put is not None
        return self._put(whole, new)

    def move(self, moves: Mapping[int, int]) -> None:
        """Move rows to other slots, all at once: {to: from}."""
        if not moves:
            return
        for layer in self.layers:
            to, source = (torch.tensor(list(each), device=layer.keys.device) for each in (moves, moves.values()))
            layer.keys[to] = layer.keys[source]
            layer.values[to] = layer.values[source]

    def clear(self) -> None:
        """Give all memory back."""
        self.layers.clear()
        self.rows = self.columns = 0


class _Layer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one layer, (rows, heads, columns, width)."""

    def __init__(self, cache: RowCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys, self.values = (self._zeros(each) for each in (key_states, value_states))
        self.is_initialized = True

    def _zeros(self, like: Tensor) -> Tensor:
        _, heads, _, width = like.shape
        return like.new_zeros(self.cache.rows, heads, self.cache.columns, width)

    def grow(self) -> None:
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = self._zeros(old)
            new[: old.shape[0], :, : old.shape[2]] = old
            setattr(self, name, new)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        return self.cache.put(self.keys, key_states), self.cache.put(self.values, value_states)

    def get_seq_length(self) -> int:
        return self.cache.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.seen + query_length, 0


def arranged(slots: Sequence[int], groups: Sequence[Any]) -> list[int]:
    """Return new slots for rows, 0 to n - 1, in which those of a group are neighbours; few rows move.

    A row that has no slot yet is at -1.
    """
    found = list(slots)
    start = 0
    for group in dict.fromkeys(groups):
        members = [i for i, each in enumerate(groups) if each == group]
        places = range(start, start + len(members))
        taken = {slots[i] for i in members}
        free = iter([place for place in places if place not in taken])
        for i in members:
            if slots[i] not in places:
                found[i] = next(free)
        start += len(members)
    return found
