"""What a file is taken for, and what is read of it: every kind from the shapes that people have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptree.data.split import split
from adaptree.errors import DataError
from adaptree.kinds.reading import open_data, reader_for

TAGS = [{"tokens": ["Ann", "Lee", "sings"], "tags": ["B-PER", "I-PER", "O"]}] * 3
SQUAD = {
    "version": "1.1",
    "data": [{"title": "t", "paragraphs": [{"context": "The sea is blue.", "qas": [
        {"id": "1", "question": "What is blue?", "answers": [{"text": "The sea", "answer_start": 0}]}]}]}],
}  # fmt: skip
COMMONSENSE = [{"question": f"q {i}", "choices": ["a", "b", "c"], "label": i % 3} for i in range(6)]
WINOGRANDE = [
    {"sentence": f"{i} because _ won", "option1": "Ann", "option2": "Bob", "answer": str(1 + i % 2)} for i in range(6)
]
COPA = [{"premise": f"p {i}", "choice1": "x", "choice2": "y", "label": i % 2} for i in range(6)]
TOPICS = [{"text": f"text {i}", "labels": [["a"], ["a", "b"], [], ["c", "b"]][i % 4]} for i in range(12)]
PIPED = [{"text": f"text {i}", "genre": ["a", "a|b", "c", "b|c"][i % 4]} for i in range(24)]
FLAGS = [{"text": f"text {i}", "toxic": i % 2, "rude": int(i % 3 == 0)} for i in range(12)]
SCORES = [{"text": f"text {i}", "joy": i / 7, "fear": 3 - i / 5} for i in range(12)]
PLAIN = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(12)]


@pytest.mark.parametrize(
    ("rows", "options", "kind", "said"),
    [
        (COMMONSENSE, {}, "choose", {"text": "question", "choices": "choices", "label": "label"}),
        (WINOGRANDE, {}, "choose", {"text": "sentence", "choice0": "option1", "choice1": "option2"}),
        (COPA, {}, "choose", {"text": "premise"}),
        (TOPICS, {}, "multilabel", {"text": "text", "labels": "labels", "separator": ""}),
        (PIPED, {"label": "genre"}, "multilabel", {"labels": "genre", "separator": "|"}),
        (FLAGS, {"label": "toxic,rude"}, "multilabel", {"labels": "toxic,rude", "text": "text"}),
        (SCORES, {"label": "joy,fear"}, "multioutput", {"numbers": "joy,fear"}),
        (PLAIN, {}, "classify", {"text": "text", "label": "label"}),
        (TOPICS, {"kind": "classify"}, "multilabel", {"labels": "labels"}),
        (FLAGS, {"label": "toxic,rude", "kind": "regress"}, "multioutput", {"numbers": "toxic,rude"}),
        (PLAIN, {"kind": "classify"}, "classify", {"label": "label"}),
        (PLAIN, {"kind": "mlm"}, "mlm", {"text": "text"}),
        (TAGS, {}, "tag", {}),
    ],
)
def test_the_kind_is_guessed_from_the_rows_and_the_reason_is_said(
    rows: list[dict[str, Any]], options: dict[str, Any], kind: str, said: dict[str, str]
) -> None:
    found = open_data(rows, **options)
    assert found.kind == kind
    assert found.why
    assert said.items() <= found.columns.items()
    assert len(found) == len(rows)


def test_what_is_right_is_read_however_it_is_written() -> None:
    def targets(rows: list[dict[str, Any]], **options: Any) -> list[Any]:
        return list(open_data(rows, **options).targets(np.arange(len(rows))))

    assert targets(COMMONSENSE) == [0, 1, 2, 0, 1, 2]
    assert targets(WINOGRANDE) == [0, 1] * 3  # counted from 1
    assert targets([{**row, "answer": int(row["answer"]) - 1} for row in WINOGRANDE]) == [0, 1] * 3
    assert targets(COPA) == [0, 1] * 3
    assert targets([{**row, "label": "ABC"[i % 3]} for i, row in enumerate(COMMONSENSE)]) == [0, 1, 2] * 2
    assert targets([{**row, "label": "abc"[i % 3]} for i, row in enumerate(COMMONSENSE)]) == [0, 1, 2] * 2
    named = {"label": ["A", "B"], "text": ["red", "blue"]}
    assert targets([{"question": f"q{i}", "choices": named, "answerKey": "AB"[i % 2]} for i in range(4)]) == [0, 1] * 2
    assert targets(TOPICS)[:4] == [["a"], ["a", "b"], [], ["b", "c"]]
    assert targets(PIPED, label="genre")[:4] == [["a"], ["a", "b"], ["c"], ["b", "c"]]
    assert targets(FLAGS, label="toxic,rude")[:2] == [["rude"], ["toxic"]]
    assert targets(SCORES, label="joy,fear")[0] == [0.0, 3.0]


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": f"a, b {i}", "label": ["New York, NY", "Paris, France", "Bern"][i % 3]} for i in range(30)],
        [{"text": f"t {i}", "label": ["yes", "no"][i % 2], "choice": "x"} for i in range(9)],
        [{"question": f"is it {i}", "passage": f"it is {i}", "label": ["yes", "no"][i % 2]} for i in range(9)],
        [{"question1": f"is it {i}", "question2": f"it is {i}", "label": i % 2} for i in range(9)],
    ],
)
def test_one_label_for_a_text_is_not_taken_for_more(rows: list[dict[str, Any]]) -> None:
    found = open_data(rows)
    assert found.values is not None
    assert found.kind == "classify"


def test_files_of_other_formats(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("Ann B-PER\nsings O\n\nBob B-PER\n")
    (tmp_path / "squad.json").write_text(json.dumps(SQUAD, indent=1))
    (tmp_path / "lines.txt").write_text("one line\n\nanother line\n")
    kinds = {name: open_data(tmp_path / name) for name in ("a.conll", "squad.json", "lines.txt")}
    assert {name: found.kind for name, found in kinds.items()} == {
        "a.conll": "tag",
        "squad.json": "answer",
        "lines.txt": "mlm",
    }
    assert [len(found) for found in kinds.values()] == [2, 1, 2]
    assert kinds["lines.txt"].inputs([1]) == ["another line"]


def test_json_of_another_nesting_is_still_read_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "x", "label": "a"}\n{"text": "y", "label": "b"}\n')
    assert len(open_data(tmp_path / "a.json")) == 2
    (tmp_path / "bad.json").write_text('{"version": "1", "data": [{"paragraphs": 3}]}')
    with pytest.raises(DataError, match="paragraphs"):
        open_data(tmp_path / "bad.json")


def test_a_second_file_is_read_like_the_first() -> None:
    first = open_data(PIPED, label="genre")
    second = open_data([{"text": "new", "genre": "a|zebra"}, {"text": "other", "genre": "b"}], like=first.schema)
    assert second.labels == first.labels == ("a", "b", "c")
    assert second.targets(np.arange(2)) == [["a", "zebra"], ["b"]]
    other = open_data(COMMONSENSE)
    assert open_data(COMMONSENSE[:2], like=other.schema).columns == other.columns
    numbers = open_data(SCORES, label="joy,fear")
    assert open_data(SCORES[:3], like=numbers.schema).targets(np.arange(1)) == [[0.0, 3.0]]


def test_rows_without_what_is_needed_are_left_out_and_counted() -> None:
    found = open_data([*COMMONSENSE, {"question": "q", "choices": ["a", "b", "c"], "label": None}, {"label": 1}])
    assert len(found) == 6
    assert found.left_out == {"without text": 1, "without label": 1}


def test_the_same_input_stays_on_one_side_of_a_split() -> None:
    rows = [{**row, "question": f"q {i % 10}"} for i, row in enumerate(COMMONSENSE * 10)]
    found = open_data(rows)
    train, held = split(found, seed=0)
    texts = [set(found.texts(part)) for part in (train, held)]
    assert not texts[0] & texts[1]
    assert len(train) + len(held) == 60


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([{**row, "label": 7} for row in COMMONSENSE], {"kind": "choose"}, "kind choose needs"),
        ([*COMMONSENSE, {"question": "x", "choices": ["a"], "label": 0}], {}, "row 7 of 'the data' has 1 choices"),
        (
            [*COMMONSENSE, {"question": "x", "choices": ["a", "b"], "label": "z"}],
            {},
            "row 7 of 'the data': 'z' names none",
        ),
        (
            [*SCORES, {"text": "x", "joy": "much", "fear": 1}],
            {"label": "joy,fear"},
            "'much' in column 'joy' is not a finite",
        ),
        (PLAIN, {"kind": "choose"}, "lacks what kind choose needs"),
        (PLAIN, {"kind": "answer"}, "lacks what kind answer needs"),
        (FLAGS, {"label": "toxic,none"}, "no column 'none'"),
    ],
)
def test_bad_rows_are_one_line(rows: list[dict[str, Any]], options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        open_data(rows, **options)
    assert said in str(caught.value)
    assert "docs/" not in str(caught.value)  # which an installed package does not have
    assert "\n" not in str(caught.value)


class Asked:
    name = "t"

    def __init__(self, kind: str, columns: dict[str, Any]) -> None:
        self.kind, self.columns = kind, columns


def test_a_task_reads_its_inputs_from_rows_without_a_label() -> None:
    said = open_data(COMMONSENSE).columns
    read = reader_for(Asked("choose", said), {"question": "q", "choices": ["a", "b"]}, {})
    assert read({"question": "q", "choices": ["a", "b"]}, 1, "f") == {"text": "q", "choices": ["a", "b"]}
    tagged = reader_for(Asked("tag", {"text": "text", "label": "spans"}), {"text": ""}, {})
    assert tagged({"text": ""}, 1, "f")["tokens"] == []
    with pytest.raises(DataError, match="row 2 of 'f' has nothing in 'question'"):
        read({"question": None, "choices": ["a", "b"]}, 2, "f")
    read = reader_for(
        Asked("multilabel", {"text": "a", "pair": "b", "labels": "x", "separator": "|"}), {"a": "1", "b": "2"}, {}
    )
    assert read({"a": "1", "b": "2"}, 1, "f") == ("1", "2")


def test_a_long_file_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptree.kinds.reading.REPORTED", 5)
    told: list[tuple[int, bool]] = []
    open_data(PLAIN, on_event=lambda event: told.append((event["rows"], event["done"])))
    assert told == [(5, False), (10, False), (12, True)]
    told.clear()
    open_data(PLAIN[:4], on_event=lambda event: told.append((event["rows"], event["done"])))
    assert told == []


def test_frames_are_rows(tmp_path: Path) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for frame in (pandas.DataFrame(PLAIN), polars.DataFrame(PLAIN), polars.LazyFrame(PLAIN), (row for row in PLAIN)):
        found = open_data(frame)
        assert [len(found), found.labels, found.texts([3])] == [12, ("a", "b"), ["text 3"]]
    holes = pandas.DataFrame([*PLAIN, {"text": None, "label": "a"}, {"text": "b", "label": None}])
    assert open_data(holes).left_out == {"without text": 1, "without label": 1}
    assert len(open_data(pandas.DataFrame(TOPICS))) == 12
    with pytest.raises(DataError, match="one dict"):
        open_data({"text": ["a"]})  # type: ignore[arg-type]


def test_hugging_face_datasets_are_rows_with_names_for_labels(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    made = datasets.Dataset.from_list([{"text": f"text {i}", "label": i % 2} for i in range(12)], features=features)
    assert open_data(made).labels == ("neg", "pos")
    with pytest.raises(DataError, match="several parts: train, test"):
        open_data(datasets.DatasetDict({"train": made, "test": made}))
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "parts")
    for folder in ("one", "parts"):
        assert len(open_data(tmp_path / folder)) == 12
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "dataset_info.json").write_text("{")
    with pytest.raises(DataError, match="no dataset that can be read"):
        open_data(tmp_path / "broken")


def test_a_dataset_that_cannot_be_fetched_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        assert args == ("glue", "sst2")
        assert kwargs == {"split": "validation"}
        raise ConnectionError("no way there\nmore")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(DataError, match="'hf:glue:sst2@validation' cannot be fetched: no way there"):
        open_data("hf:glue:sst2@validation")
