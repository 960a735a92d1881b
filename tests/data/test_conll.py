"""CoNLL columns: words and tags of each sentence, whatever the separators, comments and document marks."""

from __future__ import annotations

from typing import Any

import pytest

from adaptree.data.conll import read_conll
from adaptree.errors import DataError


def read(text: str) -> list[tuple[int, dict[str, Any]]]:
    return list(read_conll(text.splitlines(keepends=True)))


def test_a_sentence_is_its_first_and_last_columns_with_its_first_line() -> None:
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER\n"
    assert read(text) == [
        (3, {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}),
        (7, {"tokens": ["Peter"], "tags": ["B-PER"]}),
    ]


def test_tabs_spaces_and_windows_line_ends_are_alike() -> None:
    expected = [{"tokens": ["Ann", "left"], "tags": ["B-PER", "O"]}]
    for text in (
        "Ann\tB-PER\nleft\tO\n",
        "Ann   B-PER  \nleft O",
        "Ann\tB-PER\r\nleft \t O\r\n\r\n",
        "Ann _ B-PER\nleft O\n",
    ):
        assert [row for _, row in read(text)] == expected


def test_a_document_mark_ends_a_sentence_that_no_blank_line_ends() -> None:
    assert [row["tokens"] for _, row in read("a O\n-DOCSTART- O\nb O\n")] == [["a"], ["b"]]


def test_comments_before_a_sentence_are_skipped() -> None:
    text = "# newdoc\n# sent_id = 1\n# text = Ann left O\n1\tAnn\tB-PER\n2\tleft\tO\n\n"
    text += "# id 5a78-11 domain=en\nBern _ _ B-LOC\n"
    assert read(text) == [
        (4, {"tokens": ["1", "2"], "tags": ["B-PER", "O"]}),
        (8, {"tokens": ["Bern"], "tags": ["B-LOC"]}),
    ]


def test_the_word_hash_is_no_comment() -> None:
    assert read("at O\n# B-new\n")[0][1] == {"tokens": ["at", "#"], "tags": ["O", "B-new"]}
    assert [row["tokens"] for _, row in read("at O\n# O\n5 O\n\n# O\n1 O\n")] == [["at", "#", "5"], ["#", "1"]]


def test_other_white_space_than_spaces_and_tabs_belongs_to_words() -> None:
    tokens = ["\u00a0", "New York", "\u3000x", ""]
    assert read("".join(f"{token}\tO\n" for token in tokens))[0][1]["tokens"] == tokens
    assert read("10\u00a0000 O\n")[0][1]["tokens"] == ["10\u00a0000"]


@pytest.mark.parametrize(("text", "line"), [("a O\nword\n", 2), ("a\tO\nb\t\n", 2), ("\n\nalone\n", 3)])
def test_a_line_of_one_column_is_named(text: str, line: int) -> None:
    with pytest.raises(DataError, match=f"line {line} has one column only") as caught:
        read(text)
    assert caught.value.hint


def test_what_is_blank_has_no_sentences() -> None:
    assert read("\n \n\t\n") == []
