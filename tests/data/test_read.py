"""Files as rows: every format gives the same rows, and every broken file one clear line."""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from pathlib import Path
from typing import Any

import pytest

from adaptree.data import files, jsons
from adaptree.data.read import rows
from adaptree.errors import DataError

ROWS = [
    {"text": "good, really", "label": "a"},
    {"text": 'two\nlines "quoted"', "label": "b"},
    {"text": "ü", "label": "a"},
]


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix)
    path.write_bytes(pack(data) if pack else data)
    return path


def contents(path: Path) -> list[dict[str, Any]]:
    return [row for _, row in rows(path)]


def failure(path: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        list(rows(path, **options))
    message = str(caught.value)
    assert "\n" not in message
    return message


CSV = 'text,label\n"good, really",a\n"two\nlines ""quoted""",b\nü,a\n'
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.mark.parametrize("packed", ["", ".gz", ".xz", ".GZ"])
@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".csv", CSV),
        (".csv", CSV.replace("\n", "\r\n").replace("two\r\n", "two\n")),
        (".csv", CSV.replace("text,label", "text;label").replace(",a", ";a").replace(",b", ";b")),
        (".tsv", CSV.replace("text,label", "text\tlabel").replace(",a", "\ta").replace(",b", "\tb")),
        (".jsonl", LINES),
        (".ndjson", LINES.replace("\n", "\n\n")),
        (".json", LINES),
        (".json", json.dumps(ROWS)),
        (".json", json.dumps(ROWS, indent=2)),
    ],
)
def test_every_format_gives_the_same_rows(tmp_path: Path, ending: str, content: str, packed: str) -> None:
    if packed == ".GZ":
        path = tmp_path / f"data{ending}.GZ"
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path = write(tmp_path / f"data{ending}{packed}", content)
    assert contents(path) == ROWS


def test_parquet_gives_the_same_rows_with_their_index(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(ROWS), tmp_path / "data.parquet", row_group_size=2)
    assert list(rows(tmp_path / "data.parquet")) == [(1, ROWS[0]), (2, ROWS[1]), (3, ROWS[2])]


def test_dicts_of_a_list_or_a_generator_are_rows_too() -> None:
    assert list(rows(ROWS)) == list(rows(row for row in ROWS)) == [(1, ROWS[0]), (2, ROWS[1]), (3, ROWS[2])]
    assert "row 2 is a str" in failure([{"text": "a"}, "b"])
    assert "row 1" in failure([{1: "a"}])
    assert "no rows" in failure([])


def test_the_number_is_the_line_where_the_row_begins(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\n"one\nmore",a\n\ntwo,b\n')
    assert [number for number, _ in rows(path)] == [2, 5]
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\n\n{"text": "two"}\n')
    assert [number for number, _ in rows(path)] == [1, 3]


def test_byte_order_mark_nul_bytes_and_huge_fields_are_read(tmp_path: Path) -> None:
    huge = "x" * 3_000_000
    path = write(tmp_path / "a.csv", b"\xef\xbb\xbftext,label\n" + f"a\0b,1\n{huge},2\n".encode())
    assert contents(path) == [{"text": "a\0b", "label": "1"}, {"text": huge, "label": "2"}]
    path = write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + b'{"text": "a"}\n')
    assert contents(path) == [{"text": "a"}]


def test_a_tsv_that_does_not_quote_keeps_its_stray_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"Hm\t1\n"Yes" he said\t0\nplain "x"\t1\n')
    assert [row["text"] for row in contents(path)] == ['"Hm', '"Yes" he said', 'plain "x"']


def test_a_json_array_is_read_in_pieces_smaller_than_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsons, "CHUNK", 7)
    many = [{"text": f'é "{i}" \\ \n' * (i % 5), "label": i, "odd": [True, None, -1.5e3]} for i in range(50)]
    assert contents(write(tmp_path / "a.json", json.dumps(many, indent=1))) == many
    assert "line 3" in failure(write(tmp_path / "b.json", '[\n{"text": "a"},\n{"text": oops},\n{"text": "b"}]'))
    assert "broken JSON" in failure(write(tmp_path / "c.json", json.dumps(many)[:-30]))


