from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptree import card
from adaptree.task import Record


def full(**changes: object) -> Record:
    values: dict[str, object] = {
        "name": "reviews", "version": 3, "kind": "classify", "labels": ["bad", "good"], "method": "houlsby(size=64)",
        "base": {"name": "minilm", "fingerprint": "f00d", "architecture": "bert"}, "pooling": "mean", "max_length": 128,
        "columns": {"text": "text", "pair": None, "label": "label"},
        "data": {"name": "reviews.csv", "digest": "d1e5", "rows": 1500, "train": 1200, "validation": 200, "test": 100,
                 "truncated": 7, "left_out": {"without a text": 2}, "label_counts": {"bad": 700, "good": 800}},
        "metrics": {"validation": {"accuracy": 0.98}, "test": {"accuracy": 0.97, "f1": 0.96}},
        "intervals": {"validation": {"accuracy": [0.96, 0.99]}, "test": {"accuracy": [0.93, 0.99], "f1": [0.9, 0.98]}},
        "baselines": {"majority": {"accuracy": 0.55, "f1": 0.0}, "tfidf": {"accuracy": 0.9, "f1": 0.89}},
        "parameters": {"adapters": 594_048, "norms": 9_984, "head": 770, "trained": 604_802, "base": 22_713_216,
                       "base_without_embeddings": 10_795_776},
        "trained_percent": 2.66, "seconds": 61.23, "seed": 0, "settings": {"epochs": 5, "lr": 0.001, "metric": "f1"},
        "examples": [{"text": "works | well <b>\nnow", "label": "good"}], "file_bytes": 2_424_000,
        "versions": {"adaptree": "0.1.0", "torch": "2.13.0"},
    }  # fmt: skip
    return Record(**{**values, **changes})  # type: ignore[arg-type]


def front(text: str) -> list[str]:
    return text.split("---\n")[1].splitlines()


def test_the_front_matter_is_tagged_with_base_method_and_metrics() -> None:
    lines = front(card.write(full()))
    assert lines[:2] == ["library_name: adaptree", 'base_model: "minilm"']
    assert {'- "adaptree"', '- "minilm"', '- "houlsby"', '- "accuracy"', '- "f1"'} <= set(lines)


def test_scores_stand_with_their_interval_beside_the_baselines() -> None:
    text = card.write(full())
    assert "| metric | this task | 95 % interval | majority class | TF-IDF, linear |" in text
    assert "| accuracy | 0.9700 | 0.9300 to 0.9900 | 0.5500 | 0.9000 |" in text
    assert "On the 100 rows of the test part" in text
    assert "On the validation part: accuracy 0.9800 (0.9600 to 0.9900)." in text
    assert "those of good" in text


def test_without_a_test_part_validation_is_shown() -> None:
    text = card.write(full(metrics={"validation": {"pearson": 0.8}}, kind="regress", labels=[]))
    assert "On the 200 rows of the validation part" in text
    assert "| mean |" in text
    assert "## Labels" not in text


def test_the_price_is_whole() -> None:
    text = card.write(full())
    for row in (
        "| trained in adapters | 594,048 |",
        "| trained in norms | 9,984 |",
        "| trained in head | 770 |",
        "| trained in all | 604,802 |",
        "| of the base | 2.66 % |",
        "| of the base without embeddings | 5.60 % |",
        "| bytes on disk | 2,424,000 |",
        "| seconds of training | 61.2 |",
    ):
        assert row in text


def test_labels_data_and_settings_are_there() -> None:
    text = card.write(full())
    for part in ("| bad | 700 |", "| good | 800 |", "`d1e5`", "1,200 train", "epochs: 5", "pooling: mean", "seed: 0",
                 "cut to 128 tokens: 7 texts", "left out: 2 rows without a text", "torch 2.13.0"):  # fmt: skip
        assert part in text, part


def test_of_many_labels_the_first_are_shown() -> None:
    text = card.write(full(labels=list(range(1000)), data={}))
    assert "48, 49\n\nand 950 more" in text


def test_it_says_how_to_load_it() -> None:
    text = card.write(full())
    assert 'task = at.Store()["reviews@3"]' in text
    assert 'adaptree predict reviews@3 "a text"' in text
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    compile(code, "card", "exec")
    assert '[("a text", "the text beside it")]' in card.write(full(columns={"text": "a", "pair": "b", "label": "c"}))
    assert "at.attach(model" in card.write(full(kind="attached"))


@pytest.mark.parametrize(("method", "also"), [("houlsby(size=64)", False), ("pfeiffer(size=48)", True)])
def test_it_cites_houlsby_and_where_it_is_due_pfeiffer(method: str, also: bool) -> None:
    text = card.write(full(method=method))
    assert "houlsby2019parameter" in text
    assert ("pfeiffer2021adapterfusion" in text) == also


def test_a_bare_record_has_a_card() -> None:
    text = card.write(Record(name="x", kind="attached", method="houlsby(size=8)", base={}))
    assert text.startswith("---\n")
    assert "# x\n" in text


def test_an_example_is_one_row_without_markup() -> None:
    assert r"| works \| well &lt;b&gt; now | good |" in card.write(full())
    pair = card.write(full(examples=[{"text": "one", "pair": "two", "label": 1}]))
    assert "| one · two | 1 |" in pair


@given(st.text())
def test_no_text_breaks_out_of_its_cell(text: str) -> None:
    shown = card.plain(text)
    assert len(shown.splitlines()) <= 1
    assert not re.search(r"(?<!\\)(\\\\)*[|`\[*]", shown)
    assert "<" not in shown
    shown.encode()


def test_a_long_text_is_cut_before_it_is_escaped() -> None:
    assert card.plain("word " * 100) == ("word " * 24)[:119].rstrip() + "…"
    assert card.plain("|" * 500) == r"\|" * 119 + "…"


@given(st.text(max_size=30))
def test_any_base_name_is_valid_in_the_front_matter(name: str) -> None:
    line = front(card.write(full(base={"name": name})))[1]
    assert json.loads(line.removeprefix("base_model: ")) == name
