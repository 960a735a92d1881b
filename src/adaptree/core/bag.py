"""Bag of words: TF-IDF over runs of words, and a linear model on it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Text = str | Sequence[str]
"""One text, or a pair of them."""
CHARACTERS = 2_000  # about what a base reads of a text
FEATURES = 200_000
COEFFICIENTS = 400_000  # the solver holds some 25 times this many numbers


@dataclass(frozen=True)
class Bag:
    """The words that count, their weights, and a linear map from them to `classes` scores (or to one number)."""

    words: list[str]
    idf: NDArray[np.float64]
    coefficients: NDArray[np.float64]  # (classes, words)
    intercept: NDArray[np.float64]
    ngrams: int

    def scores(self, texts: Sequence[Text]) -> NDArray[np.float64]:
        """Return the scores of texts, (texts, classes)."""
        vectoriser = _vectoriser(self.ngrams, vocabulary=self.words)
        vectoriser.idf_ = self.idf
        return np.asarray(vectoriser.transform(map(_joined, texts)) @ self.coefficients.T + self.intercept)


def fit(texts: Sequence[Text], targets: Sequence[Any], classes: int, *, c: float = 10.0, ngrams: int = 2) -> Bag | None:
    """Fit logistic regression on class numbers, or ridge with 0 classes; return None without two labels or any word."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if classes and len(set(targets)) < 2:
        return None
    most = min(FEATURES, max(1_000, COEFFICIENTS // max(1, classes)))
    vectoriser = _vectoriser(ngrams, min_df=2 if len(texts) >= 5_000 else 1, max_features=most)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            seen = vectoriser.fit_transform(map(_joined, texts))
        except ValueError:  # not one word in all the texts
            return None
        if classes:
            linear = LogisticRegression(C=c, max_iter=300).fit(seen, np.asarray(targets))
        else:
            linear = Ridge(alpha=10.0 / c).fit(seen, np.asarray(targets, dtype=np.float64))
    words = vectoriser.get_feature_names_out().tolist()
    coefficients, intercept = np.atleast_2d(linear.coef_), np.atleast_1d(linear.intercept_)
    if classes:
        if len(linear.classes_) == 2:  # one score for the second class; the first one's is zero
            coefficients = np.concatenate([np.zeros_like(coefficients), coefficients])
            intercept = np.concatenate([np.zeros_like(intercept), intercept])
        whole, bias = np.zeros((classes, len(words))), np.full(classes, -1e4)  # a class that was never seen never wins
        whole[linear.classes_], bias[linear.classes_] = coefficients, intercept
        coefficients, intercept = whole, bias
    return Bag(words, vectoriser.idf_, coefficients, intercept, ngrams)


def _vectoriser(ngrams: int, **options: Any) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(ngram_range=(1, ngrams), sublinear_tf=True, dtype=np.float64, **options)


def _joined(text: Text) -> str:
    if isinstance(text, str):
        return text[:CHARACTERS]
    return " ||| ".join(part[:CHARACTERS] for part in text)
