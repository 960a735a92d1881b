"""A small file that unpacks to gigabytes is refused in one line, and takes no gigabyte of memory to find out."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

LARGEST = 420  # MB, of which Python with numpy, pyarrow or openpyxl takes a good 100
PROGRAM = """
import json, sys
from adaptree.data.read import rows
from adaptree.errors import DataError
found = []
for path in sys.argv[1:]:
    count = 0
    try:
        for _ in rows(path):
            count += 1
        found.append((None, count))
    except DataError as error:
        found.append((str(error), count))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([found, int(peak.split()[1]) // 1024]))
"""
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured with /proc")


def read(*paths: Path) -> list[tuple[str | None, int]]:
    """Read small files in a process of its own; return the error of each, and the number of rows before it."""
    assert all(path.stat().st_size < 8 << 20 for path in paths)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, paths)], capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found, peak = json.loads(done.stdout)
    assert peak < LARGEST, f"{peak} MB"
    assert all(said is None or "\n" not in said for said, _ in found)
    return [(said, count) for said, count in found]


def bomb(path: Path, start: bytes, filler: bytes, gigabytes: int = 2) -> Path:
    """Write a packed file: its start, and then as much of the filler as `gigabytes` says."""
    pack = gzip.compress if path.suffix == ".gz" else lzma.compress
    piece = filler * ((8 << 20) // len(filler))
    path.write_bytes(pack(start) + pack(piece) * (gigabytes * 128))
    return path


ENDLESS = {
    "line.csv.gz": (b"text,label\nfine,0\n", b"x"),
    "line.csv.xz": (b"text,label\nfine,0\n", b"x"),
    "field.csv.gz": (b'text,label\nfine,0\n"open', b"filler,1\n"),
    "row.csv.gz": (b'text,label\nfine,0\n"a', b'\n","a'),  # short lines, short fields, and no end of the row
    "fields.tsv.gz": (b"text\tlabel\nfine\t0\n", b"ab\t"),
    "header.csv.gz": (b"", b"ab,"),
    "line.txt.gz": (b"fine\n", b"x"),
    "labels.train.gz": (b"__label__a fine\n", b"__label__b "),
    "string.jsonl.gz": (b'{"text": "fine"}\n{"text": "', b"x"),
    "array.json.gz": (b'[{"text": "fine"}, {"text": [', b"[],"),
    "squad.json.gz": (b'{"data": [{"question": "fine?"}, {"paragraphs": ["', b"x"),
    "sentence.conll.gz": (b"word O\n\n", b"w" * 60 + b" O\n"),
}


@pytest.mark.slow
def test_what_never_ends_is_refused(tmp_path: Path) -> None:
    found = read(*(bomb(tmp_path / name, *parts) for name, parts in ENDLESS.items()))
    for name, (said, count) in zip(ENDLESS, found, strict=True):
        assert said is not None
        assert f"'{name}' has a row of more than 8 MB" in said
        assert count == (0 if name in ("header.csv.gz", "labels.train.gz") else 1)


@pytest.mark.slow
def test_a_small_file_of_very_many_rows_is_refused(tmp_path: Path) -> None:
    names = ("rows.csv.gz", "rows.csv.xz")
    row = b"a great phone " * 20 + b",yes\n"
    for said, count in read(*(bomb(tmp_path / name, b"text,label\n", row, gigabytes=1) for name in names)):
        assert said is not None
        assert "unpacks to more than 50 times its size" in said
        assert "unpack it first" in said
        assert count > 100_000


def test_xz_cannot_ask_for_any_amount_of_memory(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 1536 << 20}]
    path = tmp_path / "a.csv.xz"
    packer = lzma.LZMACompressor(filters=[{**filters[0], "dict_size": 1 << 20}])
    whole = bytearray(packer.compress(b"text,label\nfine,0\n") + packer.flush())
    at = whole.index(b"\x21\x01", 12) + 2  # LZMA2's id, and one byte that says how large its dictionary is
    whole[at] = 39  # 3 GB
    import binascii

    header = slice(12, 12 + (whole[12] + 1) * 4 - 4)
    whole[header.stop : header.stop + 4] = binascii.crc32(whole[header]).to_bytes(4, "little")
    path.write_bytes(whole)
    ((said, _),) = read(path)
    assert said is not None
    assert "unpacking 'a.csv.xz' would take more than 256 MB of memory.  Compress it again: xz -6" in said


def test_xz_in_several_streams_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.xz"
    path.write_bytes(lzma.compress(b"text,label\na,1\n") + b"\0" * 8 + lzma.compress(b"b,2\n") + b"\0" * 4)
    assert read(path) == [(None, 2)]


SHEET = '<?xml version="1.0"?><worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'


OVERRIDE = (
    '<Override PartName="/xl/worksheets/texts.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sharedStrings+xml"/></Types>'
)
PARTS = [
    ("xl/sharedStrings.xml", "<sst>", "<si/>", 6_000_000),
    ("xl/worksheets/sheet1.xml", f'{SHEET}<row r="1">', "<c/>", 3_000_000),
    ("xl/worksheets/sheet1.xml", f'{SHEET}<row r="1"><c t="inlineStr"><is><t>', "x", 10_000_000),
    ("xl/worksheets/texts.xml", "<sst>", "<si/></row>", 3_000_000),  # they need not be where they are expected
    ("xl/styles.xml", "<styleSheet>", "<a/>", 5_000_000),
]


def test_a_workbook_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    plain = tmp_path / "plain.xlsx"
    book = openpyxl.Workbook()
    book.active.append(["text", "label"])
    book.save(plain)
    paths = []
    for number, (part, start, filler, count) in enumerate(PARTS):
        paths.append(tmp_path / f"{number}.xlsx")
        with zipfile.ZipFile(plain) as old, zipfile.ZipFile(paths[-1], "w", 8, compresslevel=1) as new:
            for info in old.infolist():
                if info.filename != part:
                    new.writestr(info, old.read(info).replace(b"</Types>", OVERRIDE.encode()))
            with new.open(part, "w") as stream:
                stream.write(start.encode())
                for _ in range(10):
                    stream.write(filler.encode() * (count // 10))
    for path, (part, *_), (said, _count) in zip(paths, PARTS, read(*paths), strict=True):
        assert said is not None
        assert f"'{path.name}' would take too much memory: a part of it, '{part}', unpacks to" in said


def test_parquet_neither_multiplies_a_long_text_nor_unpacks_too_much(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = arrow.DictionaryArray.from_arrays(arrow.array([0] * 300, arrow.int32()), ["x" * (4 << 20)])
    once, large = tmp_path / "once.parquet", tmp_path / "large.parquet"
    parquet.write_table(arrow.table({"text": values, "label": ["a"] * 300}), once, compression="zstd")
    table = arrow.table({"text": ["x" * (24 << 20)] * 3})
    parquet.write_table(table, large, compression="zstd", use_dictionary=False, write_statistics=False)
    found = read(once, large)
    assert found[0] == (None, 300)
    assert "'large.parquet' would take too much memory: its column 'text' unpacks to 72 MB" in str(found[1][0])