def test_another_encoding_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\nmüde,1\n".encode("latin-1"))
    assert next(rows(path, encoding="latin-1"))[1]["text"] == "müde"
    path = write(tmp_path / "b.csv", "text,label\nmüde,1\n".encode("utf-16"))
    assert next(rows(path, encoding="utf-16"))[1]["text"] == "müde"
    assert "--encoding utf-16" in failure(path)
    assert "no-such-code" in failure(path, encoding="no-such-code")


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_an_undecodable_byte_is_named_with_its_place(
    tmp_path: Path, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"text,label\n" + "ü,1\n".encode() * 5000 + b"m\xc3de,1\n"
    at = content.index(b"\xc3de")
    for chunk in (at + 1, at, 5, 1 << 20):  # the first ends within what could have become a character
        monkeypatch.setattr(files, "CHUNK", chunk)
        message = failure(write(tmp_path / f"a.csv{packed}", content))
        assert "0xc3" in message
        assert f"offset {at:,}" in message
        assert "line 5,002" in message
        assert "--encoding latin-1" in message


def test_a_missing_file_offers_a_near_name_and_a_folder_its_files(tmp_path: Path) -> None:
    write(tmp_path / "reviews.csv", CSV)
    write(tmp_path / "notes.md", "no data")
    assert "Did you mean 'reviews.csv'?" in failure(tmp_path / "revews.csv")
    assert "no folder" in failure(tmp_path / "none" / "a.csv")
    message = failure(tmp_path)
    assert "is a folder" in message
    assert "reviews.csv" in message
    assert "notes.md" not in message
    assert "cannot read" in failure("x" * 5000)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv.gz", "", "is empty"),
        ("a.csv", "\n\n", "is empty"),
        ("a.jsonl", "", "is empty"),
        ("a.csv", "text,label\n", "no rows"),
        ("a.jsonl", "\n", "no rows"),
        ("a.json", "[]", "no rows"),
        ("a.xls", "x", "Known: .csv, .tsv"),
        ("a.xlsx.gz", "x", "Known: .csv, .tsv"),
        ("a.xlsx", "x", "damaged or no Excel workbook"),
        ("a", "x", "Known: .csv, .tsv"),
        ("a.gz", "x", "Known: .csv, .tsv"),
        ("a.parquet.gz", "x", "Known: .csv, .tsv"),
        ("a.csv", "text,label\na,1\n\nb\n", "row 4 of 'a.csv' has 1 field, the header has 2"),
        ("a.tsv", "text\tlabel\na\t1\t2\n", "row 2 of 'a.tsv' has 3 fields, the header has 2"),
        ("a.csv", 'text,label\na,1\n"open,1\n', "row 3 of 'a.csv' cannot be read"),
        ("a.csv", 'text,label\n"a" b,1\n', "row 2 of 'a.csv' cannot be read"),
        ("a.csv", "text,label,text\na,1,b\n", "two columns of 'a.csv' are named 'text'"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', "line 2 of 'a.jsonl' is broken JSON"),
        ("a.jsonl", '{"text": "a"}\n["b", 1]\n', "row 2 of 'a.jsonl' is a JSON array, not an object"),
        ("a.json", '[{"text": "a"}, "b"]', "row 2 of 'a.json' is a JSON string"),
        ("a.json", '[{"text": "a"}', "broken JSON"),
        ("a.json", '{\n "text": "a"\n}', "line 1 of 'a.json' is broken JSON"),
        ("a.jsonl", "[" * 100_000, "broken JSON"),
        ("a.parquet", "PAR1 no", "damaged or no parquet"),
    ],
)
def test_a_broken_file_gets_one_clear_line(tmp_path: Path, name: str, content: str, expected: str) -> None:
    if name in ("a.parquet", "a.xlsx"):
        pytest.importorskip("pyarrow" if name == "a.parquet" else "openpyxl")
    assert expected in failure(write(tmp_path / name, content))


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_cut_or_damaged_archive_is_said_to_be_so(tmp_path: Path, ending: str, pack: Any) -> None:
    whole = pack("".join(f"{i * 7919},{i}\n" for i in range(-1, 20_000)).encode())
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes(b ^ 255 for b in whole[middle : middle + 64]) + whole[middle + 64 :]
    for data in (whole[:-40], damaged, b"not packed at all"):
        path = tmp_path / f"a.csv{ending}"
        path.write_bytes(data)
        assert "damaged or cut off" in failure(path)


def test_a_cut_parquet_file_is_said_to_be_so(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.Table.from_pylist(ROWS * 1000), path)
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged" in failure(path)
    twice = arrow.Table.from_arrays([arrow.array(["a"]), arrow.array(["b"])], names=["text", "text"])
    parquet.write_table(twice, path)
    assert "two columns" in failure(path)


def test_without_pyarrow_parquet_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'adaptree[parquet]'" in failure(write(tmp_path / "a.parquet", "PAR1"))


def test_an_open_quote_cannot_swallow_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_ROW", 2 << 20)
    message = failure(write(tmp_path / "a.csv", 'text,label\nfine,0\n"open,1\n' + "filler,1\n" * 400_000))
    assert "more than 2 MB, behind row 2" in message
    assert "left open" in message


def test_rows_are_streamed_and_the_file_is_not_read_ahead(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n' * 200_000 + "broken\n")
    stream = rows(path)
    assert next(stream) == (1, {"text": "a"})
