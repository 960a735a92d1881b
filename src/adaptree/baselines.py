"""Two cheap baselines, so that a user sees what the model adds: the majority class, and TF-IDF with a linear model."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adaptree import metrics
from adaptree.errors import DataError

Text = str | Sequence[str]
"""One text, or a pair of them."""
MOST = 20_000  # training rows
CHARACTERS = 2_000  # about what a base reads of a text
FEATURES = 200_000
COEFFICIENTS = 400_000  # the solver holds some 25 times this many numbers


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
    predict = _fit(classify, texts, targets, len(labels)) or (lambda rows: [usual] * len(rows))
    guessed: list[int] | list[float] = []
    for start in range(0, len(test_texts), MOST):
        guessed += predict(test_texts[start : start + MOST])
    return {
        "majority": metrics.score(kind, test_targets, [usual] * len(test_texts), labels=labels),
        "tfidf": metrics.score(kind, test_targets, guessed, labels=labels),
    }


def _fit(
    classify: bool, texts: Sequence[Text], targets: Sequence[Any], classes: int
) -> Callable[[Sequence[Text]], list[Any]] | None:
    """TF-IDF over words and pairs of words with a linear model; None when there is nothing to tell apart."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    if classify and len(set(targets)) < 2:
        return None
    vectors = TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2 if len(texts) >= 5_000 else 1,
        max_features=min(FEATURES, max(1_000, COEFFICIENTS // max(1, classes))),
        dtype=np.float64,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            seen = vectors.fit_transform(map(_joined, texts))
        except ValueError:  # not one word in all the texts
            return None
        if classify:
            linear = LogisticRegression(C=10.0, max_iter=300).fit(seen, np.asarray(targets))
        else:
            linear = Ridge(alpha=1.0).fit(seen, np.asarray(targets, dtype=np.float64))
    return lambda rows: linear.predict(vectors.transform(map(_joined, rows))).tolist()


def _joined(text: Text) -> str:
    if isinstance(text, str):
        return text[:CHARACTERS]
    return " ||| ".join(part[:CHARACTERS] for part in text)


def _sample(texts: Sequence[Text], targets: Sequence[Any]) -> tuple[Sequence[Text], Sequence[Any]]:
    """All rows, or a fixed sample of them that keeps their order."""
    if len(texts) <= MOST:
        return texts, targets
    rows = sorted(random.Random(0).sample(range(len(texts)), MOST))
    return [texts[row] for row in rows], [targets[row] for row in rows]
