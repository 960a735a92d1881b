"""Estimators: scikit-learn's own checks, its tools, and a pickle without the base in it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

from adaptree.errors import UsageError
from adaptree.sklearn import AdapterClassifier, AdapterRegressor
from tests.bases import FILLER, WORDS, tiny_base, words_csv

WORDS_ = [*FILLER, *" ".join(WORDS.values()).split()]


def spelled(estimator: Any, X: Any, *, reset: bool) -> list[str]:
    """Numbers as words: scikit-learn's checks know only matrices."""
    matrix = validate_data(estimator, X, reset=reset)
    steps = np.floor(3 * matrix).astype(np.int64) % len(WORDS_)
    return [" ".join(WORDS_[step] for step in row) for row in steps]


BY_STEPS = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
    "it learns in steps on batches: a row that is there twice is not one of weight 2",
)


class Spelling:
    """An estimator that reads numbers as words, so that every check can be asked of it."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        if y is None:
            return super().fit(X, y)  # type: ignore[misc]
        return super().fit(spelled(self, X, reset=True), y, sample_weight)  # type: ignore[misc]

    def _inputs(self, X: Any) -> Any:
        if isinstance(X, list) and all(isinstance(text, str) for text in X):
            return X
        check_is_fitted(self)
        return spelled(self, X, reset=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.input_tags.string, tags.input_tags.one_d_array = True, False, False
        for part in (tags.classifier_tags, tags.regressor_tags):
            if part is not None:
                part.poor_score = True  # nobody learns numbers from such words in an epoch
        return tags


class SpellingClassifier(Spelling, AdapterClassifier):  # type: ignore[misc]
    pass


class SpellingRegressor(Spelling, AdapterRegressor):  # type: ignore[misc]
    pass


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("sklearn") / "base"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], list[str]]:
    lines = words_csv(tmp_path_factory.mktemp("sklearndata") / "words.csv", 150).read_text().splitlines()[1:]
    rows = [line.rsplit(",", 1) for line in lines]
    return [text for text, _ in rows], [label for _, label in rows]


def classifier(base: str, **options: Any) -> AdapterClassifier:
    return AdapterClassifier(**{"method": "houlsby:8", "base": base, "epochs": 6, "lr": 1e-2, **options})


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AdapterClassifier, AdapterRegressor, SpellingClassifier, SpellingRegressor])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks_pass(kind: Any, base: str) -> None:
    asked = kind("houlsby:2", base=base, epochs=1)
    found = check_estimator(asked, on_fail=None, on_skip=None, expected_failed_checks=BY_STEPS)
    failed = {each["check_name"]: str(each["exception"]) for each in found if each["status"] == "failed"}
    assert failed == {}
    assert sum(each["status"] == "passed" for each in found) >= (30 if issubclass(kind, Spelling) else 1)


def test_it_learns_texts_and_answers_in_the_classes_it_was_given(base: str, data: Any) -> None:
    texts, labels = data
    fitted = classifier(base).fit(texts[:120], labels[:120])
    assert fitted.score(texts[120:], labels[120:]) > 0.7
    assert fitted.classes_.tolist() == ["beast", "fruit", "tool"]
    probabilities = fitted.predict_proba(texts[120:])
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    numbered = [{"beast": 10, "fruit": 2, "tool": -1}[label] for label in labels]
    predicted = classifier(base).fit(texts[:120], numbered[:120]).predict(texts[120:])
    assert set(predicted.tolist()) <= {10, 2, -1}
    assert np.mean(predicted == np.array(numbered[120:])) > 0.7


def test_frames_arrays_and_pairs_are_texts(base: str, data: Any) -> None:
    pandas = pytest.importorskip("pandas")
    texts, labels = data
    fitted = classifier(base, epochs=1).fit(pandas.Series(texts), pandas.Series(labels))
    expected = fitted.predict(texts).tolist()
    for form in (
        np.array(texts),
        np.array(texts, dtype=object),
        np.array(texts)[:, None],
        pandas.DataFrame({"t": texts}),
    ):
        assert fitted.predict(form).tolist() == expected
    pairs = [(a, b) for a, b in zip(texts, texts[1:] + texts[:1], strict=True)]
    twice = classifier(base, epochs=1).fit(pandas.DataFrame(pairs), labels)
    assert len(twice.predict(pairs)) == len(pairs)


def test_pipelines_cross_validation_and_grids_work(base: str, data: Any) -> None:
    texts, labels = data
    lower = FunctionTransformer(lambda X: [text.lower() for text in X])
    whole = Pipeline([("lower", lower), ("adapter", classifier(base, epochs=3))])
    assert cross_val_score(whole, texts, labels, cv=2).mean() > 0.5
    grid = GridSearchCV(classifier(base, epochs=2), {"lr": [1e-5, 1e-2], "method": ["houlsby:8"]}, cv=2)
    assert grid.fit(texts, labels).best_params_["lr"] == 1e-2


def test_the_same_random_state_gives_the_same_bits_and_a_clone_is_unfitted(base: str, data: Any) -> None:
    texts, labels = data
    first = classifier(base, epochs=1).fit(texts, labels)
    again = clone(first)
    with pytest.raises(NotFittedError):
        again.predict(texts)
    np.testing.assert_array_equal(again.fit(texts, labels).predict_proba(texts), first.predict_proba(texts))
    assert again.get_params() == first.get_params()


def test_a_pickle_holds_the_task_and_not_the_base(data: Any) -> None:
    texts, labels = data
    fitted = AdapterClassifier("houlsby:8", epochs=1, max_length=16).fit(texts[:40], labels[:40])
    kept = pickle.dumps(fitted)
    assert len(kept) < 1_500_000  # the base is 90 MB
    again = pickle.loads(kept)
    np.testing.assert_array_equal(again.predict_proba(texts[:5]), fitted.predict_proba(texts[:5]))


def test_numbers_are_regressed(base: str, data: Any) -> None:
    texts, _ = data
    targets = [sum(word in text.split() for word in ("lion", "wolf", "bear")) * 3.0 for text in texts]
    fitted = AdapterRegressor("houlsby:8", base=base, epochs=10, lr=1e-2).fit(texts[:120], targets[:120])
    assert fitted.score(texts[120:], targets[120:]) > 0.3
    assert fitted.predict(texts[:3]).shape == (3,)


def test_weights_of_samples_and_classes_reach_the_loss(base: str, data: Any) -> None:
    texts, _ = data
    labels = ["yes", "no"] * (len(texts) // 2)  # nothing in the texts tells them apart
    heavy = [9 if label == "yes" else 1 for label in labels]
    plain = classifier(base, epochs=1, batch_size=8)
    by_sample = clone(plain).fit(texts, labels, sample_weight=heavy)
    by_class = clone(plain).set_params(class_weight={"yes": 9, "no": 1}).fit(texts, labels)
    np.testing.assert_array_equal(by_sample.predict_proba(texts), by_class.predict_proba(texts))
    assert by_class.predict_proba(texts)[:, 1].mean() > 0.75
    assert plain.fit(texts, labels).predict_proba(texts)[:, 1].mean() < 0.65
    numbers = AdapterRegressor("houlsby:8", base=base, epochs=1, lr=1e-2, batch_size=8)
    fitted = numbers.fit(texts, [float(label == "yes") for label in labels], sample_weight=heavy)
    assert fitted.predict(texts).mean() > 0.65


def test_balanced_classes_count_the_same_however_rare(base: str, data: Any) -> None:
    texts, _ = data
    labels = ["rare" if i % 6 == 0 else "usual" for i in range(len(texts))]
    plain, balanced = (
        classifier(base, epochs=1, batch_size=8, class_weight=kind).fit(texts, labels) for kind in (None, "balanced")
    )
    assert balanced.predict_proba(texts)[:, 0].mean() > plain.predict_proba(texts)[:, 0].mean() + 0.1
    twice = clone(balanced).fit(texts, labels, sample_weight=np.full(len(texts), 2.0))
    np.testing.assert_array_equal(twice.predict_proba(texts), balanced.predict_proba(texts))


def test_a_sample_of_weight_zero_is_left_out(base: str, data: Any) -> None:
    texts, labels = data
    weights = [float(label != "tool") for label in labels]
    kept = [i for i, weight in enumerate(weights) if weight]
    fitted = classifier(base, epochs=1).fit(texts, labels, sample_weight=weights)
    assert fitted.classes_.tolist() == ["beast", "fruit"]
    again = classifier(base, epochs=1).fit([texts[i] for i in kept], [labels[i] for i in kept])
    np.testing.assert_array_equal(fitted.predict_proba(texts), again.predict_proba(texts))


@pytest.mark.parametrize(
    ("options", "weights", "message"),
    [
        ({}, [1.0], "inconsistent|shape"),
        ({}, [-1.0] * 150, "[Nn]egative"),
        ({}, [float("nan")] * 150, "NaN"),
        ({}, [0.0] * 150, "zero|0 samples"),
        ({"class_weight": "even"}, None, "balanced"),
    ],
)
def test_bad_weights_are_said(base: str, data: Any, options: Any, weights: Any, message: str) -> None:
    texts, labels = data
    with pytest.raises(ValueError, match=message):
        classifier(base, **options).fit(texts, labels, sample_weight=weights)


def test_bad_input_is_said(base: str, data: Any, tmp_path: Path) -> None:
    texts, labels = data
    with pytest.raises(ValueError, match="texts or pairs"):
        classifier(base).fit([1.0, 2.0], ["a", "b"])
    with pytest.raises(UsageError, match="one text"):
        classifier(base).fit(texts, labels).predict("one text")
    with pytest.raises(ValueError, match="150 texts and 3 targets"):
        classifier(base).fit(texts, labels[:3])
    with pytest.raises(ValueError, match="one class"):
        classifier(base).fit(texts, ["a"] * len(texts))
    with pytest.raises(ValueError, match="y is None"):
        classifier(base).fit(texts, None)
