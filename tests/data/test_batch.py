"""Batches: one canonical length each, every row once, honestly shuffled."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adaptree.data import batch
from adaptree.data.encode import Encoding


def row(length: int, at: int = 0) -> Encoding:
    return Encoding(np.full(length, at, dtype=np.int32), None, False)


@given(st.integers(1, 5000))
def test_a_canonical_length_is_near_above_and_fixed(length: int) -> None:
    found = batch.canonical(length)
    assert length <= found <= max(8, length * 1.25 + 8)
    assert batch.canonical(found) == found


@given(st.lists(st.integers(1, 300), max_size=200), st.integers(1, 40))
def test_groups_hold_every_row_once_at_one_length(lengths: list[int], size: int) -> None:
    groups = batch.group(lengths, size)
    assert sorted(i for members in groups for i in members) == list(range(len(lengths)))
    for members in groups:
        assert len(members) <= size
        assert len({batch.canonical(lengths[i]) for i in members}) == 1


@given(st.lists(st.integers(1, 200), min_size=1, max_size=120), st.integers(0, 5))
def test_an_epoch_visits_every_row_once(lengths: list[int], seed: int) -> None:
    rows = np.arange(len(lengths))
    seen = [i for at, _ in batch.epoch(rows, lambda at: [[row(lengths[i])] for i in at], 16, (seed, 0)) for i in at]
    assert sorted(seen) == rows.tolist()


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    lengths = [5 + i % 60 for i in range(500)]

    def order(*seed: int) -> list[list[int]]:
        made = batch.epoch(np.arange(500), lambda at: [[row(lengths[i])] for i in at], 32, seed)
        return [at.tolist() for at, _ in made]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


def test_no_epoch_is_ordered_by_length() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 200, 4000)
    correlations = []
    for seed in range(5):
        made = batch.epoch(np.arange(4000), lambda at: [[row(int(lengths[i]))] for i in at], 32, (seed,))
        means = [np.mean([len(r.ids) for [r] in examples]) for _, examples in made]
        correlations.append(np.corrcoef(means, np.arange(len(means)))[0, 1])
    assert max(map(abs, correlations)) < 0.35


def test_a_large_set_is_cut_into_pools_that_are_encoded_one_by_one(monkeypatch: object) -> None:
    asked: list[int] = []

    def encode(at: np.ndarray) -> list[list[Encoding]]:  # type: ignore[type-arg]
        asked.append(len(at))
        return [[row(6)] for _ in at]

    made = batch.epoch(np.arange(3 * batch.POOL + 5), encode, 32, (0,))
    next(made)
    assert asked == [batch.POOL]
    assert sum(len(at) for at, _ in made) + 32 == 3 * batch.POOL + 5
    assert asked == [batch.POOL] * 3 + [5]


def test_collate_pads_to_the_canonical_length() -> None:
    made = batch.collate([row(3, 7), row(6, 9)], pad_id=1)
    assert made["input_ids"].tolist() == [[7, 7, 7, 1, 1, 1, 1, 1], [9] * 6 + [1, 1]]
    assert made["attention_mask"].sum(1).tolist() == [3, 6]
    assert "token_type_ids" not in made
