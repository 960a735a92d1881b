"""Entities are scored as conlleval scores them, and sums are resampled as they should be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptree.errors import DataError, UsageError
from adaptree.kinds import bootstrap, iob
from adaptree.kinds.iob import PLAIN
from adaptree.kinds.tag import Tag

PAIRS = st.lists(
    st.integers(0, 12).flatmap(
        lambda n: st.tuples(*[st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"]), min_size=n, max_size=n)] * 2)
    ),
    min_size=1,
    max_size=4,
)


def conlleval(targets: list[list[str]], answers: list[list[str]]) -> dict[str, float]:
    """As conlleval.pl goes through a file, by its tables of where a chunk ends and begins."""

    def parts(tag: str) -> tuple[str, str]:
        return (tag[0], tag[2:]) if tag != "O" else ("O", "")

    def ends(before: str, tag: str) -> bool:
        (p, old), (q, new) = parts(before), parts(tag)
        return (p, q) in {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O")} or (p != "O" and old != new)

    def begins(before: str, tag: str) -> bool:
        (p, old), (q, new) = parts(before), parts(tag)
        return (p, q) in {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I")} or (q != "O" and old != new)

    correct = found_correct = found_guessed = tokens = right_tokens = 0
    for gold, answer in zip(targets, answers, strict=True):
        inside = False
        last_gold = last_answer = "O"
        for right, guessed in zip([*gold, "O"], [*answer, "O"], strict=True):
            if inside:
                end_right, end_guessed = ends(last_gold, right), ends(last_answer, guessed)
                if end_right and end_guessed and parts(last_gold)[1] == parts(last_answer)[1]:
                    inside, correct = False, correct + 1
                elif end_right != end_guessed or parts(right)[1] != parts(guessed)[1]:
                    inside = False
            start_right, start_guessed = begins(last_gold, right), begins(last_answer, guessed)
            if start_right and start_guessed and parts(right)[1] == parts(guessed)[1]:
                inside = True
            found_correct += start_right
            found_guessed += start_guessed
            last_gold, last_answer = right, guessed
        tokens += len(gold)
        right_tokens += sum(a == b for a, b in zip(gold, answer, strict=True))
    precision = correct / found_guessed if found_guessed else 0.0
    recall = correct / found_correct if found_correct else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    accuracy = right_tokens / tokens if tokens else 0.0
    return {"f1": f1, "precision": precision, "recall": recall, "accuracy": accuracy}


@given(PAIRS)
def test_scores_are_those_of_conlleval_on_any_tags_broken_ones_too(pairs: list[tuple[list[str], list[str]]]) -> None:
    targets, answers = [gold for gold, _ in pairs], [answer for _, answer in pairs]
    assert Tag(()).score(targets, answers) == pytest.approx(conlleval(targets, answers))


def test_scores_are_those_of_conlleval_on_every_short_sequence() -> None:
    every = list(itertools.product(["O", "B-A", "I-A", "I-B"], repeat=3))
    for gold, answer in itertools.product(every, repeat=2):
        targets, answers = [list(gold)], [list(answer)]
        assert Tag(()).score(targets, answers) == pytest.approx(conlleval(targets, answers)), (gold, answer)


def test_label_and_both_ends_must_be_right() -> None:
    gold = [["B-A", "I-A", "O", "B-B", "B-B", "O"]]
    answer = [["B-A", "I-A", "O", "B-B", "I-B", "O"]]
    assert iob.statistics(gold, answer).tolist() == [[1, 2, 3, 5, 6]]
    assert Tag(()).score(gold, answer) == pytest.approx(
        {"f1": 0.4, "precision": 0.5, "recall": 1 / 3, "accuracy": 5 / 6}
    )
    assert Tag(()).score([["B-A", "I-A"]], [["B-A", "O"]])["f1"] == 0.0
    assert Tag(()).score([["B-A"]], [["B-B"]])["f1"] == 0.0


def test_plain_tags_are_scored_by_word_and_outside_does_not_count() -> None:
    gold, answer = [["N", "N", "V", "O"]], [["N", "V", "O", "O"]]
    found = Tag((), PLAIN).score(gold, answer)
    assert found == pytest.approx({"f1": 0.4, "precision": 0.5, "recall": 1 / 3, "accuracy": 0.5})


def test_every_label_has_its_counts() -> None:
    found = iob.by_label([["B-A", "O", "B-B"], ["B-B", "I-B"]], [["B-A", "B-C", "B-B"], ["B-B", "O"]])
    assert list(found.items()) == [("A", [1, 1, 1]), ("B", [1, 2, 2]), ("C", [0, 1, 0])], "right, predicted, gold"


@given(PAIRS)
def test_the_labels_counts_add_up_to_the_whole(pairs: list[tuple[list[str], list[str]]]) -> None:
    targets, answers = [gold for gold, _ in pairs], [answer for _, answer in pairs]
    whole = iob.statistics(targets, answers).sum(0)
    parts = iob.by_label(targets, answers).values()
    assert [sum(part[which] for part in parts) for which in range(3)] == whole[:3].tolist()


def test_nothing_to_score_is_zero_and_unequal_lengths_are_refused() -> None:
    assert set(Tag(()).score([], []).values()) == {0.0}
    assert set(Tag(()).score([[]], [[]]).values()) == {0.0}
    assert Tag(()).intervals([], [])["f1"] == (0.0, 0.0)
    with pytest.raises(DataError, match="2 gold tags but 1 predicted"):
        Tag(()).score([["O", "O"]], [["O"]])
    with pytest.raises(DataError, match="1 gold sentences but 0 predicted"):
        Tag(()).score([["O"]], [])


def test_an_interval_holds_the_score_and_is_that_of_plain_resampling() -> None:
    rng = np.random.default_rng(1)
    right = rng.integers(0, 3, 80)
    sums = np.stack([right, right + rng.integers(0, 3, 80)], axis=1).astype(float)

    def share(totals: np.ndarray) -> dict[str, np.ndarray]:
        return {"share": totals[:, 0] / totals[:, 1]}

    low, high = bootstrap.intervals(sums, share)["share"]
    plain = []
    for _ in range(4000):
        some = sums[rng.integers(0, 80, 80)].sum(0)
        plain.append(some[0] / some[1])
    assert low < sums[:, 0].sum() / sums[:, 1].sum() < high
    assert (low, high) == pytest.approx(np.quantile(plain, [0.025, 0.975]), abs=0.01)
    assert bootstrap.intervals(sums, share)["share"] == (low, high)
    assert bootstrap.intervals(sums, share, seed=1)["share"] != (low, high)
    narrow = bootstrap.intervals(sums, share, level=0.5)["share"]
    assert low < narrow[0] < narrow[1] < high


def test_resampling_in_parts_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(0).random((50, 2))

    def both(totals: np.ndarray) -> dict[str, np.ndarray]:
        return {"a": totals[:, 0], "b": totals[:, 1]}

    whole = bootstrap.intervals(sums, both)
    monkeypatch.setattr(bootstrap, "BUDGET", 170)
    parts = bootstrap.intervals(sums, both)
    assert all(parts[name] == pytest.approx(whole[name]) for name in "ab")


def test_many_inputs_are_resampled_in_bounded_work() -> None:
    sums = np.ones((1_000_000, 1))
    sizes = []

    def mean(totals: np.ndarray) -> dict[str, np.ndarray]:
        sizes.append(len(totals))
        return {"mean": totals[:, 0] / 1_000_000}

    assert bootstrap.intervals(sums, mean)["mean"] == (1.0, 1.0)
    assert sum(sizes) - len(sizes) == 100  # each time the data itself comes first


@pytest.mark.parametrize("options", [{"level": 0.0}, {"level": 1.0}, {"resamples": 0}])
def test_what_is_no_interval_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="level between 0 and 1"):
        bootstrap.intervals(np.ones((2, 1)), lambda totals: {"a": totals[:, 0]}, **options)  # type: ignore[arg-type]
