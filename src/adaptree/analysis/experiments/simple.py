"""Simple models without a Transformer that is trained, as the paper's own baseline: a search over scikit-learn's.

TF-IDF of words or letters, or the base's frozen vectors, each with a linear model or trees. They are spelled
'simple:words-logistic' and the like.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptree.models.base import Base

PREFIX = "simple:"
FEATURES = ("words", "letters", "vectors")
MODELS = ("logistic", "svm", "bayes", "trees")
NAMES = tuple(
    f"{PREFIX}{features}-{model}"
    for features in FEATURES
    for model in MODELS
    if (features, model) != ("vectors", "bayes")  # naive Bayes counts, and vectors are no counts
)


def is_simple(method: str) -> bool:
    """Return whether a method's spelling is that of a simple model."""
    return method.startswith(PREFIX)


def train(method: str, files: Mapping[str, Path], base: Base, *, tested: bool, max_length: int) -> dict[str, Any]:
    """Fit a simple model on the training rows; return its scores on validation, and on the test rows if asked for."""
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    began = time.process_time()
    features, model = method.removeprefix(PREFIX).split("-")
    wanted = ["train", "validation", *(["test"] if tested else [])]
    rows = {part: [json.loads(line) for line in files[part].read_text().splitlines()] for part in wanted}
    labels = {part: [str(row["label"]) for row in some] for part, some in rows.items()}
    texts = {part: [_text(row) for row in some] for part, some in rows.items()}
    read = _features(features, texts, base, max_length)
    fitted = _model(model).fit(read["train"], labels["train"])
    scores = {}
    for part in wanted[1:]:
        predicted = fitted.predict(read[part])
        scores[part] = {
            "accuracy": float(accuracy_score(labels[part], predicted)),
            "macro_f1": float(f1_score(labels[part], predicted, average="macro")),
            "matthews": float(matthews_corrcoef(labels[part], predicted)),
        }
    return {**scores, "trained": 0, "base": 0, "cpu_seconds": round(time.process_time() - began, 2)}


def _text(row: Mapping[str, Any]) -> str:
    return str(row["text"]) if "text" in row else f"{row['text_a']} {row['text_b']}"


def _features(features: str, texts: Mapping[str, list[str]], base: Base, max_length: int) -> dict[str, Any]:
    """Return the matrix of features of each part."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    from adaptree.models.forward import vectors

    if features == "vectors":
        return {
            part: vectors(base, base.encoder.encode(some, max_length), base.pooling).numpy()
            for part, some in texts.items()
        }
    options: dict[str, Any] = (
        {"ngram_range": (1, 2)} if features == "words" else {"analyzer": "char_wb", "ngram_range": (2, 5)}
    )
    weigh = TfidfVectorizer(sublinear_tf=True, min_df=2, max_features=50_000, **options).fit(texts["train"])
    return {part: weigh.transform(some) for part, some in texts.items()}


def _model(name: str) -> Any:
    """Return a model of scikit-learn; its own strength is cross-validated where it has one."""
    import numpy as np
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.naive_bayes import ComplementNB
    from sklearn.svm import LinearSVC

    if name == "logistic":  # one label against the others: on thousands of features several times as fast
        one = OneVsRestClassifier(LogisticRegression(solver="liblinear"))
        return GridSearchCV(one, {"estimator__C": np.logspace(-1, 2, 4)}, cv=3)
    if name == "svm":
        return GridSearchCV(LinearSVC(), {"C": np.logspace(-2, 1, 4)}, cv=3)
    if name == "bayes":
        return GridSearchCV(ComplementNB(), {"alpha": [0.03, 0.1, 0.3, 1.0]}, cv=3)
    return ExtraTreesClassifier(300, min_samples_leaf=2, random_state=0)
