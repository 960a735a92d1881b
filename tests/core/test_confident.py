"""Confident learning: the paper's formula, by hand and against its authors' library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adaptree.core.confident import likely_errors


def noisy(n: int, k: int, seed: int, sharp: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Labels of which a fifth is wrong, and probabilities that mostly know better."""
    rng = np.random.default_rng(seed)
    true = rng.permutation(np.arange(n) % k)
    labels = np.where(rng.random(n) < 0.2, rng.permutation(true), true)
    logits = rng.normal(size=(n, k)) + sharp * np.eye(k)[true]
    p = np.exp(logits)
    return labels, p / p.sum(1, keepdims=True)


def test_a_label_is_in_doubt_where_another_one_is_as_sure_as_that_one_usually_is() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    sure_of_0 = np.array([0.9, 0.8, 0.1, 0.4, 0.1, 0.2, 0.1, 0.9])
    # t_0 = 0.55 and t_1 = 0.675: row 2 is surely of label 1, row 7 of label 0, and row 3 reaches neither threshold
    found = likely_errors(labels, np.stack([sure_of_0, 1 - sure_of_0], axis=1))
    assert np.flatnonzero(found).tolist() == [2, 7]


def test_a_label_that_no_row_has_is_never_sure() -> None:
    p = np.array([[0.2, 0.1, 0.7], [0.1, 0.3, 0.6], [0.4, 0.1, 0.5]])
    assert not likely_errors(np.array([0, 1, 0]), p).any()


@pytest.mark.parametrize(("k", "sharp"), [(2, 1.0), (2, 4.0), (5, 2.0), (5, 5.0)])
@pytest.mark.filterwarnings("ignore")
def test_it_finds_what_cleanlab_finds(k: int, sharp: float) -> None:
    cleanlab = pytest.importorskip("cleanlab.filter", reason="the reference is cleanlab: pip install 'adaptree[dev]'")
    for seed in range(5):
        labels, p = noisy(300, k, seed, sharp)
        theirs = cleanlab.find_label_issues(labels, p, filter_by="confident_learning", n_jobs=1)
        np.testing.assert_array_equal(likely_errors(labels, p), theirs)
