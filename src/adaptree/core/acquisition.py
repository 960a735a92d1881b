"""Active learning: which rows to label next, by how unsure a task is of them and by how they differ from each other.

Each strategy returns the places of at most `count` rows, those most worth labelling first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Places = NDArray[np.int64]

NEIGHBOURS = 10


def doubts(p: Floats) -> Floats:
    """Return 1 - (p₁ - p₂) for rows of probabilities (n, k): 1 where the two likeliest labels are equally likely.

    Breaking ties (Luo et al. 2005). With two labels its order is that of entropy and of least confidence.
    """
    if p.shape[1] < 2:
        return np.zeros(len(p))
    second, first = np.partition(p, -2, axis=1)[:, -2:].T
    return np.asarray(1 - (first - second))


def entropies(p: Floats) -> Floats:
    """Return the entropy of each row of probabilities (n, k), 1 where all k are equally likely."""
    safe = np.clip(p, 1e-12, 1)
    return np.asarray(-(safe * np.log(safe)).sum(1) / np.log(max(p.shape[1], 2)))


def uncertain(doubt: Floats, count: int) -> Places:
    """Return the rows with the most doubt."""
    return np.argsort(-doubt, kind="stable")[:count]


def spread(x: Floats, count: int, seed: int) -> Places:
    """Return the row that is nearest to the centre of each cluster of vectors (n, d), the largest clusters first."""
    return _centres(x, count, seed, np.ones(len(x)))


def diverse(doubt: Floats, x: Floats, count: int, seed: int) -> Places:
    """Return the same of clusters in which a row counts as much as it is doubted (after Zhdanov 2019).

    The centres are where there are many doubtful rows, and far from each other.
    """
    found = _centres(x, count, seed, np.maximum(doubt, 1e-6))
    return np.asarray(found[np.argsort(-doubt[found], kind="stable")])


def contrastive(p: Floats, x: Floats, count: int) -> Places:
    """Return the rows whose probabilities differ most from those of their nearest neighbours: KL(neighbour ‖ row).

    Margatina et al. 2021, with all rows in the place of labelled ones as neighbours.
    """
    from sklearn.neighbors import NearestNeighbors

    z, log_p = _unit(x), np.log(np.clip(p, 1e-12, 1))
    near = NearestNeighbors(n_neighbors=min(NEIGHBOURS + 1, len(z))).fit(z).kneighbors(z, return_distance=False)[:, 1:]
    divergence = (p[near] * (log_p[near] - log_p[:, None])).sum(-1)  # (n, neighbours)
    return uncertain(divergence.mean(1), count)


def _centres(x: Floats, count: int, seed: int, weights: Floats) -> Places:
    """Return the row nearest to the centre of each of `count` clusters by k-means, those of the most weight first."""
    from sklearn.cluster import KMeans

    z = _unit(x)
    if len(z) <= count:
        return np.argsort(-weights, kind="stable")
    found = KMeans(count, n_init=3, random_state=seed).fit(z, sample_weight=weights)
    cluster = found.labels_
    distance = np.linalg.norm(z - found.cluster_centers_[cluster], axis=1)
    order = np.argsort(distance, kind="stable")
    _, first = np.unique(cluster[order], return_index=True)
    nearest = order[first]  # of cluster 0, 1, …
    heavy = np.bincount(cluster, weights=weights)[cluster[nearest]]
    return np.asarray(nearest[np.argsort(-heavy, kind="stable")])


def _unit(x: Floats) -> Floats:
    x = x - x.mean(0)  # of some bases all vectors point the same way
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))
