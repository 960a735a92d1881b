"""What people have, read as it is: fastText, tabs in a .txt, folders of texts, nested JSON, Label Studio, Excel."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptree.data.parts import own_parts
from adaptree.data.paths import with_paths
from adaptree.data.read import name_of, names, rows, suffix
from adaptree.data.stem import stem
from adaptree.errors import DataError
from adaptree.kinds.reading import open_data


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def contents(source: Any, **options: Any) -> list[dict[str, Any]]:
    return [row for _, row in rows(source, **options)]


def notes(source: Any, **options: Any) -> list[str]:
    told: list[str] = []
    list(rows(source, on_event=lambda event: told.append(event["text"]), **options))
    return told


# fastText


@pytest.mark.parametrize("name", ["a.txt", "a.train", "a.ft", "a.valid", "a.test", "a.ft.txt", "a.train.gz"])
def test_fasttext_lines_are_texts_with_labels(tmp_path: Path, name: str) -> None:
    lines = "".join(f"__label__{'ab'[i % 2]} some words, number {i}\n" for i in range(12))
    path = tmp_path / name
    path.write_bytes(gzip.compress(lines.encode()) if name.endswith(".gz") else lines.encode())
    assert contents(path)[1] == {"text": "some words, number 1", "label": "b"}
    data = open_data(path)
    assert (data.kind, data.labels, len(data)) == ("classify", ("a", "b"), 12)


def test_fasttext_lines_with_several_labels_are_of_kind_multilabel(tmp_path: Path) -> None:
    one = "__label__fruit an apple\n\n__label__tool a saw\n" * 300
    path = write(tmp_path / "a.txt", one + "__label__fruit __label__tool an apple and a saw\nno label\n")
    found = contents(path)
    assert found[0] == {"text": "an apple", "label": ["fruit"]}
    assert found[-2:] == [
        {"text": "an apple and a saw", "label": ["fruit", "tool"]}, {"text": "no label", "label": None},
    ]  # fmt: skip
    data = open_data(path)
    assert (data.kind, data.labels, data.left_out["without label"]) == ("multilabel", ("fruit", "tool"), 1)


def test_a_train_file_that_is_not_fasttext_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'a.train' is not in fastText's format.*__label__good"):
        contents(write(tmp_path / "a.train", "some text\n"))


# tabs and tags in a .txt


def test_a_tabbed_txt_is_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text\tlabel\n" + "".join(f"text {i}\t{'ab'[i % 2]}\n" for i in range(12)))
    assert contents(path)[0] == {"text": "text 0", "label": "a"}
    data = open_data(path)
    assert (data.kind, data.labels) == ("classify", ("a", "b"))


@pytest.mark.parametrize(
    "lines",
    [
        ["a stray\ttab", "is no table", "of any kind"],
        ["\tevery line", "\tis indented", "\tby a tab"],
        ["one line\tonly"],
        ["Name:\tvalue", *["plain text goes on here"] * 20],
        ["plain text goes on here", *["with\ttabs"] * 3],
    ],
)
def test_text_with_tabs_in_it_stays_text(tmp_path: Path, lines: list[str]) -> None:
    path = write(tmp_path / "a.txt", "\n".join(lines) + "\n")
    assert [row["text"] for row in contents(path)] == lines
    assert open_data(path).kind == "mlm"


def test_a_row_of_a_tabbed_txt_that_lacks_a_field_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "text\tlabel\n" + "some text\ta\n" * 20 + "broken\n")
    with pytest.raises(DataError, match=r"row 22 of 'a.txt' has 1 field"):
        contents(path)


@pytest.mark.parametrize("separator", ["\t", " "])
def test_tagged_words_in_a_txt_are_sentences(tmp_path: Path, separator: str) -> None:
    lines = ["EU NNP B-ORG", "rejects VBZ O", "", "Peter NNP B-PER", "Blackburn NNP I-PER", ""]
    path = write(tmp_path / "a.txt", "\n".join(lines * 5).replace(" ", separator))
    assert contents(path)[1] == {"tokens": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]}
    assert open_data(path).kind == "tag"


# folders


def imdb(folder: Path, count: int = 4) -> Path:
    for label, text in (("pos", "a great film"), ("neg", "a dull film")):
        for i in range(count):
            write(folder / label / f"{i}_{i}.txt", f"{text}, number {i}\nand more\n")
    write(folder / "urls_pos.txt", "http://…\n")
    return folder


def test_a_folder_of_texts_for_each_label_is_a_dataset(tmp_path: Path) -> None:
    folder = imdb(tmp_path / "films", 6)
    found = contents(folder)
    assert len(found) == 12
    assert found[0] == {"text": "a dull film, number 0\nand more", "label": "neg", "file": "neg/0_0.txt"}
    assert found[1]["label"] == "pos"  # in turn: the first rows show every label
    data = open_data(folder)
    assert (data.name, data.kind, data.labels, data.columns["text"]) == ("films", "classify", ("neg", "pos"), "text")
    assert names(folder) == ["text", "label", "file"]
    (folder / "pos" / "0_0.txt").write_bytes(b"m\xc3de")
    with pytest.raises(DataError, match=r"'0_0.txt' is not utf-8"):
        contents(folder)


def test_texts_without_a_label_are_left_out_and_said(tmp_path: Path) -> None:
    folder = imdb(tmp_path / "train")
    write(folder / "unsup" / "1_0.txt", "who knows\n")
    assert {row["label"] for row in contents(folder)} == {"pos", "neg"}
    assert "'unsup' in 'train' is left out" in notes(folder)[0]


def test_a_folder_with_train_and_test_inside_has_its_own_parts(tmp_path: Path) -> None:
    imdb(tmp_path / "films" / "train")
    imdb(tmp_path / "films" / "test")
    told: list[str] = []
    found = own_parts(str(tmp_path / "films"), on_event=lambda event: told.append(event["text"]))
    assert found == (tmp_path / "films" / "train", None, tmp_path / "films" / "test")
    assert told == ["'films' has several parts: test, train. Used as such: train, test."]
    assert own_parts(tmp_path / "films", test="other.csv")[2] == "other.csv"
    with pytest.raises(DataError, match=r"several parts: test, train.*Give one of them: .*films/test"):
        contents(tmp_path / "films")


def test_a_dataset_dict_in_memory_has_its_own_parts() -> None:
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list(PLAIN)
    parts = datasets.DatasetDict({"training": one, "dev": one, "extra": one})
    told: list[str] = []
    assert own_parts(parts, on_event=lambda event: told.append(event["text"])) == (one, one, None)
    assert told == [
        "the dataset has several parts: training, dev, extra. Used as such: training, dev; not extra."
    ]  # fmt: skip
    with pytest.raises(DataError, match=r'none is called train.*dataset\["dev"\]'):
        own_parts(datasets.DatasetDict({"dev": one, "extra": one}))
    assert contents(datasets.DatasetDict({"train": one})) == PLAIN


def test_a_folder_of_other_things_offers_its_files(tmp_path: Path) -> None:
    write(tmp_path / "docs" / "readme.txt", "hello")
    write(tmp_path / "a.csv", "text,label\n")
    with pytest.raises(DataError, match=r"is a folder.*a\.csv"):
        contents(tmp_path)


def test_parts_of_plain_text_are_not_taken_for_labels(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a.txt", "hello")
    write(tmp_path / "test" / "b.txt", "hello")
    with pytest.raises(DataError, match="is a folder"):
        contents(tmp_path)


# nested JSON


def test_dotted_names_are_paths_into_nested_rows(tmp_path: Path) -> None:
    items = [
        {"data": {"text": f"text {i}"}, "meta": {"label": "ab"[i % 2]}, "annotations": [{"label": "xy"[i % 2]}]}
        for i in range(12)
    ]
    for path in (write(tmp_path / "a.json", items), write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, items)))):
        data = open_data(path, text="data.text", label="meta.label")
        assert (data.kind, data.labels, data.texts([3])) == ("classify", ("a", "b"), ["text 3"])
        assert open_data(path, text="data.text", label="annotations.0.label").labels == ("x", "y")
        assert len(open_data(path, like=data.schema)) == 12
        with pytest.raises(DataError, match=r"the columns are 'data'.*--text data\.text --label …"):
            open_data(path)
        with pytest.raises(DataError, match=r"no column 'data\.body'"):
            open_data(path, text="data.body", label="meta.label")


def test_a_column_with_dots_in_its_name_comes_before_a_path(tmp_path: Path) -> None:
    row = {"a.b": 1, "a": {"b": 2, "c.d": 3, "e": [4, {"f": 5}]}}
    found = with_paths(row, ["a.b", "a.c.d", "a.e.0", "a.e.1.f", "a.e.2", "a.e.x", "a.z", "z.a"])
    assert found == {**row, "a.c.d": 3, "a.e.0": 4, "a.e.1.f": 5}
    path = write(tmp_path / "a.csv", "my.text,my.label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(12)))
    assert open_data(path, text="my.text", label="my.label").labels == ("a", "b")


# Label Studio


def item(text: str, *results: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": 1, "data": {"text": text}, "annotations": [{"id": 1, "result": list(results)}], **more}


def chosen(*choices: str, question: str = "verdict") -> dict[str, Any]:
    return {"from_name": question, "to_name": "text", "type": "choices", "value": {"choices": list(choices)}}


def marked(start: int, end: int, text: str, label: str) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": text, "labels": [label]}
    return {"from_name": "ner", "to_name": "text", "type": "labels", "value": value}


def test_label_studio_choices_are_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [item(f"text {i}", chosen("ab"[i % 2])) for i in range(12)])
    assert contents(path)[1] == {"text": "text 1", "label": "b"}
    assert (open_data(path).kind, open_data(path).labels) == ("classify", ("a", "b"))
    assert open_data(path, label="verdict").columns["label"] == "verdict"
    raw = open_data(path, text="data.text", label="annotations.0.result.0.value.choices.0")
    assert raw.labels == ("a", "b")


def test_label_studio_several_choices_are_multilabel_even_if_they_come_late(tmp_path: Path) -> None:
    items = [item(f"text {i}", chosen("ab"[i % 2])) for i in range(600)]
    data = open_data(write(tmp_path / "a.json", [*items, item("both", chosen("a", "b")), item("none")]))
    assert (data.kind, data.labels, len(data)) == ("multilabel", ("a", "b"), 601)


def test_label_studio_reads_the_first_annotation_that_counts(tmp_path: Path) -> None:
    both = item("text", chosen("a"))
    both["annotations"] = [
        {"result": [chosen("c")], "was_cancelled": True}, {"result": [chosen("a")]},
        {"result": [chosen("b")], "ground_truth": True},
    ]  # fmt: skip
    path = write(tmp_path / "a.json", [both, item("other", chosen("a"), chosen("yes", question="sure"))])
    assert contents(path) == [
        {"text": "text", "verdict": "b", "sure": None}, {"text": "other", "verdict": "a", "sure": "yes"},
    ]  # fmt: skip
    assert "1 items were annotated more than once" in notes(path)[0]


def test_label_studio_spans_are_tags(tmp_path: Path) -> None:
    items = [
        item("Ada met Bob", marked(0, 3, "Ada", "PER"), marked(8, 11, "Bob", "PER")),
        item("Ada met Bob", marked(0, 2, "Ada", "PER")),  # the last character, as old versions have it
        item("😀 Ada", marked(3, 6, "Ada", "PER")),  # counted as browsers do
    ]
    path = write(tmp_path / "a.json", items)
    found = [row["label"] for row in contents(path)]
    assert found[0] == [{"start": 0, "end": 3, "label": "PER"}, {"start": 8, "end": 11, "label": "PER"}]
    assert found[1] == [{"start": 0, "end": 3, "label": "PER"}]
    assert found[2] == [{"start": 2, "end": 5, "label": "PER"}]
    assert (open_data(path).kind, open_data(path).labels) == ("tag", ("B-PER", "O"))
    with pytest.raises(DataError, match=r"row 1 of 'b.json': the span 'Eve' is not at characters 0 to 3"):
        contents(write(tmp_path / "b.json", [item("Ada met Bob", marked(0, 3, "Eve", "PER"))]))


def test_label_studio_json_min(tmp_path: Path) -> None:
    about = {"annotator": 1, "annotation_id": 7, "created_at": "…", "updated_at": "…", "lead_time": 2.5}
    plain = [{"text": f"text {i}", "id": i, "verdict": "ab"[i % 2], **about} for i in range(12)]
    path = write(tmp_path / "a.json", plain)
    assert contents(path)[0] == {"text": "text 0", "id": 0, "verdict": "a"}
    assert open_data(path).labels == ("a", "b")
    several = [*plain, {"text": "both", "id": 12, "verdict": {"choices": ["a", "b"]}, **about}]
    data = open_data(write(tmp_path / "b.json", several))
    assert (data.kind, data.labels, len(data)) == ("multilabel", ("a", "b"), 13)
    span = {"start": 0, "end": 3, "text": "Ada", "labels": ["PER"]}
    tagged = write(tmp_path / "c.json", [{"text": "Ada met Bob", "id": 1, "ner": [span], **about}])
    assert open_data(tagged).kind == "tag"


def test_annotations_of_other_tools_are_left_as_they_are(tmp_path: Path) -> None:
    rows_ = [{"data": {"text": "a"}, "annotations": [{"label": "x"}]}]
    assert contents(write(tmp_path / "a.json", rows_)) == rows_


# Excel


def workbook(path: Path, **sheets: list[list[Any]]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, lines in sheets.items():
        sheet = book.create_sheet(title)
        for line in lines:
            sheet.append(line)
    book.save(path)
    return path


LINES = [["text", "label", "when"], *([f"text {i}", i % 2, None] for i in range(12))]


def test_excel_rows_are_those_of_the_first_sheet_with_data(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", Empty=[], Reviews=[[], *LINES], Other=[["text"], ["b"]])
    assert next(iter(rows(path))) == (3, {"text": "text 0", "label": 0, "when": None})
    assert "the sheet 'Reviews' is read. There are more: a.xlsx#Other" in notes(path)[0]
    data = open_data(path)
    assert (data.kind, data.labels, data.texts([0])) == ("classify", (0, 1), ["text 0"])


def test_an_excel_sheet_is_chosen_by_name(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", Reviews=LINES, Other=[["text"], ["b"]])
    assert contents(f"{path}#Other") == [{"text": "b"}]
    assert notes(f"{path}#Other") == []
    assert (name_of(f"{path}#Other"), suffix(Path(f"{path}#Other"))) == ("a.xlsx#Other", ".xlsx")
    assert (stem(f"{path}#Other"), stem(path), names(f"{path}#Other")) == ("a-other", "a", ["text"])
    with pytest.raises(DataError, match=r"'a.xlsx' has no sheet 'Othr'.*Did you mean 'Other'\?"):
        contents(f"{path}#Othr")
    with pytest.raises(DataError, match=r"no such file.*Did you mean 'a.xlsx'"):
        contents(tmp_path / "b.xlsx#Other")


def test_excel_tables_may_lack_a_header_or_a_name(tmp_path: Path) -> None:
    lines = [[f"this is text {i}", "ab"[i % 2]] for i in range(8)]
    assert contents(workbook(tmp_path / "a.xlsx", A=lines))[0] == {"column1": "this is text 0", "column2": "a"}
    path = workbook(tmp_path / "b.xlsx", A=[["text", None], ["a", 1], ["b", 2]])
    assert contents(path) == [{"text": "a", "column2": 1}, {"text": "b", "column2": 2}]
    with pytest.raises(DataError, match=r"'c.xlsx' is empty"):
        contents(workbook(tmp_path / "c.xlsx", A=[]))


def test_without_openpyxl_excel_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(DataError, match=r"needs openpyxl.*pip install 'adaptree\[excel\]'"):
        contents(write(tmp_path / "a.xlsx", "PK"))


# in Python

PLAIN = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(12)]


def test_dicts_of_lists_tuples_and_arrow_tables_are_rows() -> None:
    arrow = pytest.importorskip("pyarrow")
    lists = {"text": [row["text"] for row in PLAIN], "label": tuple(row["label"] for row in PLAIN)}
    table = arrow.Table.from_pylist(PLAIN)
    batch = arrow.RecordBatch.from_pylist(PLAIN)
    reader = arrow.RecordBatchReader.from_batches(batch.schema, [batch])
    pairs = [(row["text"], row["label"]) for row in PLAIN]
    for source in (lists, pairs, iter(pairs), table, batch, reader):
        assert contents(source) == PLAIN
    assert contents([("a", "b", 1)]) == [{"text": "a", "text_pair": "b", "label": 1}]
    assert open_data(pairs).labels == ("a", "b")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"text": ["a"], "label": ["x", "y"]}, "'text' has 1, 'label' has 2"),
        ({"text": "a", "label": "x"}, "one dict"),
        ({}, "one dict"),
        ({"text": [], "label": []}, "no rows"),
        ([("a",)], "row 1 is a tuple"),
        ([["a", "x"], ["b", "y"]], "row 1 is a list"),  # it may be texts and labels, or rows
    ],
)
def test_odd_data_in_memory_is_refused(source: Any, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        contents(source)
