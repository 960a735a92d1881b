"""Which column is what: by name, else by content, else a question to the user."""

from __future__ import annotations

import random
from typing import Any

import pytest

from adaptree.data.columns import Columns, free_texts, guess
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


def sentences(count: int = 40, words: int = 12, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join(rng.choices(LONG[0].split() + LONG[1].split(), k=rng.randint(words // 2, words))) for _ in range(count)
    ]


YES = ["yes", "no"] * 20


@pytest.mark.parametrize(
    "names",
    [
        ("sent 1", "sent 2", "gold"),
        ("q1", "q2", "duplicate"),
        ("sentence_A", "sentence_B", "entailment"),
        ("a", "b", "same"),
        ("first text", "second text", "same"),
        ("question", "answer", "right"),
        ("claim", "evidence", "verdict"),
        ("pros", "cons", "bought"),  # by their contents: two columns of sentences, about as long
    ],
)
def test_two_columns_of_texts_are_a_pair_where_that_is_clear(names: tuple[str, str, str]) -> None:
    first, second, label = names
    found = guess(*table(**{first: sentences(), second: sentences(seed=1), label: YES}))
    assert found == Columns(first, second, label)


def test_sentences_that_come_back_in_several_rows_are_texts_and_no_labels() -> None:
    premises = [text for text in sentences(14, 8) for _ in range(3)][:40]
    found = guess(*table(**{"sent 1": premises, "sent 2": sentences(seed=1), "relation": YES}))
    assert found == Columns("sent 1", "sent 2", "relation")
    assert guess(*table(premises=premises, what=YES)) == Columns("premises", None, "what")


def test_twins_are_a_pair_also_where_one_has_the_same_few_sentences_again_and_again() -> None:
    few = ["great phone", "works like a charm", "very nice", "poor battery life"] * 10
    found = guess(*table(**{"sent 1": sentences(), "sent 2": few, "gold": YES}))
    assert found == Columns("sent 1", "sent 2", "gold")
    assert guess(*table(**{"text": sentences(), "tag 1": few, "tag 2": few, "gold": YES})).pair is None
    assert guess(*table(**{"words 1": sentences(), "words 2": YES, "gold": YES})).pair is None


def test_an_id_is_no_label() -> None:
    with pytest.raises(DataError, match="cannot tell which column holds the label"):
        guess(*table(id=list(range(40)), words=sentences()))


def test_short_texts_of_twin_names_are_a_pair_too_but_never_beside_a_text() -> None:
    words, others = [f"hot{i}" for i in range(40)], [f"cold{i}" for i in range(40)]
    assert guess(*table(word1=words, word2=others, relation=YES)) == Columns("word1", "word2", "relation")
    found = guess(*table(text=sentences(), name1=words, name2=others, relation=YES))
    assert found == Columns("text", None, "relation")
    found = guess(*table(complaint=sentences(), name1=words, name2=others, relation=YES))
    assert found == Columns("complaint", None, "relation")


def test_a_title_does_not_take_the_place_of_a_pair() -> None:
    found = guess(
        *table(**{"title": sentences(seed=2), "sent 1": sentences(), "sent 2": sentences(seed=1), "gold": YES})
    )
    assert found == Columns("sent 1", "sent 2", "gold")


def test_a_title_an_answer_that_is_the_label_and_dates_are_no_second_text() -> None:
    assert guess(*table(title=sentences(words=5), text=sentences(), label=YES)) == Columns("text", None, "label")
    assert guess(*table(question=sentences(), answer=YES)) == Columns("question", None, "answer")
    dates = [f"Mon Jan {i} 10:00:00 +0000 2015" for i in range(40)]
    assert guess(*table(tweeted=dates, words=sentences(), what=YES)) == Columns("words", None, "what")


@pytest.mark.parametrize(
    "columns",
    [
        {"subject_line": sentences(words=5), "complaint": sentences(words=60), "kind": YES},
        {"a": sentences(), "b": sentences(seed=1), "c": sentences(seed=2), "kind": YES},
    ],
)
def test_several_columns_of_texts_are_asked_about_with_the_flags(columns: dict[str, list[Any]]) -> None:
    first, second, *_ = columns
    with pytest.raises(
        DataError, match=f"hold texts.*--text '{first}'.*--text '{first}' --text-pair '{second}'"
    ) as caught:
        guess(*table(**columns))
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=f"hold texts.*--text '{first}'$"):
        guess(*table(**columns), pairs=False, need_label=False)
    assert guess(*table(**columns), text=second) == Columns(second, None, "kind")


def test_sentences_are_told_from_names_dates_links_and_labels_in_any_script() -> None:
    columns: dict[str, list[Any]] = {
        "said": sentences(),
        "chinese": [f"这个手机非常好用我很喜欢{i}" for i in range(40)],
        "name": [f"Ann Lee{i}" for i in range(40)],
        "when": [f"2015-02-24 11:35:{i} -0800" for i in range(40)],
        "picture": [f"https://example.org/a/b/c/{i}" for i in range(40)],
        "zone": ["Eastern Time (US & Canada)", "Central Time (US & Canada)"] * 20,
        "agent": ['<a href="http://example.org">the web client of the service</a>'] * 40,
        "words": [["a", "list", "of", "words"]] * 40,
        "number": list(range(40)),
        "nothing": [None] * 40,
    }
    assert free_texts(*table(**columns)) == ["said", "chinese"]


def test_a_file_without_labels_is_told_what_needs_none() -> None:
    with pytest.raises(DataError, match=r"cannot tell which column holds the label.*--kind mlm"):
        guess(*table(words=sentences()))


def test_without_need_of_a_label_none_is_guessed_from_content() -> None:
    names, sample = table(words=LONG, what=["yes", "no"] * 10)
    assert guess(names, sample, need_label=False) == Columns("words", None, None)
    assert guess(["text"], [{"text": "a"}], need_label=False) == Columns("text", None, None)
