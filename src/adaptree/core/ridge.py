"""Ridge regression in closed form, its strength chosen by leaving out one row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STRENGTHS = 10.0 ** np.linspace(-3, 3, 13)
"""Tried in this order, relative to the mean squared singular value."""


def held_out(x: NDArray[Any], y: Floats, folds: NDArray[np.int64]) -> Floats:
    """Return predictions for each row, (n, k), by ridge regression on the rows of the other folds."""
    found = np.empty_like(y)
    for fold in np.unique(folds):
        test = folds == fold
        found[test] = predict(x[~test], y[~test], x[test])
    return found


def predict(x: NDArray[Any], y: Floats, others: NDArray[Any]) -> Floats:
    """Fit argmin ‖y − a − XB‖² + λ‖B‖² on (n, d) and (n, k), columns of x standardised; return it for `others`."""
    x, others = x.astype(np.float64), others.astype(np.float64)
    mean, std = x.mean(0), x.std(0)
    std[std <= 1e-12 * np.abs(mean)] = np.inf  # a constant column tells nothing
    x, others = (x - mean) / std, (others - mean) / std
    centre = y.mean(0)
    u, s, vt = np.linalg.svd(x, full_matrices=False)
    if not s.any():
        return np.repeat(centre[None], len(others), 0)
    turned = u.T @ (y - centre)
    strength = _strength(u, s, turned, y - centre)
    found: Floats = centre + (others @ vt.T) @ (turned * (s / (s**2 + strength))[:, None])
    return found


def _strength(u: Floats, s: Floats, turned: Floats, y: Floats) -> float:
    """Return the λ of least leave-one-out error: (y − ŷ)/(1 − h) for each row, h the hat matrix's diagonal."""
    best, least = 0.0, np.inf
    for strength in STRENGTHS * float((s**2).mean()):
        kept = s**2 / (s**2 + strength)
        leverage = (u**2) @ kept + 1 / len(y)  # 1/n is the intercept's
        residual = (y - u @ (turned * kept[:, None])) / np.maximum(1 - leverage, 1e-9)[:, None]
        if (error := float((residual**2).sum())) < least:
            best, least = float(strength), error
    return best
