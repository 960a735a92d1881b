"""Two cheap baselines, so that a user sees what the model adds: the majority class, and TF-IDF with a linear model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from adaptree.core import bag
from adaptree.core.bag import Text
from adaptree.errors import DataError
from adaptree.kinds import metrics

MOST = 20_000  # training rows


def baselines(
    kind: str,
    train_texts: Sequence[Text],
    train_targets: Sequence[Any],
    test_texts: Sequence[Text],
    test_targets: Sequence[Any],
    labels: Sequence[str | int] = (),
) -> dict[str, dict[str, float]]:
    """{'majority': …, 'tfidf': …} scored on the test rows; targets are positions in `labels`, or numbers (regress)."""
    metrics.main_metric(kind)
    if not len(train_texts):
        raise DataError("no rows to fit the baselines on.", hint="Give some training rows.")
    texts, targets = _sample(train_texts, train_targets)
    classify = kind == "classify"
    usual: int | float
    if classify:
        usual = int(np.bincount(np.asarray(train_targets), minlength=len(labels)).argmax())  # the first of equals
    else:
        usual = float(np.mean(np.asarray(train_targets, dtype=np.float64)))
    found = bag.fit(texts, targets, len(labels) if classify else 0)
    guessed: list[int] | list[float] = []
    for start in range(0, len(test_texts), MOST):
        some = test_texts[start : start + MOST]
        scores = None if found is None else found.scores(some)
        if scores is None:
            guessed += [usual] * len(some)
        else:
            guessed += (scores.argmax(1) if classify else scores[:, 0]).tolist()
    return {
        "majority": metrics.score(kind, test_targets, [usual] * len(test_texts), labels=labels),
        "tfidf": metrics.score(kind, test_targets, guessed, labels=labels),
    }


def _sample(texts: Sequence[Text], targets: Sequence[Any]) -> tuple[Sequence[Text], Sequence[Any]]:
    """All rows, or a fixed sample of them that keeps their order."""
    if len(texts) <= MOST:
        return texts, targets
    rows = sorted(random.Random(0).sample(range(len(texts)), MOST))
    return [texts[row] for row in rows], [targets[row] for row in rows]
