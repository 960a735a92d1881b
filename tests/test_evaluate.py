"""A bound task is evaluated by its own method, as by the function."""

from __future__ import annotations

from pathlib import Path

import pytest

import adaptree as at
from adaptree.errors import DataError
from tests.bases import tiny_base, words_csv


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> at.Bound:
    folder = tmp_path_factory.mktemp("evaluate")
    data = words_csv(folder / "words.csv")
    return at.train(data, base=tiny_base(folder / "base"), method="houlsby:4", epochs=1, baselines=False)


def test_the_method_gives_what_the_function_gives(bound: at.Bound, tmp_path: Path) -> None:
    data = words_csv(tmp_path / "test.csv", 30, seed=1)
    found = bound.evaluate(data)
    assert found == at.evaluate(bound, data)
    assert found["rows"] == 30
    assert 0 <= found["metrics"]["test"]["accuracy"] <= 1


def test_columns_can_be_named_and_unknown_labels_count_as_wrong(bound: at.Bound) -> None:
    rows = [{"said": "the lion", "about": "beast"}, {"said": "the moon", "about": "star"}]
    found = bound.evaluate(rows, text="said", label="about")
    assert found["unknown_labels"] == {"star": 1}
    with pytest.raises(DataError, match=r"no column 'abuot'.*Did you mean 'about'"):
        bound.evaluate(rows, text="said", label="abuot")


def test_a_composition_is_evaluated_too(bound: at.Bound) -> None:
    both = bound.base.bind("average(a, b)", tasks={"a": bound.task, "b": bound.task})
    rows = [{"text": "the lion", "label": "beast"}, {"text": "a saw", "label": "tool"}]
    assert both.evaluate(rows)["metrics"] == bound.evaluate(rows)["metrics"]
