"""The percentile bootstrap over inputs, of whatever is a function of sums over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptree.errors import UsageError

Floats = NDArray[np.float64]
Ratio = Callable[[Floats], dict[str, Floats]]

BUDGET = 2_000_000  # numbers held at once
DRAWS = 50_000_000  # numbers drawn in all: past 50,000 inputs fewer resamples do, since the interval is narrow


def intervals(
    sums: NDArray[Any], ratio: Ratio, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """The interval of every metric; `sums` (n, k) has a row for each input, `ratio` makes metrics of (R, k) totals."""
    if not 0 < level < 1 or resamples < 1:
        raise UsageError(
            f"an interval needs a level between 0 and 1 and at least one resample, not {level} and {resamples}.",
            hint="level=0.95, resamples=1000",
        )
    sums = np.asarray(sums, dtype=np.float64)
    n = len(sums)
    if n == 0:
        return {name: (float(value[0]), float(value[0])) for name, value in ratio(np.zeros((1, sums.shape[1]))).items()}
    rng = np.random.default_rng(seed)
    count = max(min(resamples, 100), min(resamples, DRAWS // n))
    each = max(1, BUDGET // n)
    totals = np.concatenate([_draw(sums, min(each, count - start), rng) for start in range(0, count, each)])
    tails = [(1 - level) / 2, (1 + level) / 2]
    found = {}
    for name, values in ratio(totals).items():
        low, high = np.quantile(values, tails)
        found[name] = (float(low), float(high))
    return found


def _draw(sums: Floats, size: int, rng: np.random.Generator) -> Floats:
    """The totals of `size` resamples of the inputs, (size, k)."""
    n = len(sums)
    drawn = rng.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
    weights = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n)
    return np.asarray(weights.astype(np.float64) @ sums)
