"""What a file is taken for, and what is read of it: every kind from the shapes that people have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptree.data.split import split
from adaptree.errors import DataError, UsageError
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


def lettered(**more: Any) -> list[dict[str, Any]]:
    """Questions with a column for each choice, of which B is right, then C, A, B, …"""
    return [
        {"question": f"what is {i}", "A": f"red {i}", "B": f"blue {i}", "C": f"green {i}", "correct": "BCA"[i % 3],
         **{name: value(i) for name, value in more.items()}} for i in range(9)
    ]  # fmt: skip


def renamed(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [dict(zip([*names, *list(row)[len(names) :]], row.values(), strict=True)) for row in rows]


CORRECT: dict[str, Any] = {
    "a letter": lambda i: "BCA"[i % 3],
    "a small letter in brackets": lambda i: f"({'bca'[i % 3]})",
    "a number from 1": lambda i: str([2, 3, 1][i % 3]),
    "a number from 0": lambda i: [1, 2, 0][i % 3],
    "the text": lambda i: f" {['blue', 'green', 'red'][i % 3]} {i} ",
}


@pytest.mark.parametrize("correct", CORRECT)
@pytest.mark.parametrize(
    "names",
    [
        ("question", "A", "B", "C", "correct"),
        ("Question", "a", "b", "c", "answer"),
        ("question", "Option 1", "Option 2", "Option 3", "label"),
        ("stem", "choice_a", "choice_b", "choice_c", "answer_key"),
        ("prompt", "option1", "option2", "option3", "correct answer"),
        ("question", "1", "2", "3", "gold"),
        ("q", "opa", "opb", "opc", "ans"),
    ],
)
def test_choices_in_columns_are_read_whatever_they_and_the_right_one_are_called(
    names: tuple[str, ...], correct: str
) -> None:
    found = open_data(renamed(lettered(correct=CORRECT[correct]), *names))
    assert (found.kind, found.unused) == ("choose", [])
    assert list(found.targets(range(6))) == [1, 2, 0, 1, 2, 0]
    assert found.inputs([1]) == [{"text": "what is 1", "choices": ["red 1", "blue 1", "green 1"]}]


def test_the_right_choice_may_be_named_by_its_column_and_columns_are_in_the_order_of_their_names() -> None:
    rows = [{"option2": "b", "question": f"q {i}", "option1": "a", "answer": f"Option{1 + i % 2}"} for i in range(6)]
    found = open_data(rows)
    assert found.inputs([0]) == [{"text": "q 0", "choices": ["a", "b"]}]
    assert list(found.targets(range(4))) == [0, 1, 0, 1]


def test_a_question_and_its_label_need_no_known_name_where_the_labels_name_the_choices() -> None:
    found = open_data(renamed(lettered(id=str), "riddle", "A", "B", "C", "what it is"))
    assert (found.kind, found.columns["text"], found.columns["label"]) == ("choose", "riddle", "what it is")


def test_a_column_that_the_user_names_is_no_choice() -> None:
    found = open_data(lettered(), pair="A", label="correct")
    assert (found.kind, found.columns["pair"]) == ("classify", "A")
    with pytest.raises(DataError, match="kind choose"):
        open_data(lettered(), pair="A", kind="choose")


def test_numbers_may_be_choices_where_letters_name_them() -> None:
    rows = [{"question": f"{i} + 1 =", "A": i, "B": i + 1, "C": i + 2, "correct": "B"} for i in range(6)]
    found = open_data(rows)
    assert found.inputs([2]) == [{"text": "2 + 1 =", "choices": ["2", "3", "4"]}]
    assert list(found.targets(range(6))) == [1] * 6


def test_a_question_may_have_fewer_choices_than_others() -> None:
    rows = [{**row, "D": "" if i % 2 else f"grey {i}"} for i, row in enumerate(lettered())]
    found = open_data(rows)
    assert [len(given["choices"]) for given in found.inputs(range(4))] == [4, 3, 4, 3]
    holed = open_data([*rows, {**rows[0], "B": None}, {**rows[1], "A": " "}])
    assert holed.left_out["without text"] == 2


@pytest.mark.parametrize("name", ["context", "passage", "article", "Story", "premise"])
def test_what_a_question_is_about_is_read_with_it(name: str) -> None:
    found = open_data(lettered(**{name: lambda i: f"the story of {i}"}))
    assert found.kind == "choose"
    assert found.columns["context"] == name
    assert found.inputs([3])[0]["context"] == "the story of 3"
    assert found.texts([3]) == [("the story of 3", "what is 3")]
    named = open_data(lettered(told=lambda i: f"the story of {i}"), text="question", pair="told")
    assert named.columns["context"] == "told"
    race = [{"article": f"a {i}", "question": f"q {i}", "options": ["x", "y"], "answer": "AB"[i % 2]} for i in range(6)]
    assert open_data(race).inputs([0]) == [{"text": "q 0", "context": "a 0", "choices": ["x", "y"]}]


def test_choices_whose_right_one_stands_in_the_context_are_still_choices() -> None:
    rows = [
        {"context": f"it is {'red' if i % 2 else 'blue'} here", "question": f"what is it {i}", "A": "red", "B": "blue",
         "answer": "red" if i % 2 else "blue"} for i in range(8)
    ]  # fmt: skip
    assert open_data(rows).kind == "choose"
    plain = [{name: row[name] for name in ("context", "question", "answer")} for row in rows]
    assert open_data(plain).kind == "answer"


@pytest.mark.parametrize(
    "rows",
    [
        [{"text": f"text {i}", "a": i, "b": 3 * i, "label": i % 2} for i in range(12)],  # features, and two classes
        [{"text": f"text {i}", "a": f"x {i}", "b": f"y {i}", "label": "pq"[i % 2]} for i in range(12)],
        [{"text": f"text {i}", "b": f"x {i}", "c": f"y {i}", "label": "BC"[i % 2]} for i in range(12)],
    ],
)
def test_columns_of_one_letter_are_no_choices_unless_the_labels_say_so(rows: list[dict[str, Any]]) -> None:
    assert open_data(rows).kind == "classify"


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (PLAIN, {"kind": "mlm", "label": "label"}, "--label is not for kind mlm: it needs no labels."),
        (PLAIN, {"kind": "mlm", "pair": "label"}, "--text-pair is not for kind mlm: it reads one text a row."),
        (TAGS, {"kind": "tag", "pair": "tags"}, "--text-pair is not for kind tag"),
        (SCORES, {"label": "joy,fear", "merge_labels": True}, "--merge-labels is not for kind multioutput"),
        (COMMONSENSE, {"merge_labels": True}, "--merge-labels is not for kind choose"),
        (TAGS, {"merge_labels": True}, "--merge-labels is not for kind tag"),
    ],
)
def test_an_option_that_a_kind_cannot_use_is_refused(
    rows: list[dict[str, Any]], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        open_data(rows, **options)
    assert said in str(caught.value)
    assert "Leave out --" in str(caught.value)


def test_options_are_refused_also_where_the_kind_is_guessed_or_the_tasks(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one line\nanother line\n")
    with pytest.raises(UsageError, match="--label is not for kind mlm"):
        open_data(tmp_path / "lines.txt", label="text")
    with pytest.raises(UsageError, match="--text-pair is not for kind tag"):
        open_data(TAGS, pair="tags", like=open_data(TAGS).schema)


@pytest.mark.parametrize("kind", [None, "regress", "classify"])
def test_one_of_several_label_columns_that_is_missing_offers_a_near_name(kind: str | None) -> None:
    rows = [{"text": f"text {i}", "warmth": i / 7, "length": i % 5} for i in range(12)]
    with pytest.raises(DataError, match=r"no column 'lenght'.*Did you mean 'length'\?"):
        open_data(rows, label="warmth,lenght", kind=kind)


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


def test_a_second_text_is_refused_by_a_task_of_one_and_two_columns_of_texts_are_asked_about() -> None:
    plain = Asked("classify", {"text": "text", "pair": None, "label": "label"})
    with pytest.raises(UsageError, match=r"takes one text.*--text-pair"):
        reader_for(plain, {"text": "x", "more": "y"}, {"text": "text", "pair": "more"})
    for kind, columns in (("tag", {"text": "text", "label": "spans"}), ("mlm", {"text": "text"})):
        with pytest.raises(UsageError, match="takes one text"):
            reader_for(Asked(kind, columns), {"text": "x", "more": "y"}, {"pair": "more"})
    first = {"said": "the old lion is there", "heard": "the big wolf is not there"}
    with pytest.raises(DataError, match="'said', 'heard' hold texts"):
        reader_for(plain, first, {})
    pair = Asked("classify", {"text": "text_a", "pair": "text_b", "label": "label"})
    assert reader_for(pair, first, {})(first, 1, "f") == tuple(first.values())


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
        open_data({"text": "a"})


def test_hugging_face_datasets_are_rows_with_names_for_labels(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])})
    made = datasets.Dataset.from_list([{"text": f"text {i}", "label": i % 2} for i in range(12)], features=features)
    assert open_data(made).labels == ("neg", "pos")
    with pytest.raises(DataError, match="several parts: train, test"):
        open_data(datasets.DatasetDict({"train": made, "test": made}))
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(tmp_path / "parts")
    assert len(open_data(tmp_path / "one")) == len(open_data(tmp_path / "parts" / "test")) == 12
    with pytest.raises(DataError, match=r"'parts' has several parts: train, test.*parts/test"):
        open_data(tmp_path / "parts")
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
