"""A table without column names is read as one where that is clear or said; a header is never taken for data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptree.data.read import rows
from adaptree.errors import UsageError

REVIEWS = [
    ("I like this phone a lot and so does my wife", "pos"),
    ("the screen broke after a day of use", "neg"),
    ("works as it should and looks good", "pos"),
    ("not worth the money at all and broke", "neg"),
    ("my children love it very much", "pos"),
    ("never again from this shop of yours", "neg"),
]


def table(path: Path, lines: list[tuple[Any, ...]], separator: str = ",") -> Path:
    path.write_text("".join(separator.join(map(str, line)) + "\n" for line in lines))
    return path


def read(path: Path, **options: Any) -> tuple[list[dict[str, Any]], list[str]]:
    told: list[str] = []
    found = rows(path, on_event=lambda event: told.append(event["text"]), **options)
    return [row for _, row in found], told


NUMBERS = [(4.5, *REVIEWS[0]), (1.25, *REVIEWS[1]), (3, *REVIEWS[2])]


@pytest.mark.parametrize(
    ("name", "lines", "separator"),
    [
        ("a.csv", REVIEWS, ","),
        ("a.csv", REVIEWS, ";"),
        ("a.tsv", REVIEWS, "\t"),
        ("a.txt", [(label, text) for text, label in REVIEWS], "\t"),  # as the collection of SMS spam
        ("a.csv", [(number % 2, text) for number, (text, _) in enumerate(REVIEWS)], ","),
        ("a.csv", [(score, text) for score, text, _ in NUMBERS], ","),
    ],
)
def test_a_table_without_column_names_is_noticed_and_said(
    tmp_path: Path, name: str, lines: list[tuple[Any, ...]], separator: str
) -> None:
    found, told = read(table(tmp_path / name, lines, separator))
    assert found == [{"column1": str(first), "column2": str(second)} for first, second in lines]
    assert len(told) == 1
    assert "looks like data" in told[0]
    assert "column1 to column2" in told[0]


@pytest.mark.parametrize(
    "header",
    [
        ("text", "label"),
        ("Review Text", "spam"),
        ("a very long review text", "label"),
        ("review", "pos"),  # the name of one of its labels
        ("0", "1"),  # as pandas writes columns without names
        ("What do you think of us?", "pos"),  # a survey's question
        ("the customer's own words", "verdict"),
        ("the customer's own words", "Pos"),
        ("Message from the customer", "pos"),
        ("good one", "pos"),  # data perhaps, but not clearly
        ("", "label"),
    ],
)
def test_a_header_is_never_taken_for_data(tmp_path: Path, header: tuple[str, str]) -> None:
    found, told = read(table(tmp_path / "a.csv", [header, *REVIEWS]))
    assert found == [dict(zip(header, row, strict=True)) for row in REVIEWS]
    assert told == []


def test_a_form_with_a_column_for_each_choice_has_a_header(tmp_path: Path) -> None:
    header = ("please write your comment here", "Billing", "1", "2")
    lines = [(text, "Billing" if i % 2 else "", i % 2, 1 - i % 2) for i, (text, _) in enumerate(REVIEWS)]
    assert list(read(table(tmp_path / "a.csv", [header, *lines]))[0][0]) == list(header)


def test_no_header_makes_the_first_line_data(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [("good", "x"), ("bad", "y")])
    assert read(path, no_header=True) == (
        [{"column1": "good", "column2": "x"}, {"column1": "bad", "column2": "y"}], [],
    )  # fmt: skip
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    for named in (tmp_path / "a.jsonl", [{"text": "a"}]):
        with pytest.raises(UsageError, match=r"has names for its columns.*--no-header"):
            rows(named, no_header=True)


def test_columns_that_are_asked_for_decide(tmp_path: Path) -> None:
    short = table(tmp_path / "short.csv", [("good", "x"), ("bad", "y")])
    assert list(read(short, columns=["column1"])[0][0]) == ["column1", "column2"]  # as the task's own file had
    headed = table(tmp_path / "headed.csv", [("text", "label"), ("bad", "y")])
    assert list(read(headed, columns=["column1"])[0][0]) == ["text", "label"]
    clear = table(tmp_path / "clear.csv", REVIEWS)
    assert list(read(clear, columns=["pos"])[0][0]) == list(REVIEWS[0])  # the user says that it is a header
