"""A head that is solved: what scikit-learn gives on the same vectors, for every kind, in one epoch."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from tests.bases import tiny_base, words_csv
from tests.compat.forms import FORMS, OPTIONS, write

import adaptree as at
from adaptree.data.encode import Encoding
from adaptree.data.split import split
from adaptree.kinds.classify import Classify
from adaptree.kinds.reading import open_data
from adaptree.kinds.regress import Regress
from adaptree.reports import card
from adaptree.training import solve
from adaptree.training.solve import Problem, solve_head


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> at.Base:
    return at.load_base(tiny_base(tmp_path_factory.mktemp("base"), mask=True))


def problem(kind: Any, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], weights: Any = None) -> Problem:
    row = Encoding(np.array([1, 2, 3]), None, False)
    return Problem(kind, [[row]] * len(x), list(torch.from_numpy(x).float().unsqueeze(1)), y, row_weights=weights)


def clusters(n: int, d: int, k: int, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Points around k centres that overlap."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % k
    return rng.normal(size=(k, d))[y] + 1.5 * rng.normal(size=(n, d)) + 3, y


@pytest.mark.parametrize("labels", [2, 5])
def test_a_solved_head_is_the_logistic_regression_of_scikit_learn(labels: int) -> None:
    x, y = clusters(120, 8, labels)
    head, strength = solve_head(problem(Classify(tuple(map(str, range(labels)))), x, y), y)
    centred = x - x.mean(0)
    scale = np.sqrt((centred**2).mean())
    reference = LogisticRegression(C=1 / strength, tol=1e-8, max_iter=5000).fit(centred / scale, y)
    ours = (torch.from_numpy(x).float() @ head["head.weight"].t() + head["head.bias"]).softmax(-1).numpy()
    if labels == 2:  # of two labels we penalise both rows of weights, scikit-learn their difference: half as much
        reference = LogisticRegression(C=2 / strength, tol=1e-8, max_iter=5000).fit(centred / scale, y)
    np.testing.assert_allclose(ours, reference.predict_proba(centred / scale), atol=2e-4)


def test_a_solved_head_for_numbers_is_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)) + 2
    y = (x @ rng.normal(size=5) + 0.3 * rng.normal(size=60)).astype(np.float32)
    kind = Regress(mean=float(y.mean()), std=float(y.std()))
    head, strength = solve_head(problem(kind, x, y), np.zeros(60))
    centred = x - x.mean(0)
    scale = np.sqrt((centred**2).mean())
    wanted = (y - y.mean()) / y.std()
    out = kind.loss(torch.zeros(60, 1), [], y)  # the loss's factor decides what the strength is relative to
    factor = float((torch.from_numpy(wanted).square() / out).mean())
    reference = Ridge(alpha=strength * factor / 2).fit(centred / scale, wanted)
    ours = (torch.from_numpy(x).float() @ head["head.weight"].t() + head["head.bias"]).squeeze(1).numpy()
    np.testing.assert_allclose(ours, reference.predict(centred / scale), atol=1e-3)


def test_the_strength_follows_the_data() -> None:
    x, y = clusters(60, 40, 2)
    kind = Classify(("a", "b"))
    noise = np.random.default_rng(1).permutation(y)
    strong, weak = solve_head(problem(kind, x, noise), noise)[1], solve_head(problem(kind, x, y), y)[1]
    assert strong > weak  # where there is nothing to learn, the weights stay small


def test_a_label_with_one_row_and_a_constant_feature_are_no_trouble() -> None:
    x, y = clusters(21, 4, 3)
    x[:, 1], y[y == 2] = 7.0, 0
    y[0] = 2
    head, _ = solve_head(problem(Classify(("a", "b", "c")), x, y), y)
    assert all(torch.isfinite(tensor).all() for tensor in head.values())


def test_a_row_that_counts_twice_is_as_good_as_two() -> None:
    x, y = clusters(40, 4, 2)
    kind, strength = Classify(("a", "b")), 1.0
    twice = np.concatenate([x, x[:10]]), np.concatenate([y, y[:10]])
    weights = np.where(np.arange(40) < 10, 2.0, 1.0)
    found = [
        next(solve._Solver(each).path([strength], solve.EXACT))
        for each in (problem(kind, x, y, weights), problem(kind, *twice))
    ]
    shares = [(torch.from_numpy(x) @ w.t() + b).softmax(-1) for w, b in found]
    torch.testing.assert_close(shares[0], shares[1], atol=0.02, rtol=0)  # but for the scale of the penalty


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in FORMS if form != "mlm"])
def test_a_head_is_solved_for_every_kind(form: str, base: at.Base, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "base": base, "method": "head", "validation": write(tmp_path / "v.jsonl", form, 20, 1), "baselines": False,
        **OPTIONS.get(form, {}),
    }  # fmt: skip
    data = write(tmp_path / "t.jsonl", form, 48, 0)
    bound = at.train(data, **options)
    (epoch,) = bound.task.record.history
    assert epoch["penalty"] in solve.STRENGTHS
    again = at.train(data, **options)
    assert all(torch.equal(bound.task.weights[name], again.task.weights[name]) for name in bound.task.weights)


def test_a_solved_head_fits_its_rows_better_than_twenty_epochs_of_steps(
    base: at.Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, held = words_csv(tmp_path / "t.csv", 60), words_csv(tmp_path / "v.csv", 150, seed=1)
    options: dict[str, Any] = {"base": base, "method": "head", "validation": held, "baselines": False, "epochs": 20}
    solved = at.train(data, **options).task.record.metrics["validation"]["accuracy"]
    monkeypatch.setattr("adaptree.training.loop.MOST_BYTES", 0)  # too large to be held: trained in steps
    stepped = at.train(data, **options).task.record
    assert len(stepped.history) > 1
    assert solved >= stepped.metrics["validation"]["accuracy"]


def test_a_solved_head_is_scored_on_rows_held_out_and_then_learns_all(base: at.Base, tmp_path: Path) -> None:
    data = words_csv(tmp_path / "words.csv", 60)
    with data.open() as file:
        rows = list(csv.DictReader(file))
    bound = at.train(data, base=base, name="head", method="head")
    record = bound.task.record
    assert record.settings["refitted"]
    assert "learned all rows" in card.body(record)
    held = split(open_data(data), seed=0)
    apart = at.train(
        [rows[i] for i in held[0]], base=base, name="apart", method="head", validation=[rows[i] for i in held[1]]
    )
    assert apart.task.record.metrics == record.metrics  # the score is that of rows it had not seen
    assert "refitted" not in apart.task.record.settings
    every = at.train(rows, base=base, name="every", method="head", validation=rows)
    for name, tensor in every.task.weights.items():
        torch.testing.assert_close(bound.task.weights[name], tensor, rtol=1e-4, atol=1e-5)
