"""Exact match and F1 of answers by the official rules of SQuAD 2.0.

Where every question has an answer they are those of 1.1, but for targets that are only articles and punctuation: 2.0
does not count them, and three questions of 1.1's dev set have a dot among their targets.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptree.errors import DataError
from adaptree.kinds import bootstrap

Floats = NDArray[np.float64]
Target = Mapping[str, Any]
"""{"answers": [{"text": …}, …]}, with no answers where the question has none."""

METRICS = ("exact_match", "f1")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalise(text: str) -> str:
    """Return the text as it is compared: lower case, no ASCII punctuation, no articles, single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(right: str, answer: str) -> float:
    return float(normalise(right) == normalise(answer))


def f1(right: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall over words; without words, whether both have none."""
    ours, theirs = normalise(answer).split(), normalise(right).split()
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def best(target: Target, answer: str) -> tuple[float, float]:
    """Return exact match and F1 with the nearest right answer; one of articles and punctuation only is none."""
    rights = [right for found in target["answers"] if normalise(right := found["text"])] or [""]
    return max(exact_match(right, answer) for right in rights), max(f1(right, answer) for right in rights)


def statistics(targets: Sequence[Target], answers: Sequence[str]) -> Floats:
    """Return (questions, 2): exact match and F1 of each; "" is the answer that there is none."""
    if len(targets) != len(answers):
        raise DataError(f"{len(targets)} questions but {len(answers)} answers.", hint="Give one answer a question.")
    pairs = [best(target, answer) for target, answer in zip(targets, answers, strict=True)]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def score(targets: Sequence[Target], answers: Sequence[str]) -> dict[str, float]:
    """Return the mean of each, from 0 to 1; of no questions 0."""
    sums = statistics(targets, answers).sum(axis=0)
    return {name: float(total) / max(len(targets), 1) for name, total in zip(METRICS, sums, strict=True)}


def intervals(targets: Sequence[Target], answers: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each, by the bootstrap over questions."""
    n = max(len(targets), 1)
    return bootstrap.intervals(
        statistics(targets, answers), lambda sums: {name: sums[:, i] / n for i, name in enumerate(METRICS)}
    )
