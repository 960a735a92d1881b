"""Metrics of labels and of numbers, with confidence intervals; one formula serves a score and its bootstrap.

Both are functions of weights with a leading axis of resamples, (R, n). A score is the case of one resample, the data
itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptree.errors import DataError
from adaptree.kinds import bootstrap

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Values = Sequence[Any] | NDArray[Any]

LOWER_IS_BETTER = {"loss"}
"""Names of metrics, to which every kind adds its own (`Kind.lower_is_better`)."""
REGRESSION = ("pearson", "spearman", "mse", "mae", "r2")


def better(metric: str, a: float, b: float) -> bool:
    """Return whether a is strictly better than b; anything is better than NaN."""
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(b) and not np.isnan(a))
    return a < b if metric in LOWER_IS_BETTER else a > b


def perfect(metric: str, value: float) -> bool:
    """Return whether no score can be better: 1, or 0 for errors (perplexity never gets there)."""
    return value <= 0 if metric in LOWER_IS_BETTER else value >= 1


def classification(gold: Values, predicted: Values, labels: int) -> dict[str, float]:
    """Return accuracy, macro F1 and Matthews' correlation; for two labels also the second's F1, precision and recall.

    Gold and predicted are positions among so many `labels`. Empty input and undefined ratios give 0.0; macro F1 is over
    the labels that occur.
    """
    _same_length(gold, predicted)
    cells, counts = _table(gold, predicted, labels)
    return {name: float(values[0]) for name, values in _classify(cells, counts[None, :], labels).items()}


def classification_intervals(
    gold: Values, predicted: Values, labels: int, **options: Any
) -> dict[str, tuple[float, float]]:
    """Return the interval of each metric of `classification`; options are those of `bootstrap.resample`."""
    _same_length(gold, predicted)
    cells, counts = _table(gold, predicted, labels)

    def resampled(weights: Floats) -> dict[str, Floats]:
        found = _classify(cells, np.concatenate([counts[None, :], weights]), labels)
        return {name: values[1:] for name, values in found.items()}

    return bootstrap.resample(resampled, len(gold), counts=counts, **options)


def regression(gold: Values, predicted: Values) -> dict[str, float]:
    """Return Pearson's and Spearman's correlation, mean squared and absolute error and R²; 0.0 where undefined."""
    _same_length(gold, predicted)
    x, y = _numbers("gold", gold), _numbers("predicted", predicted)
    return {name: float(values[0]) for name, values in _regress(np.ones((1, len(x))), x, y).items()}


def regression_intervals(gold: Values, predicted: Values, **options: Any) -> dict[str, tuple[float, float]]:
    """Return the interval of each metric of `regression`; options are those of `bootstrap.resample`."""
    _same_length(gold, predicted)
    x, y = _numbers("gold", gold), _numbers("predicted", predicted)
    return bootstrap.resample(lambda weights: _regress(weights, x, y), len(x), **options)


def ratio(a: Floats, b: Floats) -> Floats:
    """Return a / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def macro_f1(true: Floats, predicted: Floats, gold: Floats) -> Floats:
    """Return the mean F1 over the labels that occur in the data, (R,), from totals (R, k) by label.

    The first totals are the data's own. A resample that lacks a label takes its F1 from there: to leave the label out
    would give 1.0 where a rare label is never found, and to count it as 0 would lower the mean where it always is.
    """
    f1 = ratio(2 * true, gold + predicted)
    f1 = np.where(gold > 0, f1, f1[:1])
    mean: Floats = f1.sum(axis=1) / max(1, np.count_nonzero(gold[0] + predicted[0]))
    return mean


def _classify(cells: Ints, counts: Floats, k: int) -> dict[str, Floats]:
    """Return the metrics of R tables, the first of which is the data's own.

    Cells (C, 2) are (gold, predicted) positions, counts (R, C) how often each occurs.
    """
    right = cells[:, 0] == cells[:, 1]
    gold, predicted = _by_label(cells[:, 0], counts, k), _by_label(cells[:, 1], counts, k)  # (R, k)
    true = _by_label(cells[right, 0], counts[:, right], k)
    n, hits = counts.sum(axis=1), true.sum(axis=1)
    # Gorodkin 2004, the K-category correlation; for two labels it is Matthews' own
    covariance = hits * n - (gold * predicted).sum(axis=1)
    spread = (n * n - (gold * gold).sum(axis=1)) * (n * n - (predicted * predicted).sum(axis=1))
    found = {
        "accuracy": ratio(hits, n),
        "macro_f1": macro_f1(true, predicted, gold),
        "matthews": ratio(covariance, np.sqrt(spread)),
    }
    if k == 2:
        found["f1"] = ratio(2 * true[:, 1], gold[:, 1] + predicted[:, 1])
        found["precision"] = ratio(true[:, 1], predicted[:, 1])
        found["recall"] = ratio(true[:, 1], gold[:, 1])
    return found


