from __future__ import annotations

import math
import time
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from adaptree import kinds
from adaptree.errors import DataError, UsageError
from adaptree.kinds import metrics


def classified(gold: list[int], predicted: list[int]) -> dict[str, float]:
    """scikit-learn's word on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "accuracy": sk.accuracy_score(gold, predicted),
            "macro_f1": sk.f1_score(gold, predicted, average="macro", zero_division=0),
            "matthews": sk.matthews_corrcoef(gold, predicted),
        }


def score(kind: str, gold: Any, predicted: Any, **options: Any) -> dict[str, float]:
    found = metrics.classification if kind == "classify" else metrics.regression
    return found(gold, predicted, **options)


def intervals(kind: str, gold: Any, predicted: Any, **options: Any) -> dict[str, tuple[float, float]]:
    found = metrics.classification_intervals if kind == "classify" else metrics.regression_intervals
    return found(gold, predicted, **options)


rows = st.integers(1, 5).flatmap(
    lambda k: st.tuples(st.just(k), st.lists(st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)), min_size=1))
)


@settings(deadline=None)
@given(rows)
def test_classify_agrees_with_scikit_learn(case: tuple[int, list[tuple[int, int]]]) -> None:
    k, pairs = case
    gold, predicted = [a for a, _ in pairs], [b for _, b in pairs]
    found = metrics.classification(gold, predicted, labels=k)
    for name, value in classified(gold, predicted).items():
        assert found[name] == pytest.approx(value, abs=1e-12), name
    assert ("f1" in found) == (k == 2)
    if k == 2:
        for name, theirs in (("f1", sk.f1_score), ("precision", sk.precision_score), ("recall", sk.recall_score)):
            assert found[name] == pytest.approx(theirs(gold, predicted, pos_label=1, zero_division=0), abs=1e-12)


def test_the_second_label_is_the_positive_one() -> None:
    found = metrics.classification([0, 0, 1, 1], [0, 0, 0, 1], labels=2)
    assert (found["precision"], found["recall"]) == (1.0, 0.5)


values = st.integers(-3, 3).map(float) | st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 3))


@settings(deadline=None)
@given(st.lists(st.tuples(values, values), min_size=2, max_size=40))
def test_regress_agrees_with_scipy_and_scikit_learn(pairs: list[tuple[float, float]]) -> None:
    gold, predicted = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs])
    found = metrics.regression(gold, predicted)
    constant = np.ptp(gold) == 0 or np.ptp(predicted) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pearson = 0.0 if constant else stats.pearsonr(gold, predicted).statistic
        spearman = 0.0 if constant else stats.spearmanr(gold, predicted).statistic
    assert found["pearson"] == pytest.approx(pearson, abs=1e-9)
    assert found["spearman"] == pytest.approx(spearman, abs=1e-9)
    assert found["mse"] == pytest.approx(sk.mean_squared_error(gold, predicted))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(gold, predicted))
    if np.ptp(gold) > 0:  # of a constant, scikit-learn's may be what rounding left
        assert found["r2"] == pytest.approx(sk.r2_score(gold, predicted), rel=1e-6)
    else:
        assert found["r2"] == float(np.array_equal(gold, predicted))


@pytest.mark.parametrize("constant", [0.1, 1 / 3, 1e9, -7.0])
def test_a_constant_has_no_correlation(constant: float) -> None:
    found = metrics.regression([1.0, 2.0, 4.0], [constant] * 3)
    assert found["pearson"] == found["spearman"] == 0.0
    assert metrics.regression([constant] * 3, [1.0, 2.0, 4.0])["pearson"] == 0.0
    assert metrics.regression([constant] * 3, [constant] * 3)["r2"] == 1.0


@pytest.mark.parametrize(("kind", "options"), [("classify", {"labels": 2}), ("regress", {})])
def test_no_rows_and_one_row_are_defined(kind: str, options: dict[str, Any]) -> None:
    assert set(score(kind, [], [], **options).values()) == {0.0}
    assert set(intervals(kind, [], [], **options).values()) == {(0.0, 0.0)}
    one = score(kind, [1], [1], **options)
    assert all(math.isfinite(value) for value in one.values())
    assert intervals(kind, [1], [1], **options).keys() == one.keys()


def test_a_prediction_that_is_not_a_number_shows_and_is_never_better() -> None:
    found = metrics.regression([1.0, 2.0], [1.0, math.nan])
    assert math.isnan(found["mse"])
    assert metrics.better("mse", 3.0, math.nan)
    assert not metrics.better("mse", math.nan, 3.0)
    assert not metrics.better("mse", math.nan, math.nan)
    assert metrics.regression([1.0, 2.0], [1.0, math.inf])["mse"] == math.inf


def test_intervals_are_those_of_resampled_rows() -> None:
    """Against the plain bootstrap, row by row, with other random numbers: ends agree within their own noise."""
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 3, 400)
    predicted = np.where(rng.random(400) < 0.7, gold, rng.integers(0, 3, 400))
    x = rng.normal(size=300).round(1)
    y = x + rng.normal(size=300).round(1)
    for kind, a, b, options in (("classify", gold, predicted, {"labels": 3}), ("regress", x, y, {})):
        drawn: dict[str, list[float]] = {}
        for _ in range(600):
            picked = rng.integers(0, len(a), len(a))
            for name, value in score(kind, a[picked], b[picked], **options).items():
                drawn.setdefault(name, []).append(value)
        found = intervals(kind, a, b, resamples=4000, **options)
        for name, seen in drawn.items():
            low, high = np.quantile(seen, [0.025, 0.975])
            assert found[name] == pytest.approx((low, high), abs=0.15 * (high - low)), name


def test_an_interval_of_the_accuracy_is_near_the_binomial_one() -> None:
    gold = [1] * 1000
    predicted = [1] * 900 + [0] * 100
    low, high = metrics.classification_intervals(gold, predicted, labels=2, resamples=5000)["accuracy"]
    half = 1.96 * math.sqrt(0.9 * 0.1 / 1000)
    assert (low, high) == pytest.approx((0.9 - half, 0.9 + half), abs=0.003)


@pytest.mark.parametrize("kind", ["classify", "regress"])
def test_intervals_repeat_hold_the_score_and_widen_with_the_level(kind: str) -> None:
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 4, 200)
    predicted = np.where(rng.random(200) < 0.8, gold, 0)
    options = {"labels": 4} if kind == "classify" else {}
    first = intervals(kind, gold, predicted, seed=5, **options)
    assert first == intervals(kind, gold, predicted, seed=5, **options)
    assert first != intervals(kind, gold, predicted, seed=6, **options)
    wide = intervals(kind, gold, predicted, seed=5, level=0.99, **options)
    for name, value in score(kind, gold, predicted, **options).items():
        assert wide[name][0] <= first[name][0] <= value <= first[name][1] <= wide[name][1]


@pytest.mark.parametrize("kind", ["classify", "regress"])
def test_ten_thousand_rows_take_about_a_second(kind: str) -> None:
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 50, 10_000) if kind == "classify" else rng.normal(size=10_000)
    predicted = np.where(rng.random(10_000) < 0.6, gold, gold[::-1])
    started = time.process_time()
    intervals(kind, gold, predicted, **({"labels": 50} if kind == "classify" else {}))
    assert time.process_time() - started < 4  # some 0.2 and 0.8 s alone on one core


def test_main_metrics_and_what_is_better() -> None:
    assert kinds.get("classify").metrics[0] == "accuracy"
    assert kinds.get("regress").metrics[0] == "pearson"
    assert metrics.better("accuracy", 0.9, 0.8)
    assert not metrics.better("accuracy", 0.8, 0.8)
    assert metrics.better("mae", 0.8, 0.9)
    assert metrics.better("perplexity", 8, 9)


def test_a_mistyped_metric_gets_the_near_one() -> None:
    assert kinds.get("classify").check_metric("macro_f1", ["a", "b", "c"]) == "macro_f1"
    with pytest.raises(UsageError, match="'macro_f1'"):
        kinds.get("classify").check_metric("macrof1", ["a"])
    with pytest.raises(UsageError, match="--metric pearson"):
        kinds.get("regress").check_metric("xyz", ())
    with pytest.raises(UsageError, match=r"no kind 'clasify'.*Did you mean 'classify'"):
        kinds.get("clasify")


def test_f1_asks_for_two_labels() -> None:
    assert kinds.get("classify").check_metric("f1", ["a", "b"]) == "f1"
    with pytest.raises(UsageError, match=r"here are 3\..*macro_f1"):
        kinds.get("classify").check_metric("f1", ["a", "b", "c"])


def test_input_that_does_not_fit_is_said() -> None:
    with pytest.raises(DataError, match="2 gold values but 1 predicted"):
        metrics.classification([0, 1], [0], labels=2)
    with pytest.raises(DataError, match="from 0 to 1"):
        metrics.classification([0, 2], [0, 1], labels=2)
    with pytest.raises(DataError, match="from 0 to 1"):
        metrics.classification(["a", "b"], ["a", "b"], labels=2)
    with pytest.raises(DataError, match="one number a row"):
        metrics.regression([[1.0], [2.0]], [[1.0], [2.0]])
    with pytest.raises(UsageError, match="level"):
        metrics.regression_intervals([1.0], [1.0], level=95)


def test_a_resample_without_the_rare_label_does_not_raise_the_interval_of_macro_f1() -> None:
    gold, predicted = [0] * 9 + [1], [0] * 10  # the rare label is never found: a third of the resamples lack it
    assert score("classify", gold, predicted, labels=2)["macro_f1"] == pytest.approx(0.4737, abs=1e-4)
    low, high = intervals("classify", gold, predicted, labels=2)["macro_f1"]
    assert 0.3 < low < 0.4737
    assert high == 0.5  # was 1.0


def test_a_resample_without_a_label_does_not_lower_the_macro_f1_of_perfect_answers() -> None:
    gold = [0] * 9 + [1]
    assert intervals("classify", gold, gold, labels=2)["macro_f1"] == (1.0, 1.0)


def test_a_label_that_is_only_predicted_counts_in_every_resample() -> None:
    gold, predicted = [0] * 6 + [1] * 3 + [0], [0] * 6 + [1] * 3 + [2]
    assert score("classify", gold, predicted, labels=3)["macro_f1"] == pytest.approx((12 / 13 + 1 + 0) / 3)
    assert intervals("classify", gold, predicted, labels=3)["macro_f1"][1] == pytest.approx(2 / 3)  # was 1.0


@settings(deadline=None, max_examples=50)
@given(rows)
def test_the_interval_of_macro_f1_is_within_what_its_labels_can_reach(case: tuple[int, list[tuple[int, int]]]) -> None:
    k, pairs = case
    gold, predicted = [a for a, _ in pairs], [b for _, b in pairs]
    found = {(a, b) for a, b in pairs}
    occur = {a for a, _ in pairs} | {b for _, b in pairs}
    reachable = sum((label, label) in found for label in occur) / len(occur)  # others have an F1 of 0 in any resample
    high = intervals("classify", gold, predicted, labels=k, resamples=100)["macro_f1"][1]
    assert high <= reachable + 1e-12


def test_the_same_holds_for_several_labels_a_row() -> None:
    kind = kinds.get("multilabel")(labels=("a", "b"))
    gold = [["a"]] * 9 + [["b"]]
    never = np.array([[True, False]] * 9 + [[False, False]])
    assert kind.score(gold, never)["macro_f1"] == 0.5
    assert kind.intervals(gold, never)["macro_f1"] == (0.5, 0.5)  # was 0.5 - 1.0
