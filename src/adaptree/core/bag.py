"""Bag of words: TF-IDF over runs of words, and a linear model on it."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Text = str | Sequence[str]
"""One text, or a pair of them."""
CHARACTERS = 2_000  # about what a base reads of a text
BETWEEN = " ||| "
"""What stands between the two texts of a pair."""
WORD = re.compile(r"(?u)\b\w\w+\b")
"""What scikit-learn takes for a word."""
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
        return np.asarray(self._vectors(texts) @ self.coefficients.T + self.intercept)

    def contributions(self, text: Text) -> list[tuple[int, int, int, NDArray[np.float64]]]:
        """Return what each word adds to the scores: the number of its text, characters from and to, and (classes,).

        They sum to the scores without the intercept. A run of several words is shared out among them evenly.
        """
        parts = [text] if isinstance(text, str) else list(text)
        whole = _joined(text)
        words = _words(whole)
        (row,) = self._vectors([text])
        weights = dict(zip(row.indices.tolist(), row.data.tolist(), strict=True))
        place = {run: i for i, run in enumerate(self.words)}
        runs = [
            (place[run], range(i, i + n))
            for n in range(1, self.ngrams + 1)
            for i in range(len(words) - n + 1)
            if (run := " ".join(word for word, _, _ in words[i : i + n])) in place
        ]
        often = Counter(number for number, _ in runs)
        found = np.zeros((len(words), len(self.intercept)))
        for number, at in runs:
            found[list(at)] += self.coefficients[:, number] * weights[number] / often[number] / len(at)
        begins = np.cumsum([0] + [len(part[:CHARACTERS]) + len(BETWEEN) for part in parts])
        numbers = (np.searchsorted(begins, [start for _, start, _ in words], side="right") - 1).tolist()
        return [
            (number, start - int(begins[number]), end - int(begins[number]), each)
            for number, (_, start, end), each in zip(numbers, words, found, strict=True)
        ]

    def _vectors(self, texts: Sequence[Text]) -> Any:
        """Return the TF-IDF weights of texts, (texts, words), as a sparse matrix."""
        vectoriser = _vectoriser(self.ngrams, vocabulary=self.words)
        vectoriser.idf_ = self.idf
        return vectoriser.transform(map(_joined, texts))


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
    return BETWEEN.join(part[:CHARACTERS] for part in text)


def _words(text: str) -> list[tuple[str, int, int]]:
    """Return the words that the vectoriser sees in a text, in lower case, and the characters of each."""
    lowered = text.lower()
    at = range(len(text) + 1)
    if len(lowered) != len(text):  # some letters are longer in lower case
        ends = np.cumsum([0] + [len(letter.lower()) for letter in text])
        at = np.searchsorted(ends, np.arange(len(lowered) + 1), side="left").tolist()
    return [(match[0], at[match.start()], at[match.end()]) for match in WORD.finditer(lowered)]
