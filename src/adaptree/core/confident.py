"""Confident learning (Northcutt et al. 2021): labels that are probably wrong, by probabilities from other folds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SLACK = 1e-6
"""How far below its threshold a probability still reaches it: the rounding of a mean of equal numbers."""


def likely_errors(labels: NDArray[Any], p: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which of the given labels, (n,), are probably wrong by out-of-fold probabilities, (n, k).

    §3.1: t_j = mean of p_j over the rows labelled j. A row surely belongs to the label with the largest p_j among those
    with p_j >= t_j. Its given label is in doubt where that is another one, and is not the likeliest of all either.
    """
    thresholds = np.array([p[labels == j, j].mean() if (labels == j).any() else np.inf for j in range(p.shape[1])])
    reached = p >= thresholds - SLACK
    sure = np.where(reached, p, -1.0).argmax(1)
    return np.asarray(reached.any(1) & (sure != labels) & (p.argmax(1) != labels))
