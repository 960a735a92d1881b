"""A dataset: any row at once, the right kind and labels, one digest per content, and a law on memory."""

from __future__ import annotations

import csv
import gc
import json
import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptree.data import buffer as module
from adaptree.data.cells import is_empty
from adaptree.errors import DataError
from adaptree.kinds.reading import open_data


def of(labels: list[Any], **options: Any) -> Any:
    return open_data([{"text": f"text {i}", "label": label} for i, label in enumerate(labels)], **options)


def failure(*args: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        open_data(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def csv_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


ROW = {"text_a": st.text(max_size=12), "text_b": st.text(max_size=12), "label": st.sampled_from(["a", "b", "ü"])}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.fixed_dictionaries(ROW), min_size=2, max_size=9), st.sampled_from([0, 10, 1 << 20]))
def test_any_row_reads_back_in_memory_and_from_the_file(rows: list[dict[str, str]], room: int) -> None:
    rows = [*rows, {"text_a": "x", "text_b": "", "label": "a"}, {"text_a": "", "text_b": "y", "label": "b"}]
    before, module.IN_MEMORY = module.IN_MEMORY, room
    try:
        table = open_data(rows, text="text_a", pair="text_b", label="label")
    finally:
        module.IN_MEMORY = before
    kept = [row for row in rows if not is_empty(row["text_a"] + row["text_b"])]
    assert table.texts(range(len(table))) == [(row["text_a"], row["text_b"]) for row in kept]
    assert [table.labels[i] for i in table.values] == [row["label"] for row in kept]
    assert table.left_out["without text"] == len(rows) - len(kept)
    assert table.texts([0])[0][1] == kept[0]["text_b"]


