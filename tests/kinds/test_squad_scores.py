"""Exact match and F1 by SQuAD's official rules, against a second implementation written from the published ones."""

from __future__ import annotations

import json
import lzma
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptree.errors import DataError
from adaptree.kinds import squad

GOLDS = [
    "Denver Broncos", "the 1990s", "A Tale of Two Cities", "July, August, and September", "$12.50", "3.14", "1,000,000",
    "don't panic", "U.S.", "São Paulo", "ÅNGSTRÖM", "a", "The The", "an hour", "Straße", "北京", "rock–and–roll",
    "“Yes”", "x_a_y", "twenty-five", "Saint\u00a0Bernadette", "İstanbul", "l'a été", "the the the end", "...",
    "e.g. this",
]  # fmt: skip


def words_of(text: str) -> list[str]:
    """The published rules, sign by sign: lower case, ASCII punctuation out, the words a, an and the out, split."""
    kept = [c for c in text.lower() if c not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
    out, word = "", ""
    for c in [*kept, " "]:
        if c.isalnum():
            word += c
        else:
            out += (" " if word in ("a", "an", "the") else word) + c
            word = ""
    return out.split()


def second_opinion(rights: list[str], answer: str) -> tuple[float, float]:
    told = words_of(answer)
    exact, overlap = 0.0, 0.0
    for right in [words_of(r) for r in rights if words_of(r)] or [[]]:
        exact = max(exact, float(told == right))
        left, same = list(right), 0
        for word in told:
            if word in left:
                left.remove(word)
                same += 1
        if not told or not right:
            f1 = float(not told and not right)
        elif same == 0:
            f1 = 0.0
        else:
            precision, recall = same / len(told), same / len(right)
            f1 = 2 * precision * recall / (precision + recall)
        overlap = max(overlap, f1)
    return exact, overlap


def altered(text: str, rng: random.Random) -> list[str]:
    """A gold answer as a model might give it: near, off, or empty."""
    words = text.split() or [""]
    return [
        text, text.upper(), text.title(), f"the {text}", f"{text} a", f"An, {text}.", f"  {text}\t\n", f"({text})",
        text.replace(" ", "  "), text.replace(" ", "-"), " ".join(words[1:]), " ".join(words[:-1]), f"{text} {text}",
        f"{text} in 1999", f"about {rng.randint(1, 99)} {text}", " ".join(reversed(words)), f"«{text}»", f"{text}–a–b",
        "".join(rng.sample(text, len(text))), "", "the", "?!", text[: len(text) // 2], f"{text} the 5th, and others",
        text.replace("a", "á"), f"{text}'s", f"\u200b{text}", f"{text} 😀",
    ]  # fmt: skip


def as_gold(*rights: str) -> dict[str, Any]:
    return {"answers": [{"text": right, "start": 0} for right in rights], "id": None}


def agree(pairs: list[tuple[list[str], str]]) -> None:
    found = squad.statistics([as_gold(*rights) for rights, _ in pairs], [answer for _, answer in pairs])
    for row, (rights, answer) in zip(found.tolist(), pairs, strict=True):
        assert row == pytest.approx(second_opinion(rights, answer), abs=1e-12), (rights, answer)


def test_altered_answers_score_as_a_second_implementation_says() -> None:
    rng = random.Random(0)
    pairs = [([right], answer) for right in GOLDS for answer in altered(right, rng)]
    pairs += [(rng.sample(GOLDS, rng.randint(0, 4)), rng.choice(altered(rng.choice(GOLDS), rng))) for _ in range(500)]
    assert len(pairs) > 1000
    assert 0.2 < np.mean([second_opinion(*pair)[0] for pair in pairs]) < 0.8  # neither all right nor all wrong
    agree(pairs)


@given(st.lists(st.text(max_size=20), max_size=3), st.text(max_size=20))
def test_any_text_scores_as_a_second_implementation_says(rights: list[str], answer: str) -> None:
    agree([(rights, answer)])


@pytest.mark.parametrize(
    ("rights", "answer", "expected"),
    [
        (["Denver Broncos"], "the denver broncos!", (1, 1)),
        (["Denver Broncos"], "Broncos", (0, 2 / 3)),
        (["Denver", "Denver Broncos"], "Denver Broncos", (1, 1)),
        (["Denver Broncos"], "", (0, 0)),
        ([], "", (1, 1)),
        ([], "Denver", (0, 0)),
        ([], "the", (1, 1)),
        (["the"], "", (1, 1)),
        (["the", "Denver"], "", (0, 0)),
        (["the end the end"], "end", (0, 2 / 3)),
    ],
)
def test_the_rules_by_example(rights: list[str], answer: str, expected: tuple[float, float]) -> None:
    assert squad.best(as_gold(*rights), answer) == pytest.approx(expected)


def test_scores_are_means_and_intervals_hold_them() -> None:
    targets = [as_gold("Denver Broncos")] * 60 + [as_gold()] * 40
    answers = ["Broncos"] * 30 + ["Denver Broncos"] * 30 + [""] * 20 + ["Denver"] * 20
    found = squad.score(targets, answers)
    assert found == pytest.approx({"exact_match": 0.5, "f1": (20 + 30 + 20) / 100})
    for name, (low, high) in squad.intervals(targets, answers).items():
        assert low < found[name] < high
        assert 0.05 < high - low < 0.3
    assert squad.score([], []) == {"exact_match": 0.0, "f1": 0.0}
    assert squad.intervals([], []) == {"exact_match": (0.0, 0.0), "f1": (0.0, 0.0)}


def test_as_many_answers_as_questions() -> None:
    with pytest.raises(DataError, match="2 questions but 1 answers"):
        squad.score([as_gold("a"), as_gold("b")], ["a"])


@pytest.fixture(scope="module")
def dev() -> list[list[str]]:
    """The gold answers of every question of the full dev set."""
    folder = os.environ.get("ADAPTREE_DATA")
    path = Path(folder or ".") / "squad" / "validation.json.xz"
    if not folder or not path.is_file():
        pytest.skip("ADAPTREE_DATA does not name a folder with squad/validation.json.xz")
    with lzma.open(path, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    asked = [question for article in articles for part in article["paragraphs"] for question in part["qas"]]
    return [[answer["text"] for answer in question["answers"]] for question in asked]


def test_gold_answers_of_the_dev_set_score_100(dev: list[list[str]]) -> None:
    targets = [as_gold(*rights) for rights in dev]
    assert len(targets) == 10_570
    for answers in ([rights[0] for rights in dev], [max(rights, key=len) for rights in dev]):
        assert squad.score(targets, answers) == {"exact_match": 1.0, "f1": 1.0}


def test_a_gold_answer_of_the_dev_set_that_is_only_a_dot_is_none(dev: list[list[str]]) -> None:
    dotted = [rights for rights in dev if "." in rights]
    assert len(dotted) == 3
    assert squad.score([as_gold(*rights) for rights in dotted], ["."] * 3) == {"exact_match": 0.0, "f1": 0.0}


def test_altered_answers_of_the_dev_set_score_as_a_second_implementation_says(dev: list[list[str]]) -> None:
    rng = random.Random(1)
    agree([(rights, answer) for rights in dev[::40] for answer in altered(rng.choice(rights), rng)])
