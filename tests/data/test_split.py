"""The split's laws: content decides, texts stay together, labels keep their shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptree.data.dataset import Dataset
from adaptree.data.split import overlap, split
from adaptree.errors import DataError, UsageError
from adaptree.kinds.reading import open_data


def of(rows: list[tuple[str, Any]], **options: Any) -> Dataset:
    return open_data([{"text": text, "label": label} for text, label in rows], text="text", label="label", **options)


def held_texts(table: Dataset, **options: Any) -> set[str]:
    return {table.texts([i])[0] for i in split(table, **options)[1]}


def plain(count: int, labels: str = "ab") -> list[tuple[str, str]]:
    return [(f"text {i}", labels[i % len(labels)]) for i in range(count)]


ROWS = st.lists(st.tuples(st.integers(0, 30).map(str), st.sampled_from("abc")), min_size=12, max_size=80)


@settings(max_examples=80, deadline=None)
@given(ROWS, st.integers(-5, 5), st.randoms(use_true_random=False))
def test_laws_of_any_split(rows: list[tuple[str, str]], seed: int, random: Any) -> None:
    rows = [*rows, *((f"own {i}", "abc"[i % 3]) for i in range(9))]
    table = of(rows)
    train, held = split(table, seed=seed)
    assert np.array_equal(np.sort(np.r_[train, held]), np.arange(len(table)))
    assert (np.diff(train) > 0).all()
    assert (np.diff(held) > 0).all()
    texts = {table.texts([i])[0] for i in held}
    assert not texts & {table.texts([i])[0] for i in train}
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert held_texts(of(shuffled), seed=seed) == texts
    votes: dict[str, list[str]] = {}
    for text, label in rows:
        votes.setdefault(text, []).append(label)
    winners = {text: max(sorted(set(found)), key=found.count) for text, found in votes.items()}
    for label in "abc":
        mine = [text for text, winner in winners.items() if winner == label]
        expected = min(max(round(0.2 * len(mine)), 1), len(mine) - 1)
        assert sum(text in texts for text in mine) == expected


def test_another_seed_holds_out_other_texts_and_the_same_seed_the_same() -> None:
    table = of(plain(500))
    assert held_texts(table, seed=1) == held_texts(table, seed=1)
    common = held_texts(table, seed=1) & held_texts(table, seed=2)
    assert len(common) < 50  # of 100 each; by chance 20


def test_more_rows_do_not_move_a_text_across_much() -> None:
    small, large = held_texts(of(plain(500))), held_texts(of(plain(520)))
    assert len(small - large) <= 8


def test_a_rare_label_is_on_both_sides() -> None:
    table = of([*plain(1000, "a"), ("rare one", "b"), ("rare two", "b"), ("alone", "c")])
    train, held = split(table)
    assert sorted(table.values[held].tolist())[-1] == 1
    assert {1, 2} <= set(table.values[train].tolist())
    assert len(held) == 201


def test_validation_is_capped_in_fair_shares() -> None:
    table = of([*plain(4000, "aaab"), ("rare one", "c"), ("rare two", "c")])
    _, held = split(table, most=100)
    counts = np.bincount(table.values[held], minlength=3)
    assert 95 <= len(held) <= 100
    assert counts[2] == 1
    assert 70 <= counts[0] <= 76


def test_a_text_repeated_beyond_the_cap_is_trained_on() -> None:
    table = of([*[("again", "a")] * 5000, *plain(400)])
    for seed in range(6):
        train, held = split(table, most=50, seed=seed)
        assert len(held) <= 50
        assert len(train) >= 5000


def test_a_quantity_is_held_out_evenly_over_its_range() -> None:
    table = of([(f"text {i}", i / 1000) for i in range(1000)])
    _, held = split(table)
    assert np.bincount((table.values[held] * 10).astype(int)).tolist() == [20] * 10
    small = of([(f"text {i}", i / 7) for i in range(20)])
    assert len(split(small)[1]) == 4


def test_what_cannot_be_split_is_said() -> None:
    with pytest.raises(DataError, match="only one text"):
        split(of([("same", "a"), ("same", "b")]))
    with pytest.raises(DataError, match="--validation FILE"):
        split(of([("one", "a"), ("two", "b")]))
    for fraction in (0, 1, -0.5, float("nan")):
        with pytest.raises(UsageError):
            split(of(plain(10)), fraction=fraction)


def test_a_table_without_labels_can_be_split() -> None:
    table = open_data([{"text": f"text {i}"} for i in range(50)], kind="mlm")
    assert len(split(table)[1]) == 10


def test_overlap_counts_the_rows_of_the_second() -> None:
    a, b = of(plain(10)), of([("text 3", "a"), (" text  3", "b"), ("new", "a"), ("text 9", "a")])
    assert overlap(a, b) == 3
    assert overlap(b, a) == 2
