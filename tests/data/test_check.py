"""What check finds, and that it says nothing about a good file."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from adaptree.data.check import check
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


def test_a_file_that_cannot_be_split_is_still_reported() -> None:
    report = check(of([("one", "a"), ("two", "b")]))
    assert (report.train_rows, report.validation_rows) == (2, 0)
    assert any("nothing can be held out" in problem for problem in report.problems)
