"""Batches of rows of one length.

Each row is computed at its own canonical length, whatever it is batched with: padding moves the last bits of a
hidden state, the other rows and their order do not. So a text's logits are the same bits alone, in a file and in
training, and batches hold little padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.data.encode import Encoding
from adaptree.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

POOL = 8192
"""Rows that are shuffled together, encoded together and cut into batches by length."""


def canonical(length: int) -> int:
    """Return the length that a row is computed at: steps of 8 up to 64, then of an eighth of the power of two."""
    step = 8
    while length > 8 * step:
        step *= 2
    return -(-length // step) * step


def group(lengths: Sequence[int], batch_size: int) -> list[np.ndarray[Any, Any]]:
    """Return positions in batches of one canonical length, in their given order within a length.

    Raise UsageError unless `batch_size` is a whole number of at least 1: every batch is made here.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise UsageError(f"batch_size must be a whole number of at least 1, not {batch_size!r}.", hint="batch_size=64")
    sizes = np.array([canonical(n) for n in lengths])
    out = []
    for size in np.unique(sizes):
        members = np.flatnonzero(sizes == size)
        out += [members[i : i + batch_size] for i in range(0, len(members), batch_size)]
    return out


def epoch(
    rows: np.ndarray[Any, Any],
    encode: Callable[[np.ndarray[Any, Any]], list[list[Encoding]]],
    batch_size: int,
    seed: Sequence[int],
) -> Iterator[tuple[np.ndarray[Any, Any], list[list[Encoding]]]]:
    """Yield batches of all examples, each once, in an order that depends on `seed` alone.

    Examples are shuffled; within pools they are batched by the length of their longest row, and the pool's batches are
    shuffled again, so that no part of an epoch sees only short or only long texts.
    """
    rng = np.random.default_rng(list(seed))
    order = rng.permutation(rows)
    for start in range(0, len(order), POOL):
        pool = order[start : start + POOL]
        encoded = encode(pool)
        batches = group([max(len(row.ids) for row in example) for example in encoded], batch_size)
        for at in rng.permutation(len(batches)):
            yield pool[batches[at]], [encoded[i] for i in batches[at]]


def collate(rows: Sequence[Encoding], pad_id: int, device: Any = "cpu") -> dict[str, Tensor]:
    """Return encoded rows as the model's inputs, padded to their canonical length."""
    import torch

    T = canonical(max(len(row.ids) for row in rows))
    ids = np.full((len(rows), T), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), T), dtype=np.int64)
    types = np.zeros((len(rows), T), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = row.ids
        mask[i, : len(row.ids)] = 1
        if row.types is not None:
            types[i, : len(row.types)] = row.types
    arrays = {"input_ids": ids, "attention_mask": mask}
    if rows[0].types is not None:
        arrays["token_type_ids"] = types
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
