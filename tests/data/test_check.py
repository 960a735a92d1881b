"""What check finds, and that it says nothing about a good file."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from adaptree.data.check import check, send_notes
from adaptree.data.dataset import Dataset
from adaptree.kinds.reading import open_data


def of(rows: list[tuple[str | None, Any]]) -> Dataset:
    return open_data([{"text": text, "label": label} for text, label in rows], text="text", label="label")


def good(count: int = 200) -> list[tuple[str | None, Any]]:
    return [(f"text {i} " + "word " * (i % 10), "ab"[i % 2]) for i in range(count)]


def words(texts: list[Any]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_a_good_file_has_no_problems_and_a_report_that_is_json() -> None:
    report = check(of(good()), lengths=words, limit=512, max_length=128)
    assert report.problems == []
    assert (report.rows, report.duplicates, report.conflicts, report.leakage) == (200, 0, 0, 0)
    assert (report.train_rows, report.validation_rows) == (160, 40)
    found = json.loads(json.dumps(report.to_dict()))
    assert found["balance"][0] == {"label": "a", "rows": 100, "percent": 50.0}
    assert found["columns"] == {"text": "text", "pair": None, "label": "label"}
    assert found["kind"] == "classify"
    assert "names" in found["why"]


def test_lengths_count_what_would_be_cut_by_the_smaller_limit() -> None:
    report = check(of(good()), lengths=words, limit=9, max_length=128)
    assert report.lengths is not None
    assert (report.lengths.measured, report.lengths.max, report.lengths.median) == (200, 11, 6.5)
    assert (report.lengths.max_length, report.lengths.longer, report.lengths.longer_percent) == (9, 40, 20.0)
    assert "40 of 200 measured rows (20.0 %) are longer than the base's limit of 9" in report.problems[0]
    assert "--max-length 5" in check(of(good()), lengths=words, limit=9, max_length=5).problems[0]
    assert check(of(good()), lengths=words).problems == []


def test_lengths_of_a_large_file_are_measured_on_rows_spread_over_it() -> None:
    seen: list[str] = []

    def count(texts: list[Any]) -> list[int]:
        assert len(texts) <= 1000
        seen.extend(texts)
        return words(texts)

    report = check(of([(f"{i} word", "ab"[i % 2]) for i in range(9000)]), lengths=count, sample=3000)
    places = [int(text.split()[0]) for text in seen]
    assert report.lengths is not None
    assert report.lengths.measured == 3000
    assert (places[0], places[-1]) == (0, 8999)
    assert max(b - a for a, b in itertools.pairwise(places)) <= 4


def test_pairs_are_measured_as_pairs() -> None:
    table = open_data([{"text_a": f"a {i}", "text_b": "b", "label": "xy"[i % 2]} for i in range(120)])
    report = check(table, lengths=lambda pairs: [len(a.split()) + len(b.split()) for a, b in pairs])
    assert report.lengths is not None
    assert report.lengths.max == 3


def test_duplicates_and_conflicts_are_counted_and_shown_in_file_order() -> None:
    torn = [(f"torn {i % 5}", "ab"[i // 5]) for i in range(10)]
    report = check(of([*good(), ("twice", "a"), ("twice ", "a"), *torn]))
    assert (report.duplicates, report.conflicts) == (6, 5)
    assert [(found.text, found.labels) for found in report.conflict_examples] == [
        (f"torn {i}", ("a", "b")) for i in range(3)
    ]
    assert any("5 texts are there with different labels" in problem for problem in report.problems)


def test_a_regression_shows_its_spread_and_conflicts() -> None:
    rows: list[tuple[str | None, Any]] = [(f"text {i}", i / 4) for i in range(200)]
    report = check(of([*rows, ("text 0", 7.5)]))
    assert report.balance is None
    assert report.spread is not None
    assert (report.spread.min, report.spread.max) == (0.0, 49.75)
    assert report.spread.mean == pytest.approx(sum([*(i / 4 for i in range(200)), 7.5]) / 201)
    assert report.conflict_examples[0].labels == (0.0, 7.5)


def test_leakage_into_a_given_validation_file_is_a_problem() -> None:
    report = check(of(good()), validation=of([("text 1 word", "a"), ("text 0", "b"), ("new", "a")]))
    assert (report.leakage, report.train_rows, report.validation_rows) == (2, 200, 3)
    assert any("2 validation rows have a text that is also trained on" in problem for problem in report.problems)


def test_every_other_problem_is_a_sentence() -> None:
    rare: list[tuple[str | None, Any]] = [("rare 1", "c"), ("rare 2", "c")]
    problems = check(of([*good(), *rare, (None, "a"), ("", "b"), ("no label", None)])).problems
    assert any("2 rows are without text" in problem for problem in problems)
    assert any("1 row is without label" in problem for problem in problems)
    assert any("'a' has 100 rows and 'c' 2" in problem for problem in problems)
    assert any("fewer than 8 rows: 'c' (2)" in problem for problem in problems)
    assert any("only 20 rows" in problem for problem in check(of(good(20))).problems)
    assert any(
        "repeat an earlier text" in p for p in check(of([(f"text {i % 40}", "ab"[i % 2]) for i in range(200)])).problems
    )


def sentence(i: int) -> str:
    return f"number {i} is what this one says of it"


def rows_with(count: int = 120, **columns: Any) -> list[dict[str, Any]]:
    """Rows with a text, a label, and what each function returns for the row's number."""
    own = {"text": sentence, "label": lambda i: "ab"[i % 2], **columns}
    return [{name: value(i) for name, value in own.items()} for i in range(count)]


