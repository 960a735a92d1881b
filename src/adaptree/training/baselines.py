"""Two cheap baselines, so that a user sees what the model adds: the majority class, and TF-IDF with a linear model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from adaptree.core import bag
from adaptree.core.bag import Text
from adaptree.errors import DataError
from adaptree.kinds import Kind

MOST = 20_000
"""Training rows that the baselines are fitted on at most."""


def baselines(
    kind: Kind,
    train_texts: Sequence[Text],
    train_targets: Sequence[Any],
    test_texts: Sequence[Text],
    test_targets: Sequence[Any],
) -> dict[str, dict[str, float]]:
    """Return {'majority': …, 'tfidf': …}: a kind's metrics on the test rows; targets are one label or number each."""
    if not len(train_texts):
        raise DataError("no rows to fit the baselines on.", hint="Give some training rows.")
    texts, targets = _sample(train_texts, np.asarray(train_targets).tolist())
    classes = kind.classes
    usual: int | float
    if classes:
        usual = int(np.bincount(np.asarray(train_targets), minlength=classes).argmax())  # the first of equals
    else:
        usual = float(np.mean(np.asarray(train_targets, dtype=np.float64)))
    found = bag.fit(texts, targets, classes)
    guessed: list[int] | list[float] = []
    for start in range(0, len(test_texts), MOST):
        some = test_texts[start : start + MOST]
        scores = None if found is None else found.scores(some)
        if scores is None:
            guessed += [usual] * len(some)
        else:
            guessed += (scores.argmax(1) if classes else scores[:, 0]).tolist()
    return {
        "majority": kind.score(test_targets, [usual] * len(test_texts)),
        "tfidf": kind.score(test_targets, guessed),
    }


def _sample(texts: Sequence[Text], targets: Sequence[Any]) -> tuple[Sequence[Text], Sequence[Any]]:
    """Return all rows, or a fixed sample of them, in their order."""
    if len(texts) <= MOST:
        return texts, targets
    rows = sorted(random.Random(0).sample(range(len(texts)), MOST))
    return [texts[row] for row in rows], [targets[row] for row in rows]
