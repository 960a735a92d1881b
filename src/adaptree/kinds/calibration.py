"""One temperature for a task's probabilities, chosen on validation so that it is right as often as it is sure.

The outputs are divided by the temperature T before they become probabilities (Guo et al. 2017, §4.2), which changes no
answer: the order of the outputs stays. T minimises the negative log-likelihood of the validation rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.errors import TaskCorrupt

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
LEAST_ROWS = 100
"""Validation rows below which no temperature is chosen: it would be worse than none about as often as better."""
LEAST_WRONG = 5
"""Wrong answers among them: without any, the likelihood only asks to be ever surer."""
MOST_ROWS = 10_000
"""Rows that it is chosen on at most."""
WIDEST = 10.0
"""The temperature is between 1 / WIDEST and WIDEST."""
STEPS = 32


def of_classes(logits: Array, gold: Array) -> float:
    """Return the temperature for softmax: logits (n, classes), -inf for a class that a row lacks; gold (n,)."""
    z, gold = np.asarray(logits[:MOST_ROWS], dtype=np.float64), np.asarray(gold[:MOST_ROWS], dtype=np.int64)
    if np.isnan(z).any() or not _enough(z.argmax(-1) != gold):
        return 1.0
    z = z - z.max(-1, keepdims=True)
    there = np.isfinite(z)
    held = np.where(there, z, 0.0)
    right = held[np.arange(len(z)), gold]

    def slope(beta: float) -> float:
        p = np.exp(beta * held) * there
        p /= p.sum(-1, keepdims=True)
        return float(((p * held).sum(-1) - right).mean())

    return _minimum(slope)


def of_flags(logits: Array, gold: Array) -> float:
    """Return the temperature for a sigmoid by itself: logits and gold are (n, labels), gold says yes or no."""
    z, gold = np.asarray(logits[:MOST_ROWS], dtype=np.float64), np.asarray(gold[:MOST_ROWS], dtype=bool)
    if not np.isfinite(z).all() or not _enough(((z > 0) != gold).any(-1)):
        return 1.0

    def slope(beta: float) -> float:
        return float(((_sigmoid(beta * z) - gold) * z).mean())

    return _minimum(slope)


def moved(probability: float, temperature: float) -> float:
    """Return a probability at temperature 1 as it is at another temperature."""
    if temperature == 1.0:
        return probability
    return float(_sigmoid(np.float64(math.log(probability / (1 - probability)) / temperature)))


def scale(record: Record, outputs: int) -> tuple[list[float], list[float]]:
    """Return what a task's outputs are multiplied with before they become probabilities, as `Kind.scale` does."""
    return [0.0] * outputs, [1 / record.extra.get("temperature", 1.0)] * outputs


def check(temperature: Any) -> None:
    """Raise TaskCorrupt for a temperature that is no number above zero."""
    number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not number or not 0 < temperature < math.inf:
        raise TaskCorrupt(f"the task's temperature is {temperature!r:.40}, not a number above 0.", hint="Train again.")


def _enough(wrong: Array) -> bool:
    return len(wrong) >= LEAST_ROWS and int(wrong.sum()) >= LEAST_WRONG


def _minimum(slope: Callable[[float], float]) -> float:
    """Return 1 / β where the slope of the likelihood, which rises with β because it is convex, is zero."""
    low, high = -math.log(WIDEST), math.log(WIDEST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if slope(math.exp(middle)) < 0:
            low = middle
        else:
            high = middle
    return float(f"{math.exp(-(low + high) / 2):.4g}")


def _sigmoid(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * x))
