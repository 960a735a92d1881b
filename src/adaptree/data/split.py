"""Hold rows out for validation: stratified, by content, with identical texts on one side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from adaptree.data.target_column import MOST_LABELS
from adaptree.data.texts import PARTS
from adaptree.errors import DataError, UsageError

if TYPE_CHECKING:
    from adaptree.data.dataset import Dataset

Rows = NDArray[np.int64]
Keys = NDArray[np.uint64]

# A stratum rides in the low bits of its text's key, so that one sort in place finds texts and their labels: a file of
# millions of rows is split with a few arrays. The 54 bits left of a key still tell a hundred million texts apart.
LOW = np.uint64(10)
MASK = np.uint64((1 << 10) - 1)
assert MASK >= MOST_LABELS


def split(dataset: Dataset, *, fraction: float = 0.2, most: int = 10_000, seed: int = 0) -> tuple[Rows, Rows]:
    """Return the examples to train on and those to validate on, ascending; an example's input decides, not its place.

    Of each label, the texts that come first in a seeded order of their keys are held out, in all at most `most` rows:
    more only if that is what one text of each label amounts to.
    """
    if not 0 < fraction < 1:
        raise UsageError(
            f"a fraction of {fraction} cannot be held out.", hint="Choose one between 0 and 1, such as 0.2"
        )
    texts, repeats, strata = _texts(dataset)
    if len(texts) < 2:
        raise DataError(
            f"'{dataset.name}' has only one text; nothing can be held out.", hint="Add rows of other texts."
        )
    order = np.lexsort((_mix(texts, seed), strata))
    ends = np.cumsum(np.bincount(strata))
    parts = [_first(order[start:end], fraction) for start, end in zip(np.r_[0, ends], ends, strict=False)]
    parts = [part for part in parts if len(part)]
    if not parts:
        raise DataError(
            f"no label of '{dataset.name}' has two texts, so nothing can be held out.",
            hint="Add rows, or give a file of its own: --validation FILE",
        )
    chosen = np.concatenate(_capped(parts, repeats, most))
    held = among(dataset.keys >> LOW, np.sort(texts[chosen]))
    return np.flatnonzero(~held), np.flatnonzero(held)


def split_by_column(dataset: Dataset, rows: Iterable[Mapping[str, Any]], column: str) -> tuple[Rows, Rows]:
    """Return the examples to train on and those to validate on, as a column of the dataset's file says."""
    held = np.zeros(len(dataset), dtype=bool)
    place = {int(ordinal): i for i, ordinal in enumerate(dataset.rows)}
    for ordinal, row in enumerate(rows):
        if ordinal not in place:
            continue
        said = str(row.get(column, "")).strip().lower()
        if said not in (*PARTS["train"], *PARTS["validation"]):
            raise DataError(
                f"'{said:.40}' in column '{column}' of '{dataset.name}' is neither train nor validation.",
                hint="Test rows are a file of their own: --test FILE",
            )
        held[place[ordinal]] = said in PARTS["validation"]
    if held.all() or not held.any():
        which = "train" if held.all() else "validation"
        raise DataError(f"no row of '{dataset.name}' says {which} in column '{column}'.", hint="Leave out --split.")
    return np.flatnonzero(~held), np.flatnonzero(held)


def split_again(dataset: Dataset, rows: Rows, *, fraction: float = 0.2, seed: int = 0) -> tuple[Rows, Rows]:
    """Return some examples in two parts, identical texts on one side: what a search trains and scores on."""
    texts = np.unique(dataset.keys[rows] >> LOW)
    if len(texts) < 2:
        raise DataError(f"'{dataset.name}' has only one text to train on; nothing can be held out for a search.")
    most = max(1, min(len(texts) - 1, round(fraction * len(texts))))
    chosen = texts[np.argsort(_mix(texts, seed), kind="stable")[:most]]
    held = among(dataset.keys[rows] >> LOW, np.sort(chosen))
    return rows[~held], rows[held]


def overlap(a: Dataset, b: Dataset) -> int:
    """Return how many examples of b have an input that is also in a."""
    return int(among(b.keys, np.sort(a.keys)).sum())


def among(keys: Keys, known: Keys) -> NDArray[np.bool_]:
    """Return which keys are in `known`, which is sorted and not empty."""
    places = np.searchsorted(known, keys)
    np.minimum(places, len(known) - 1, out=places)
    found: NDArray[np.bool_] = known[places] == keys
    return found


def _texts(dataset: Dataset) -> tuple[Keys, NDArray[np.int32], NDArray[np.int16]]:
    """Return the distinct texts, how many rows have each, and its most frequent stratum (the smallest among equals)."""
    rows = (dataset.keys & ~MASK) | (dataset.strata().astype(np.uint64) & MASK)
    rows.sort()
    bounds = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1], True])
    counts = np.diff(bounds).astype(np.int32)
    runs = rows[bounds[:-1]]  # a run: all rows of one text and one stratum
    del rows, bounds
    texts, strata = runs >> LOW, (runs & MASK).astype(np.int16)
    new = np.r_[True, texts[1:] != texts[:-1]]
    if new.all():
        return texts, counts, strata
    torn = np.flatnonzero(~(new & np.r_[new[1:], True]))  # runs of texts that have several
    best = torn[np.lexsort((strata[torn], -counts[torn], texts[torn]))]
    strata[torn] = strata[best]  # now the first run of each text holds the stratum that wins
    return texts[new], np.add.reduceat(counts, np.flatnonzero(new)), strata[new]


def _mix(keys: Keys, seed: int) -> Keys:
    """Return keys mixed by splitmix64's finaliser: another order for every seed, without ties."""
    z = keys + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _first(texts: Rows, fraction: float) -> Rows:
    """Return the first round(fraction · size) of a stratum's texts, but one at least on either side."""
    size = len(texts)
    return texts[: min(max(round(fraction * size), 1), size - 1)]


def _capped(parts: list[Rows], repeats: NDArray[np.int32], most: int) -> list[Rows]:
    """Return as many texts of each stratum, in fair shares, as make at most `most` rows."""
    sizes = [int(repeats[part].sum()) for part in parts]
    total = sum(sizes)
    if total <= most:
        return parts
    capped = []
    for part, size in zip(parts, sizes, strict=True):
        share = 1 + max(most - len(parts), 0) * size // total
        fitting = part[repeats[part] <= share]
        if len(fitting):
            capped.append(fitting[np.cumsum(repeats[fitting]) <= share])
        else:
            capped.append(part[np.argsort(repeats[part], kind="stable")[:1]])
    return capped
