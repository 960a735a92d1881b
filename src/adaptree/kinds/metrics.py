"""What each kind of task is scored by, with confidence intervals; one formula serves a score and its bootstrap.

Each kind is reduced to sums that carry a leading axis of resamples: classify to how often each label is right, gold and
predicted, regress to how often each row was drawn. A score is the case of one resample that is the data itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptree.errors import DataError, UsageError, near

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Label = str | int
Values = Sequence[Any] | NDArray[Any]

METRICS: Mapping[str, tuple[str, ...]] = {
    "classify": ("accuracy", "macro_f1", "matthews", "f1", "precision", "recall"),
    "regress": ("pearson", "spearman", "mse", "mae", "r2"),
    "labels": ("f1", "macro_f1", "precision", "recall", "accuracy"),
    "numbers": ("pearson", "spearman", "mse", "mae", "r2"),
    "tag": ("f1", "precision", "recall", "accuracy"),
    "answer": ("f1", "exact_match"),
    "choose": ("accuracy",),
    "mlm": ("perplexity", "accuracy"),
}
"""By kind, the one that it is judged by first; `labels` and `numbers` are classify and regress with several targets."""
TWO_LABELS = frozenset({"f1", "precision", "recall"})
LOWER_IS_BETTER = frozenset({"mse", "mae", "perplexity", "loss"})
_BUDGET = 2_000_000  # numbers held at once in a bootstrap
_DRAWS = 50_000_000  # numbers drawn in all: past 50,000 rows fewer resamples do, since the interval is narrow


def main_metric(kind: str, labels: Sequence[Label] | None = None) -> str:
    """The metric that a kind is judged by unless another is asked for; the same for any number of labels."""
    return _of_kind(kind)[0]


def check_metric(kind: str, name: str, labels: Sequence[Label] | None = None) -> str:
    """The name itself when the kind has this metric; f1, precision and recall are those of two labels."""
    choices = _of_kind(kind)
    if name not in choices:
        raise UsageError(
            f"no metric '{name}' for {kind}; there are {', '.join(choices)}.",
            hint=near(name, choices) or f"--metric {choices[0]}",
        )
    if kind == "classify" and name in TWO_LABELS and labels is not None and len(labels) != 2:
        raise UsageError(f"'{name}' is for two labels and here are {len(labels)}.", hint="--metric macro_f1")
    return name


def better(metric: str, a: float, b: float) -> bool:
    """Whether a is strictly better than b; anything is better than NaN."""
    if np.isnan(a) or np.isnan(b):
        return bool(np.isnan(b) and not np.isnan(a))
    return a < b if metric in LOWER_IS_BETTER else a > b


def score(kind: str, gold: Values, predicted: Values, *, labels: Sequence[Label] | None = None) -> dict[str, float]:
    """Every metric of the kind. Empty input and undefined ratios are 0.0.

    classify: with `labels`, gold and predicted are positions in them, as a head answers; without, labels themselves.
    f1, precision and recall are there for two labels, and are the second's. Macro F1 is over the labels that occur.
    regress: numbers.
    """
    _of_one(kind)
    _same_length(gold, predicted)
    if kind == "classify":
        cells, counts, k = _table(gold, predicted, labels)
        rows = _classify(cells, counts[None, :], k)
    else:
        x, y = _numbers("gold", gold), _numbers("predicted", predicted)
        rows = _regress(np.ones((1, len(x))), x, y)
    return {name: float(values[0]) for name, values in rows.items()}


def intervals(
    kind: str,
    gold: Values,
    predicted: Values,
    *,
    labels: Sequence[Label] | None = None,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """The percentile bootstrap interval of every metric that `score` gives."""
    if not 0 < level < 1 or resamples < 1:
        raise UsageError(
            f"an interval needs a level between 0 and 1 and at least one resample, not {level} and {resamples}.",
            hint="level=0.95, resamples=1000",
        )
    if len(gold) == 0:
        return dict.fromkeys(score(kind, gold, predicted, labels=labels), (0.0, 0.0))
    _of_one(kind)
    _same_length(gold, predicted)
    rng = np.random.default_rng(seed)
    parts: list[dict[str, Floats]] = []
    if kind == "classify":
        cells, counts, k = _table(gold, predicted, labels)
        share = counts / counts.sum()
        for size in _chunks(resamples, len(counts) + 3 * k):
            # the cells of a resampled table are multinomial: no row need be drawn
            parts.append(_classify(cells, rng.multinomial(len(gold), share, size=size).astype(np.float64), k))
    else:
        x, y = _numbers("gold", gold), _numbers("predicted", predicted)
        n = len(x)
        for size in _chunks(max(min(resamples, 100), min(resamples, _DRAWS // n)), n):
            drawn = rng.integers(0, n, size=(size, n)) + n * np.arange(size)[:, None]
            weights = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
            parts.append(_regress(weights, x, y))
    tail = (1 - level) / 2
    found: dict[str, tuple[float, float]] = {}
    for name in parts[0]:
        low, high = np.quantile(np.concatenate([part[name] for part in parts]), [tail, 1 - tail])
        found[name] = (float(low), float(high))
    return found


def _classify(cells: Ints, counts: Floats, k: int) -> dict[str, Floats]:
    """Metrics of R tables at once; cells (C, 2) are (gold, predicted) positions, counts (R, C) how often each."""
    right = cells[:, 0] == cells[:, 1]
    gold, predicted = _by_label(cells[:, 0], counts, k), _by_label(cells[:, 1], counts, k)  # (R, k)
    true = _by_label(cells[right, 0], counts[:, right], k)
    n, hits = counts.sum(axis=1), true.sum(axis=1)
    occurs = gold + predicted > 0
    f1 = _ratio(2 * true, gold + predicted)
    # Gorodkin 2004, the K-category correlation; for two labels it is Matthews' own
    covariance = hits * n - (gold * predicted).sum(axis=1)
    spread = (n * n - (gold * gold).sum(axis=1)) * (n * n - (predicted * predicted).sum(axis=1))
    found = {
        "accuracy": _ratio(hits, n),
        "macro_f1": _ratio(f1.sum(axis=1), occurs.sum(axis=1).astype(np.float64)),
        "matthews": _ratio(covariance, np.sqrt(spread)),
    }
    if k == 2:
        found["f1"] = f1[:, 1]
        found["precision"] = _ratio(true[:, 1], predicted[:, 1])
        found["recall"] = _ratio(true[:, 1], gold[:, 1])
    return found


def _regress(weights: Floats, x: Floats, y: Floats) -> dict[str, Floats]:
    """Metrics of R resamples at once; weights (R, n) say how often each row was drawn, x is gold, y predicted."""
    if x.size == 0:
        return {name: np.zeros(1) for name in METRICS["regress"]}
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
        "r2": np.where(spread > 0, 1 - _ratio(squared, spread), constant),
    }


def _correlation(weights: Floats, x: Floats, y: Floats, n: Floats) -> Floats:
    """Pearson's r by resample; x and y are (n,) or (R, n). A constant has none: 0."""
    wx, wy = weights * x, weights * y
    sx, sy = wx.sum(axis=1), wy.sum(axis=1)
    vx, vy = _spread((wx * x).sum(axis=1), sx, n), _spread((wy * y).sum(axis=1), sy, n)
    return np.clip(_ratio((wx * y).sum(axis=1) - sx * sy / n, np.sqrt(vx) * np.sqrt(vy)), -1.0, 1.0)


