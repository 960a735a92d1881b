"""Labels that are spelled in several ways: reported, and merged on request, in every file that a task reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adaptree.data.labels import merged_names, plain_label, variants
from adaptree.errors import DataError, UsageError
from adaptree.kinds.reading import open_data

SPELLED = ["spam", "Spam", "spam", " SPAM ", "ham", "N/A", "none", "n/a", "ham", "-"]
ROWS = [{"text": f"text {i}", "label": label} for i, label in enumerate(SPELLED)]


def test_spellings_differ_in_case_blanks_and_ways_to_say_that_nothing_is_there() -> None:
    assert plain_label("Not  Spam") == plain_label("notspam") == plain_label("NOT\u00a0SPAM")
    assert {plain_label(label) for label in ("n/a", "NA", "None", "null", "-", "NaN")} == {"n/a"}
    assert plain_label("a") != plain_label("b")
    assert variants({"a": 2, "A": 3, "b": 1}) == [{"A": 3, "a": 2}]
    assert variants({"none": 4, "favor": 1}) == []
    assert merged_names({"a": 2, "A": 3, "b": 1}) == {"A": "A", "a": "A", "b": "b"}
    assert merged_names({"a": 2, "c": 1}, ["A", "b"]) == {"a": "A", "c": "c"}


def test_labels_stay_apart_unless_they_are_to_be_merged() -> None:
    apart = open_data(ROWS)
    assert apart.labels == ("-", "N/A", "SPAM", "Spam", "ham", "n/a", "none", "spam")
    assert apart.merged is None
    merged = open_data(ROWS, merge_labels=True)
    assert merged.labels == ("-", "ham", "spam")
    assert [merged.labels[value] for value in merged.targets(np.arange(10))] == [
        "spam", "spam", "spam", "spam", "ham", "-", "-", "-", "ham", "-",
    ]  # fmt: skip
    assert merged.counts() == {"-": 4, "ham": 2, "spam": 4}
    assert merged.merged == {"spam": {"spam": 2, "SPAM": 1, "Spam": 1}, "-": {"-": 1, "N/A": 1, "n/a": 1, "none": 1}}
    assert merged.why == "the labels are names, 3 different ones"
    assert merged.digest != apart.digest


def test_what_has_nothing_to_merge_is_read_as_ever() -> None:
    rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(10)]
    plain, merged = open_data(rows), open_data(rows, merge_labels=True)
    assert (merged.labels, merged.digest, merged.merged) == (plain.labels, plain.digest, {})


def test_a_second_file_is_merged_like_the_first() -> None:
    other: list[dict[str, Any]] = [
        {"text": "x", "label": "SpAm"},
        {"text": "y", "label": "HAM"},
        {"text": "z", "label": "nil"},
    ]
    first = open_data(ROWS, merge_labels=True)
    second = open_data(other, like=first.schema)
    assert [second.labels[value] for value in second.targets(np.arange(3))] == ["spam", "ham", "-"]
    with pytest.raises(DataError, match=r"unknown label 'SpAm'.*--merge-labels"):
        open_data(other, like=open_data(ROWS).schema)


def test_lists_of_labels_are_merged_too() -> None:
    rows = [{"text": f"text {i}", "labels": [["Red", "blue"], ["red"], ["Blue", "blue"], ["red", "n/a"]][i % 4]}
            for i in range(12)]  # fmt: skip
    merged = open_data(rows, merge_labels=True)
    assert merged.labels == ("blue", "n/a", "red")
    assert merged.targets(np.arange(4)) == [["blue", "red"], ["red"], ["blue"], ["n/a", "red"]]
    second = open_data([{"text": "x", "labels": ["RED", "green"]}], like=merged.schema)
    assert second.targets(np.arange(1)) == [["green", "red"]]
    assert second.unknown == {"green": 1}


def test_labels_that_all_are_one_are_too_few_to_learn() -> None:
    rows = [{"text": f"text {i}", "label": ["yes", "Yes"][i % 2]} for i in range(10)]
    with pytest.raises(DataError, match="only one label, 'Yes'"):
        open_data(rows, merge_labels=True)


def test_numbers_have_no_spellings_to_merge() -> None:
    rows = [{"text": f"text {i}", "label": i / 7} for i in range(10)]
    with pytest.raises(UsageError, match="--merge-labels is not for kind regress"):
        open_data(rows, merge_labels=True)
