"""Texts that are there more than once: the same but for case and punctuation, or nearly the same."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Text = str | tuple[str, str]

CLOSE = 0.9
"""The least cosine of two texts' vectors for a closer look at their letters."""
ALIKE = 0.7
"""The share of three-letter pieces that near-duplicates have in common."""
MOST = 50_000
"""With more texts, only those that are the same but for case and punctuation are found."""
BLOCK = 256


def same(texts: Sequence[Text]) -> Array:
    """Return for each text the position of the first one that is the same but for case, punctuation and blanks."""
    first: dict[tuple[str, ...], int] = {}
    return np.array([first.setdefault(normalised(text), i) for i, text in enumerate(texts)])


def groups(texts: Sequence[Text], vectors: Array) -> Array:
    """Return for each text the position of the first one that it is a duplicate of, directly or through others.

    Two texts are duplicates when they are the same but for case, punctuation and blanks, or when their vectors, (n, d),
    are close and they share most of their three-letter pieces; of pairs, both texts must.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    equal = same(texts)
    found = list(zip(equal.tolist(), range(len(texts)), strict=True))
    if len(texts) <= MOST:
        found += _near([normalised(text) for text in texts], vectors, np.unique(equal))
    a, b = np.array(found).T
    _, component = connected_components(coo_array((np.ones(len(a)), (a, b)), shape=(len(texts),) * 2), directed=False)
    _, firsts, place = np.unique(component, return_index=True, return_inverse=True)
    return np.asarray(firsts[place])


def normalised(text: Text) -> tuple[str, ...]:
    """Return a text, or both of a pair, in lower case without punctuation, unless it consists of nothing else."""
    parts = (text,) if isinstance(text, str) else text
    found = []
    for part in parts:
        folded = unicodedata.normalize("NFKC", part).casefold()
        found.append(" ".join(re.findall(r"\w+", folded)) or " ".join(folded.split()))
    return tuple(found)


def _near(plain: Sequence[tuple[str, ...]], vectors: Array, distinct: Array) -> Iterator[tuple[int, int]]:
    """Yield the pairs of distinct texts that are nearly the same."""
    x = vectors[distinct].astype(np.float32)
    x = x - x.mean(0)  # of some bases all vectors point the same way
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    pieces: dict[int, list[set[str]]] = {}
    for start in range(0, len(x), BLOCK):
        close = x[start : start + BLOCK] @ x.T >= CLOSE
        for row, column in zip(*np.nonzero(np.triu(close, start + 1)), strict=True):
            i, j = int(distinct[start + row]), int(distinct[column])
            for each in (i, j):
                if each not in pieces:
                    pieces[each] = [_pieces(part) for part in plain[each]]
            if all(len(a & b) >= ALIKE * len(a | b) for a, b in zip(pieces[i], pieces[j], strict=True)):
                yield i, j


def _pieces(text: str) -> set[str]:
    padded = f"  {text} "
    return {padded[i : i + 3] for i in range(len(padded) - 2)}