@pytest.mark.slow
def test_the_memory_of_a_row_is_a_few_dozen_bytes(tmp_path: Path) -> None:
    """A 60 MB file of 600,000 rows under a limit that its texts alone would break."""
    path = tmp_path / "large.csv"
    with path.open("w") as stream:
        stream.write("text,label\n")
        stream.writelines(f"{'word ' * 18}{i:08d},{'ab'[i % 2]}\n" for i in range(600_000))
    assert path.stat().st_size > 58_000_000
    program = f"""
import resource
import numpy as np
from adaptree.data import buffer
from adaptree.kinds.reading import open_data
from adaptree.data.check import check
buffer.IN_MEMORY = 1 << 20
start = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (start + (56 << 20),) * 2)
loaded = open_data({str(path)!r})
report = check(loaded)
assert len(loaded) == 600_000 and report.validation_rows == 10_000, report
assert [loaded.texts([i])[0][-8:] for i in (0, 299_999, 599_999)] == ["00000000", "00299999", "00599999"]
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("RLIMIT_DATA is enforced on Linux")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        (["b", "a", "b"], "classify", ("a", "b")),
        ([10, 9, 10], "classify", (9, 10)),
        (["10", "9", "10"], "classify", ("9", "10")),
        ([10, "9", 10], "classify", ("9", "10")),
        ([10, "b", 9], "classify", ("10", "9", "b")),
        ([True, False, True], "classify", ("false", "true")),
        ([1.0, 2.0, 10.0], "classify", ("1.0", "2.0", "10.0")),
        ([np.int64(3), np.int64(1)], "classify", (1, 3)),
        ([" a", "a ", "b"], "classify", ("a", "b")),
        ([1, 2.5, 3], "regress", ()),
        (["1", "2.5"], "regress", ()),
        ([*range(50), *range(50)], "classify", tuple(range(50))),
        ([*range(51), *range(51)], "regress", ()),
        ([f"{i}" for i in range(3000)], "regress", ()),
        ([*["1.5"] * 9, "a"], "classify", ("1.5", "a")),
    ],
)
def test_kind_and_labels_are_guessed(labels: list[Any], kind: str, expected: tuple[Any, ...]) -> None:
    table = of(labels)
    assert (table.kind, table.labels) == (kind, expected)
    assert [type(label) for label in table.labels] == [type(label) for label in expected]
    assert table.why
    if kind == "regress":
        assert table.values.dtype == np.float32
        assert table.values.tolist() == np.array(labels, dtype=np.float32).tolist()
    else:
        assert table.values.dtype == np.int32


def test_the_kind_can_be_said() -> None:
    assert of([1, 2, 1], kind="regress").values.tolist() == [1.0, 2.0, 1.0]
    assert of([1.5, 2.5, 1.5], kind="classify").labels == ("1.5", "2.5")


def test_the_digest_is_of_the_content_not_of_the_format(tmp_path: Path) -> None:
    rows = [{"text": "a, b\nc", "label": 1}, {"text": "ü  x", "label": 2}, {"text": "", "label": 1}]
    plain = csv_file(tmp_path / "a.csv", rows)
    packed = tmp_path / "a.jsonl.xz"
    packed.write_bytes(lzma.compress("\n".join(json.dumps(row) for row in rows).encode()))
    one, two, three = open_data(plain), open_data(packed), open_data(iter(rows))
    assert one.digest == two.digest == three.digest
    assert one.keys.tolist() == two.keys.tolist()
    assert (one.labels, two.labels) == (("1", "2"), (1, 2))
    assert (one.name, three.name) == ("a.csv", "the data")
    others = [[{**rows[0], "label": 2}, rows[1], rows[0]], [rows[1], rows[0]], [{**rows[0], "text": "a"}, rows[1]]]
    assert one.digest not in [open_data(other).digest for other in others]


def test_keys_ignore_white_space_and_tell_text_from_pair() -> None:
    keys = of_pairs([("a b", "c"), (" a \n b ", "c "), ("a", "b c"), ("a b c", "")]).keys
    assert keys[0] == keys[1]
    assert len(set(keys.tolist())) == 3
    assert keys.dtype == np.uint64


def of_pairs(pairs: list[tuple[str, str]]) -> Any:
    return open_data([{"text_a": a, "text_b": b, "label": "xy"[i % 2]} for i, (a, b) in enumerate(pairs)])


def test_rows_without_text_or_label_are_left_out_and_counted() -> None:
    rows = [
        {"text": "a", "label": "x"},
        {"text": " \n", "label": "x"},
        {"text": None, "label": "x"},
        {"label": "x"},
        {"text": "b", "label": ""},
        {"text": "c", "label": None},
        {"text": "d", "label": float("nan")},
        {"text": "e", "label": "y"},
    ]
    table = open_data(rows)
    assert table.texts(range(2)) == ["a", "e"]
    assert table.left_out == {"without text": 3, "without label": 3}
    assert "no row of 'the data' has a text" in failure([{"text": "a", "label": None}], text="text", label="label")


def test_half_a_surrogate_pair_does_not_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a \\ud800 b", "label": "x"}\n{"text": "c", "label": "\\udfff"}\n')
    assert open_data(path).texts([0])[0] == "a ? b"


def test_a_generator_is_read_once() -> None:
    def stream() -> Iterator[dict[str, str]]:
        for i in range(2000):
            yield {"text": f"text {i}", "label": "xyz"[i % 3]}

    table = open_data(stream())
    assert len(table) == 2000
    assert table.texts([1999])[0] == "text 1999"


def test_rows_are_the_places_of_the_examples_in_their_source() -> None:
    rows: list[dict[str, Any]] = [
        {"text": "a", "label": "x"},
        {"text": " ", "label": "x"},
        {"text": "b", "label": None},
    ]
    found = open_data([*rows, {"text": "c", "label": "y"}], text="text", label="label")
    assert found.rows.tolist() == [0, 3]
    assert found.left_out == {"without text": 1, "without label": 1}


def test_like_gives_a_second_file_the_same_labels(tmp_path: Path) -> None:
    train = open_data([{"body": "a", "Topic": 3}, {"body": "b", "Topic": 1}, {"body": "c", "Topic": 2}])
    second = open_data(csv_file(tmp_path / "val.csv", [{"body": "x", "Topic": 3}]), like=train.schema)
    assert (second.labels, second.values.tolist(), second.kind) == ((1, 2, 3), [2], "classify")
    renamed = open_data([{"text": "x", "label": 2}], like=train.schema)
    assert (renamed.columns, renamed.values.tolist()) == ({"text": "text", "pair": None, "label": "label"}, [1])
    message = failure(
        csv_file(tmp_path / "val.csv", [{"body": "x", "Topic": 3}, {"body": "y", "Topic": 33}]), like=train.schema
    )
    assert "row 3 of 'val.csv': unknown label '33'" in message
    assert "'1', '2', '3'" in message
    assert "two texts a row" in failure([{"text_a": "x", "text_b": "y", "label": 2}], like=train.schema)


def test_like_a_regression_takes_whole_numbers_too() -> None:
    train = of([0.5, 1, 2])
    assert of([1, 1], like=train.schema).values.tolist() == [1.0, 1.0]
    with pytest.raises(DataError, match="row 2"):
        of([1, "high"], like=train.schema)


@pytest.mark.parametrize("bad", ["nan", "inf", float("nan"), float("-inf"), "1e60", "1_000"])
def test_a_label_that_is_no_finite_number_is_named_with_its_row(bad: Any) -> None:
    with pytest.raises(DataError, match="row 3 of 'the data'"):
        of([0.5, 1.5, bad, 2.5], kind="regress")
    if bad != "1_000":
        with pytest.raises(DataError, match="row 3 of 'the data'"):
            of([0.5, 1.5, bad, 2.5])


def test_a_word_among_numbers_is_an_error_only_where_numbers_are_asked_for() -> None:
    assert of([*[0.5, 1.5] * 5, "high"]).kind == "classify"
    with pytest.raises(DataError, match=r"row 2 .*'high' is not a finite number"):
        of([0.5, "high"], kind="regress")


def test_labels_that_cannot_be_learnt_are_refused() -> None:
    with pytest.raises(DataError, match="only one label, 'a'"):
        of(["a"] * 5)
    with pytest.raises(DataError, match=r"1000 different labels.*--label COL"):
        of([f"name {i % 1001}" for i in range(3000)])
    with pytest.raises(DataError, match=r"1000 different labels.*--kind regress"):
        of([i % 1001 for i in range(3000)], kind="classify")
    with pytest.raises(DataError, match="19 different labels in 20 rows"):
        of(["a", "a", *[f"name {i}" for i in range(18)]])
    with pytest.raises(DataError, match="1000 different"):
        of([*range(2000), "a"])
    for several in (["a", "b"], {"a": 1}):
        with pytest.raises(DataError, match=r"row 601 of 'the data': the label is a .*one label per row"):
            of([*["a", "b"] * 300, several])


def test_a_text_that_is_a_list_is_refused() -> None:
    assert "row 2" in failure([{"text": "a", "label": 1}, {"text": ["b"], "label": 2}])


def test_no_room_for_the_texts_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "IN_MEMORY", 0)
    monkeypatch.setattr(module.tempfile, "TemporaryFile", full)
    assert "No space left on device" in failure([{"text": "a", "label": 1}, {"text": "b", "label": 2}])


def test_the_texts_file_leaves_no_name_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    table = of(["a", "b"])
    assert list(tmp_path.iterdir()) == []
    assert table.texts([1])[0] == "text 1"
    del table
    gc.collect()