def notes_of(dataset: Dataset) -> list[tuple[str, bool]]:
    told: list[tuple[str, bool]] = []
    send_notes(dataset, None, None, lambda event: told.append((event["text"], event.get("warning", False))))
    return told


def test_every_column_that_is_not_read_is_named_and_texts_are_a_warning() -> None:
    table = open_data(rows_with(id=str, title=lambda i: f"a title of number {i}"))
    report = check(table)
    assert report.unused == ["id", "title"]
    (problem,) = report.problems
    assert "'title' holds texts and is not read" in problem
    assert "--text 'text' --text-pair 'title'" in problem
    (plain, loud) = notes_of(table)
    assert plain == ("not read in 'the data': 'id', 'title'.", False)
    assert loud == (problem, True)


def test_a_column_is_no_warning_when_the_user_named_the_text() -> None:
    table = open_data(rows_with(title=lambda i: f"a title of number {i}"), text="text")
    assert check(table).problems == []
    assert check(table).unused == ["title"]
    assert notes_of(table) == [("not read in 'the data': 'title'.", False)]


def test_a_third_text_and_one_beside_a_kind_of_one_text_are_warned_of_without_a_flag_that_does_not_help() -> None:
    third = open_data([{"text_a": sentence(i), "text_b": sentence(i + 1), "why": sentence(i + 2), "label": "ab"[i % 2]}
                       for i in range(120)])  # fmt: skip
    (problem,) = check(third).problems
    assert "'why' holds texts" in problem
    assert "--text 'text_a' --text-pair 'text_b'" in problem
    plain = open_data(rows_with(title=lambda i: f"a title of number {i}"), kind="mlm")
    (problem,) = check(plain).problems
    assert "--text-pair" not in problem
    assert check(plain).unused == ["label", "title"]


def test_labels_that_are_spelled_in_several_ways_are_reported_with_counts_and_the_flag() -> None:
    labels = ["spam"] * 50 + ["Spam"] * 9 + ["not  spam"] * 40 + ["Not spam"] * 20 + ["N/A"] * 11 + ["none"] * 10
    table = of([(sentence(i), label) for i, label in enumerate(labels)])
    (problem,) = check(table).problems
    assert "'spam' (50), 'Spam' (9); 'not  spam' (40), 'Not spam' (20); 'N/A' (11), 'none' (10)" in problem
    assert "--merge-labels" in problem
    assert notes_of(table) == [(problem, True)]
    assert check(of(good())).problems == []


def test_a_column_of_a_pair_that_is_empty_in_some_rows_is_reported() -> None:
    rows = [
        {"text_a": sentence(i), "text_b": "" if i < 3 else sentence(i + 1), "label": "ab"[i % 2]} for i in range(120)
    ]
    table = open_data(rows)
    (problem,) = check(table).problems
    assert "3 rows have nothing in 'text_b'" in problem
    assert notes_of(table) == [(f"the data: {problem}", False)]


def test_long_texts_that_are_read_whole_are_no_problem_and_windows_are_offered_where_they_help() -> None:
    report = check(of(good()), lengths=words, limit=512, max_length=5, windowed=True)
    assert report.problems == []
    assert report.lengths is not None
    assert (report.lengths.longer, report.lengths.windowed) == (120, True)
    (problem,) = check(of(good()), lengths=words, limit=512, max_length=5, can_window=True).problems
    assert "read them whole with --windows" in problem


def test_a_file_that_cannot_be_split_is_still_reported() -> None:
    report = check(of([("one", "a"), ("two", "b")]))
    assert (report.train_rows, report.validation_rows) == (2, 0)
    assert any("nothing can be held out" in problem for problem in report.problems)