def _spread(squares: Floats, total: Floats, n: Floats) -> Floats:
    """Σ w (x - mean)², exactly zero where only rounding is left of it."""
    spread = squares - total * total / n
    return np.where(spread > 1e-13 * squares, spread, 0.0)


def _ranks(weights: Floats, values: Floats) -> Floats:
    """Average ranks within each resample, (R, n), around their middle: sorted once, then only counted."""
    _, group = np.unique(values, return_inverse=True)
    drawn = _by_label(group, weights, int(group.max()) + 1)  # (R, distinct values)
    before = np.cumsum(drawn, axis=1) - drawn
    middle: Floats = before + (drawn - weights.sum(axis=1, keepdims=True)) / 2
    return middle[:, group]


def _by_label(position: Ints, counts: Floats, k: int) -> Floats:
    """Sum the columns of counts (R, C) by their position: (R, k)."""
    sums = np.zeros((counts.shape[0], k))
    if position.size:
        order = np.argsort(position, kind="stable")
        found, starts = np.unique(position[order], return_index=True)
        sums[:, found] = np.add.reduceat(counts[:, order], starts, axis=1)
    return sums


def _ratio(a: Floats, b: Floats) -> Floats:
    """a / b, and 0 where b is 0."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def _table(gold: Values, predicted: Values, labels: Sequence[Label] | None) -> tuple[Ints, Floats, int]:
    """The confusion table's cells that are not empty, (C, 2), their counts (C,), and the number of labels."""
    if labels is not None and len(labels):
        k = len(labels)
        pairs = np.stack([_places(gold, k), _places(predicted, k)], axis=1)
    else:
        names = sorted({*gold, *predicted}, key=lambda label: (isinstance(label, str), label))
        place = {name: position for position, name in enumerate(names)}
        k = len(names)
        pairs = np.array([(place[a], place[b]) for a, b in zip(gold, predicted, strict=True)], dtype=np.int64)
    cells, counts = np.unique(pairs.reshape(-1, 2), axis=0, return_counts=True)
    return cells, counts.astype(np.float64), k


def _places(values: Values, k: int) -> Ints:
    found = np.asarray(values)
    if found.size == 0:
        return np.zeros(0, dtype=np.int64)
    if found.dtype.kind not in "iub" or found.min() < 0 or found.max() >= k:
        raise DataError(f"with {k} labels, answers are whole numbers from 0 to {k - 1}: positions in the labels.",
                        hint="Leave out labels=… to score the labels themselves.")  # fmt: skip
    return found.astype(np.int64)


def _numbers(name: str, values: Values) -> Floats:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1:
        raise DataError(f"the {name} values have shape {found.shape}, not one number a row.", hint="Flatten them.")
    return found


def _chunks(resamples: int, width: int) -> Iterator[int]:
    size = max(1, _BUDGET // max(1, width))
    for start in range(0, resamples, size):
        yield min(size, resamples - start)


def _same_length(gold: Values, predicted: Values) -> None:
    if len(gold) != len(predicted):
        raise DataError(f"{len(gold)} gold values but {len(predicted)} predicted.", hint="Give one of each a row.")


def _of_one(kind: str) -> None:
    """The other kinds score themselves."""
    if kind not in ("classify", "regress"):
        raise UsageError(f"no score for kind '{kind}' here; there are classify and regress.", hint=near(kind, METRICS))


def _of_kind(kind: str) -> tuple[str, ...]:
    if kind not in METRICS:
        raise UsageError(f"no metrics for kind '{kind}'; there are {', '.join(METRICS)}.", hint=near(kind, METRICS))
    return METRICS[kind]
