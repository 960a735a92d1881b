"""Rows of parquet files, through pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from adaptree.data.files import File, one_line
from adaptree.data.header import must_differ
from adaptree.errors import DataError

MOST_ROWS = 1024
LARGEST_BATCH = 256 << 20
"""Bytes of one column that are in memory at once."""
LARGEST_CHUNK = 64 << 20
"""Bytes that a column of a row group may unpack to, where the file is small."""
MOST_PACKED = 100
"""How many times as large as in the file a large column may become."""
FIELD, DICTIONARY = 0x15, 2
"""In Thrift's compact protocol, the next field, a whole number; and parquet's type of a page that is a dictionary."""


def read_parquet(file: File) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a parquet file, with their numbers, from 1."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"reading '{file.name}' needs pyarrow.", hint="pip install 'adaptree[parquet]'") from None
    number = 0
    try:
        with parquet.ParquetFile(file.path, pre_buffer=False) as opened:
            must_differ(opened.schema_arrow.names, file.name)
            for batch in opened.iter_batches(batch_size=_rows_at_once(file, opened.metadata)):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            f"'{file.name}' is damaged or no parquet file: {one_line(error)}.", hint="Fetch or write it again."
        ) from None


def _rows_at_once(file: File, metadata: Any) -> int:
    """Return how many rows fit into memory, whatever is in them; raise DataError if a column unpacks to too much.

    A text that comes again and again is in the file once, in a dictionary; a thousand rows hold a thousand copies.
    """
    largest = 1
    with file.path.open("rb") as stream:
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                if chunk.total_uncompressed_size > max(LARGEST_CHUNK, MOST_PACKED * chunk.total_compressed_size):
                    raise DataError(
                        f"'{file.name}' would take too much memory: its column '{chunk.path_in_schema}' unpacks to "
                        f"{chunk.total_uncompressed_size >> 20:,} MB.",
                        hint="Write it again, in smaller row groups.",
                    )
                stream.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
                largest = max(largest, _dictionary_size(stream.read(16)))
    return max(1, min(MOST_ROWS, LARGEST_BATCH // largest))


def _dictionary_size(page: bytes) -> int:
    """Return the unpacked size of a page that begins like this, if it is a dictionary, else 0."""
    numbers: list[int] = []
    at = 0
    while len(numbers) < 2 and page[at : at + 1] == bytes([FIELD]):
        value = shift = 0
        at += 1
        while at < len(page):  # seven bits a byte, the lowest first; the eighth says that there are more
            value |= (page[at] & 127) << shift
            shift += 7
            at += 1
            if page[at - 1] < 128:
                break
        numbers.append(value >> 1)  # the lowest bit is the sign
    return numbers[1] if len(numbers) == 2 and numbers[0] == DICTIONARY else 0
