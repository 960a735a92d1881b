"""Which column is what: by name, else by content, else a question to the user."""

from __future__ import annotations

from typing import Any

import pytest

from adaptree.data.columns import Columns, guess
from adaptree.errors import DataError

LONG = ["this phone is great", "I did not like it at all", "never again, sorry", "a fine and useful thing"] * 5


def table(**columns: list[Any]) -> tuple[list[str], list[dict[str, Any]]]:
    return list(columns), [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("text label", ("text", None, "label")),
        ("Label TEXT", ("TEXT", None, "Label")),
        ("id sentence source class", ("sentence", None, "class")),
        ("title review stars", ("review", None, "stars")),
        ("text target label", ("text", None, "label")),
        ("text_a text_b label id1 id2", ("text_a", "text_b", "label")),
        ("text text_pair label", ("text", "text_pair", "label")),
        ("label Sentence1 Sentence2", ("Sentence1", "Sentence2", "label")),
        ("premise hypothesis gold_label", ("premise", "hypothesis", "gold_label")),
        ("qid1 qid2 question1 question2 y", ("question1", "question2", "y")),
        ("idx question sentence label", ("question", "sentence", "label")),
        ("genre file text_a text_b score", ("text_a", "text_b", "score")),
    ],
)
def test_known_names_are_found_in_any_case_and_order(names: str, expected: tuple[str, str | None, str]) -> None:
    columns = {name: list(LONG) for name in names.split()}
    columns[expected[2]] = ["1", "2", "3", "4"] * 5
    assert guess(*table(**columns)) == Columns(*expected)


def test_unknown_names_are_told_apart_by_content() -> None:
    names, sample = table(
        tweet_id=[str(i) for i in range(20)], what=["yes", "no"] * 10, words=LONG, file=["a.txt", "b.txt"] * 10
    )
    assert guess(names, sample) == Columns("words", None, "what")


def test_numbers_that_all_differ_can_be_a_label() -> None:
    assert guess(*table(words=LONG, how_much=[i / 7 for i in range(20)])) == Columns("words", None, "how_much")


def test_ids_files_and_sources_serve_only_when_nothing_better_is_there() -> None:
    long_ids = [f"https://example.org/a/very/long/address/of/a/thing/{i}" for i in range(20)]
    assert guess(*table(url=long_ids, words=LONG, kind=["x", "y"] * 10)).text == "words"
    assert guess(*table(words=LONG, source=["x", "y"] * 10)) == Columns("words", None, "source")


def test_a_known_text_name_over_numbers_is_not_the_text() -> None:
    assert guess(*table(review=[1, 2, 3, 4] * 5, words=LONG, label=["a", "b"] * 10)).text == "words"


def test_an_empty_column_is_not_taken() -> None:
    assert guess(*table(text=LONG, label=[None] * 20, topic=["a", "b"] * 10)).label == "topic"


def test_explicit_names_win_and_a_said_text_is_alone() -> None:
    names, sample = table(text_a=LONG, text_b=LONG, label=["a", "b"] * 10, other=["c", "d"] * 10)
    assert guess(names, sample, text="text_b") == Columns("text_b", None, "label")
    assert guess(names, sample, label="other") == Columns("text_a", "text_b", "other")
    assert guess(names, sample, text="text_b", pair="text_a") == Columns("text_b", "text_a", "label")


def test_a_missing_column_names_the_columns_and_a_near_one() -> None:
    names, sample = table(text=LONG, label=["a", "b"] * 10)
    with pytest.raises(
        DataError, match=r"no column 'lable'; the columns are 'text', 'label'\..*Did you mean 'label'\?"
    ):
        guess(names, sample, label="lable")
    with pytest.raises(DataError, match="twice"):
        guess(names, sample, text="text", label="text")


@pytest.mark.parametrize(
    "columns",
    [
        {"a": list(range(20)), "b": list(range(20))},
        {"words": LONG},
        {"words": LONG, "state": ["x", "y"] * 10, "channel": ["p", "q"] * 10},
        {
            "words": [f"{i} {text}" for i, text in enumerate(LONG)],
            "more": [f"{text} {i}" for i, text in enumerate(LONG)],
        },
        {"tokens": [["a", "b"]] * 20, "tags": [["O", "O"]] * 20},
    ],
)
def test_what_cannot_be_told_is_asked_for(columns: dict[str, list[Any]]) -> None:
    with pytest.raises(DataError, match=r"cannot tell .*--text COL --label COL") as caught:
        guess(*table(**columns))
    assert list(columns)[-1] in str(caught.value)


def test_a_file_without_a_header_is_noticed() -> None:
    sample = [{"great phone, really": text, "pos": ["pos", "neg"][i % 2]} for i, text in enumerate(LONG)]
    with pytest.raises(DataError, match="column names"):
        guess(["great phone, really", "pos"], sample)


def test_without_need_of_a_label_none_is_guessed_from_content() -> None:
    names, sample = table(words=LONG, what=["yes", "no"] * 10)
    assert guess(names, sample, need_label=False) == Columns("words", None, None)
    assert guess(["text"], [{"text": "a"}], need_label=False) == Columns("text", None, None)
