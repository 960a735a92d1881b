from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from adaptree.core import bag
from adaptree.errors import DataError
from adaptree.kinds.classify import Classify
from adaptree.kinds.regress import Regress
from adaptree.training import baselines as module
from adaptree.training.baselines import baselines

CLASSIFY, REGRESS = Classify(("bad", "good")), Regress(0.0, 1.0)
GOOD, BAD = ["great", "lovely", "superb"], ["awful", "broken", "sad"]


def reviews(n: int, seed: int = 0) -> tuple[list[str], list[int]]:
    rng = random.Random(seed)
    targets = [int(rng.random() < 0.6) for _ in range(n)]
    return [f"the {rng.choice(GOOD if t else BAD)} thing {rng.randrange(99)}" for t in targets], targets


def test_majority_is_the_share_of_the_commonest_label_and_tfidf_learns_words() -> None:
    train, test = reviews(200), reviews(100, seed=1)
    found = baselines(CLASSIFY, *train, *test)
    assert found["majority"]["accuracy"] == pytest.approx(sum(test[1]) / 100)
    assert found["majority"]["matthews"] == 0.0
    assert found["tfidf"]["accuracy"] == 1.0
    assert found["tfidf"].keys() == found["majority"].keys() >= {"accuracy", "f1"}


def test_regress_has_the_mean_and_a_ridge() -> None:
    texts, targets = reviews(200)
    numbers = np.array(targets) * 2.0 + 1
    found = baselines(REGRESS, texts, numbers, texts, numbers)
    assert found["majority"]["mse"] == pytest.approx(numbers.var())
    assert found["majority"]["pearson"] == 0.0
    assert found["tfidf"]["pearson"] > 0.95


def test_a_pair_is_read_on_both_sides() -> None:
    texts, targets = reviews(100)
    first = baselines(CLASSIFY, [(t, "x") for t in texts], targets, [(t, "x") for t in texts], targets)
    second = baselines(CLASSIFY, [("x", t) for t in texts], targets, [("x", t) for t in texts], targets)
    assert first["tfidf"]["accuracy"] == second["tfidf"]["accuracy"] == 1.0


def test_the_same_rows_give_the_same_numbers() -> None:
    train, test = reviews(300), reviews(50, seed=2)
    assert baselines(CLASSIFY, *train, *test) == baselines(CLASSIFY, *train, *test)


def test_a_large_file_is_sampled_once_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 50)
    texts, targets = reviews(500)
    seen: list[int] = []
    fit = bag.fit
    monkeypatch.setattr(bag, "fit", lambda t, y, k: (seen.append(len(t)), fit(t, y, k))[1])
    first = baselines(CLASSIFY, texts, targets, texts, targets)
    assert seen == [50]
    assert first == baselines(CLASSIFY, texts, targets, texts, targets)
    assert first["majority"]["accuracy"] == pytest.approx(sum(targets) / 500)
    assert first["tfidf"]["accuracy"] > 0.9  # 500 test rows, in ten pieces


@pytest.mark.parametrize(
    ("texts", "targets"),
    [(["a", "!", "", "?"], [0, 1, 1, 1]), (["one word", "two words", "three", "four"], [1, 1, 1, 1])],
    ids=["no words", "one label"],
)
def test_with_nothing_to_tell_apart_tfidf_is_the_majority(texts: list[str], targets: list[int]) -> None:
    found = baselines(CLASSIFY, texts, targets, texts, targets)
    assert found["tfidf"] == found["majority"]
    assert baselines(REGRESS, ["", ""], [1.0, 2.0], ["x"], [1.0])["tfidf"]["mae"] == 0.5


def test_no_test_rows_score_zero_and_no_training_rows_are_refused() -> None:
    assert baselines(CLASSIFY, *reviews(9), [], [])["tfidf"]["accuracy"] == 0.0
    with pytest.raises(DataError, match="no rows"):
        baselines(CLASSIFY, [], [], ["x"], [0])


def test_no_warning_leaks_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = LogisticRegression.fit

    def noisy(self: LogisticRegression, *args: object) -> LogisticRegression:
        warnings.warn("did not converge", ConvergenceWarning, stacklevel=1)
        return fit(self, *args)

    monkeypatch.setattr(LogisticRegression, "fit", noisy)
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        baselines(CLASSIFY, *reviews(20), *reviews(20))
    assert leaked == []