def _regress(weights: Floats, x: Floats, y: Floats) -> dict[str, Floats]:
    """Return the metrics of R resamples with weights (R, n); x is gold, y predicted."""
    if x.size == 0:
        return {name: np.zeros(1) for name in REGRESSION}
    with np.errstate(invalid="ignore", over="ignore"):  # what is not finite in a prediction shows in its scores
        return _regress_sums(weights, x, y)


def _regress_sums(weights: Floats, x: Floats, y: Floats) -> dict[str, Floats]:
    n = weights.sum(axis=1)
    error = x - y
    squared = weights @ (error * error)
    centred = x - x.mean()
    spread = _spread(weights @ (centred * centred), weights @ centred, n)
    constant = np.where(squared == 0, float(len(x) > 1), 0.0)
    return {
        "pearson": _correlation(weights, centred, y - y.mean(), n),
        "spearman": _correlation(weights, _ranks(weights, x), _ranks(weights, y), n),
        "mse": squared / n,
        "mae": weights @ np.abs(error) / n,
        "r2": np.where(spread > 0, 1 - ratio(squared, spread), constant),
    }


def _correlation(weights: Floats, x: Floats, y: Floats, n: Floats) -> Floats:
    """Return Pearson's r by resample; x and y are (n,) or (R, n). A constant has none: 0."""
    wx, wy = weights * x, weights * y
    sx, sy = wx.sum(axis=1), wy.sum(axis=1)
    vx, vy = _spread((wx * x).sum(axis=1), sx, n), _spread((wy * y).sum(axis=1), sy, n)
    return np.clip(ratio((wx * y).sum(axis=1) - sx * sy / n, np.sqrt(vx) * np.sqrt(vy)), -1.0, 1.0)


def _spread(squares: Floats, total: Floats, n: Floats) -> Floats:
    """Return Σ w (x - mean)², exactly zero where only rounding is left of it."""
    spread = squares - total * total / n
    return np.where(spread > 1e-13 * squares, spread, 0.0)


def _ranks(weights: Floats, values: Floats) -> Floats:
    """Return average ranks within each resample, (R, n), around their middle: sorted once, then only counted."""
    _, group = np.unique(values, return_inverse=True)
    sizes = _by_label(group, weights, int(group.max()) + 1)  # (R, distinct values)
    before = np.cumsum(sizes, axis=1) - sizes
    middle: Floats = before + (sizes - weights.sum(axis=1, keepdims=True)) / 2
    return middle[:, group]


def _by_label(position: Ints, counts: Floats, k: int) -> Floats:
    """Sum the columns of counts (R, C) by their position: (R, k)."""
    sums = np.zeros((counts.shape[0], k))
    if position.size:
        order = np.argsort(position, kind="stable")
        found, starts = np.unique(position[order], return_index=True)
        sums[:, found] = np.add.reduceat(counts[:, order], starts, axis=1)
    return sums


def _table(gold: Values, predicted: Values, k: int) -> tuple[Ints, Floats]:
    """Return the cells of the confusion table that are not empty, (C, 2), and their counts, (C,)."""
    pairs = np.stack([_places(gold, k), _places(predicted, k)], axis=1)
    cells, counts = np.unique(pairs.reshape(-1, 2), axis=0, return_counts=True)
    return cells, counts.astype(np.float64)


def _places(values: Values, k: int) -> Ints:
    found = np.asarray(values)
    if found.size == 0:
        return np.zeros(0, dtype=np.int64)
    if found.dtype.kind not in "iub" or found.min() < 0 or found.max() >= k:
        raise DataError(f"with {k} labels, answers are whole numbers from 0 to {k - 1}: positions in the labels.")
    return found.astype(np.int64)


def _numbers(name: str, values: Values) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1:
        raise DataError(f"the {name} values have shape {found.shape}, not one number a row.", hint="Flatten them.")
    return found


def _same_length(gold: Values, predicted: Values) -> None:
    if len(gold) != len(predicted):
        raise DataError(f"{len(gold)} gold values but {len(predicted)} predicted.", hint="Give one of each a row.")
