"""Metrics that are functions of sums over examples, and their intervals by the percentile bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptree.errors import UsageError

Floats = NDArray[np.float64]
Ratio = Callable[[Floats], dict[str, Floats]]

BUDGET = 2_000_000  # numbers held at once
DRAWS = 50_000_000  # numbers drawn in all: past 50,000 examples fewer resamples do, since the interval is narrow


def score(sums: NDArray[Any], ratio: Ratio) -> dict[str, float]:
    """Return every metric that is a function of sums over examples: `sums` and `ratio` as in `intervals`."""
    totals = np.asarray(sums, dtype=np.float64).sum(axis=0, keepdims=True)
    return {name: float(values[0]) for name, values in ratio(totals).items()}


def intervals(
    sums: NDArray[Any], ratio: Ratio, *, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return the interval of every metric that is a function of sums over examples.

    `sums` (n, k) has a row for each example; `ratio` makes metrics of (R, k) totals, the first of which are the data's
    own.
    """
    sums = np.asarray(sums, dtype=np.float64)
    own = sums.sum(axis=0, keepdims=True)

    def resampled(weights: Floats) -> dict[str, Floats]:
        return {name: values[1:] for name, values in ratio(np.concatenate([own, weights @ sums])).items()}

    return resample(resampled, len(sums), level=level, resamples=resamples, seed=seed)


def resample(
    metrics: Ratio, n: int, *, counts: Floats | None = None, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Return the interval of every metric of n examples.

    `metrics` takes weights (R, n), how often each example was drawn in each of R resamples. Where examples fall into
    few groups that count alike, `counts` (C,) has the size of each, and the weights are (R, C).
    """
    if not 0 < level < 1 or resamples < 1:
        raise UsageError(
            f"an interval needs a level between 0 and 1 and at least one resample, not {level} and {resamples}.",
            hint="level=0.95, resamples=1000",
        )
    if n == 0:
        values = metrics(np.zeros((1, 0 if counts is None else len(counts))))
        return {name: (float(value[0]), float(value[0])) for name, value in values.items()}
    rng = np.random.default_rng(seed)
    if counts is None:
        draws = _examples(n, max(min(resamples, 100), min(resamples, DRAWS // n)), rng)
    else:
        draws = _groups(n, counts, resamples, rng)
    parts = [metrics(weights) for weights in draws]
    tails = [(1 - level) / 2, (1 + level) / 2]
    found = {}
    for name in parts[0]:
        low, high = np.quantile(np.concatenate([part[name] for part in parts]), tails)
        found[name] = (float(low), float(high))
    return found


def _examples(n: int, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield how often each of n examples is in each resample, (R, n) at once."""
    for size in _sizes(resamples, n):
        places = rng.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
        yield np.bincount(places.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def _groups(n: int, counts: Floats, resamples: int, rng: np.random.Generator) -> Iterator[Floats]:
    """Yield the sizes of the groups in resamples, which are multinomial: no example need be drawn."""
    for size in _sizes(resamples, 4 * len(counts)):
        yield rng.multinomial(n, counts / counts.sum(), size=size).astype(np.float64)


def _sizes(resamples: int, width: int) -> Iterator[int]:
    """Yield how many resamples are computed at once."""
    most = max(1, BUDGET // max(1, width))
    for start in range(0, resamples, most):
        yield min(most, resamples - start)
