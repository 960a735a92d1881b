"""A zip in one form only: stored, sorted and undated, so that its bytes follow from the names and contents in it.

That leaves one rule for reading: all that is not the contents of a file must be just what writing gives. Names that are
there twice, hidden or overlapping files, links, encryption, compression, comments and data at the end all break it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

MOST_FILES = 500_000
LONGEST_NAME = 300
PIECE = 1 << 20
"""Bytes that are read at a time."""
LARGE = 0xFFFFFFFF
"""Sizes and offsets from here on are written as zip64 does, and so is a count that does not fit into 16 bits."""

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_DATE = 0x21  # 1 January 1980, the first day that a zip knows
_PLAIN_FILE = 0o100644 << 16
_UNIX = 3 << 8
_SEE_ZIP64, _MANY = 0xFFFFFFFF, 0xFFFF  # in the place of a number that does not fit


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in a zip."""

    name: str
    size: int
    crc: int


@dataclass(frozen=True, slots=True)
class Placed:
    """A file in a zip, and where its contents begin."""

    entry: Entry
    offset: int


def write(out: BinaryIO, files: Iterable[tuple[Entry, Iterable[bytes]]]) -> None:
    """Write a zip of files with these contents; the names must be in ascending order."""
    directory = bytearray()
    offset = count = 0
    for entry, pieces in files:
        header = _local(entry)
        out.write(header)
        written, crc = 0, 0
        for piece in pieces:
            out.write(piece)
            written, crc = written + len(piece), zlib.crc32(piece, crc)
        if (written, crc) != (entry.size, entry.crc):
            raise ValueError(f"{entry.name} changed while it was read")
        directory += _central(entry, offset)
        offset += len(header) + entry.size
        count += 1
    out.write(directory)
    out.write(_ending(count, len(directory), offset))


def read(file: BinaryIO) -> list[Placed]:
    """Return the files in a zip that `write` wrote; raise ValueError, with the reason, for any other."""
    size = file.seek(0, 2)
    tail = _at(file, max(0, size - _END64.size - _LOCATOR.size - _END.size), _END64.size + _LOCATOR.size + _END.size)
    if len(tail) < _END.size or not tail.startswith(b"PK\5\6", -_END.size):
        raise ValueError("it does not end as a zip does: it is cut off, or not a zip")
    count, length, start = _END.unpack(tail[-_END.size :])[4:7]
    if count == _MANY or _SEE_ZIP64 in (length, start):
        if not tail.startswith(b"PK\6\6"):
            raise ValueError("the end of the zip is damaged")
        count, length, start = _END64.unpack(tail[: _END64.size])[7:10]
    ending = _ending(count, length, start) if start + length <= size else b""
    if not tail.endswith(ending) or start + length + len(ending) != size:
        raise ValueError("the end of the zip is damaged, or something was added to it")
    if count > MOST_FILES or length > count * (_CENTRAL.size + 28 + LONGEST_NAME):
        raise ValueError(f"it says that it has {count:,} files in {length:,} bytes; {MOST_FILES:,} are the most")
    found = _listed(_at(file, start, length), count, start)
    for placed in found:
        header = _local(placed.entry)
        if _at(file, placed.offset - len(header), len(header)) != header:
            raise ValueError(f"the zip contradicts itself about {placed.entry.name!r}")
    return found


def contents(file: BinaryIO, placed: Placed) -> Iterator[bytes]:
    """Yield the contents of a file in pieces; raise ValueError at the end if they do not have its CRC."""
    left, crc = placed.entry.size, 0
    file.seek(placed.offset)
    while left:
        piece = file.read(min(left, PIECE))
        if not piece:
            raise ValueError(f"{placed.entry.name!r} is cut off")
        left, crc = left - len(piece), zlib.crc32(piece, crc)
        yield piece
    if crc != placed.entry.crc:
        raise ValueError(f"{placed.entry.name!r} is damaged: its CRC does not match")


def _listed(directory: bytes, count: int, end: int) -> list[Placed]:
    """Return the files of a zip's directory, which must lie one after the other from 0 to `end`."""
    found: list[Placed] = []
    position = offset = 0
    before = ""
    for _ in range(count):
        entry = _entry(directory, position)
        header = _central(entry, offset)
        if not directory.startswith(header, position):
            raise ValueError(f"{entry.name!r:.100} is not stored as adaptree stores files")
        if entry.name <= before:
            raise ValueError(f"{entry.name!r:.100} is there twice, or not in its place")
        position, before = position + len(header), entry.name
        offset += len(_local(entry))
        found.append(Placed(entry, offset))
        offset += entry.size
        if offset > end:
            raise ValueError(f"{entry.name!r:.100} is larger than the zip")
    if (position, offset) != (len(directory), end):
        raise ValueError("there is something in the zip that is none of its files")
    return found


def _entry(directory: bytes, position: int) -> Entry:
    """Read name, size and CRC of a file; the other fields follow from these."""
    if len(directory) - position < _CENTRAL.size:
        raise ValueError("the zip's directory is cut off")
    fields = _CENTRAL.unpack_from(directory, position)
    crc, size, length = fields[7], fields[9], fields[10]
    start = position + _CENTRAL.size
    if length > LONGEST_NAME:
        raise ValueError(f"a name has {length:,} characters")
    try:
        name = directory[start : start + length].decode("ascii")
    except UnicodeDecodeError:
        raise ValueError("a name is not in ASCII") from None
    if size == _SEE_ZIP64 and len(directory) >= start + length + 12:
        size = int.from_bytes(directory[start + length + 4 : start + length + 12], "little")
    return Entry(name, size, crc)


def _local(entry: Entry) -> bytes:
    """Return what lies before a file's contents."""
    big = entry.size >= LARGE
    extra = struct.pack("<HHQQ", 1, 16, entry.size, entry.size) if big else b""
    size, name = _SEE_ZIP64 if big else entry.size, entry.name.encode("ascii")
    fields = (b"PK\3\4", _needed(big), 0, 0, 0, _DATE, entry.crc, size, size, len(name), len(extra))
    return _LOCAL.pack(*fields) + name + extra


def _central(entry: Entry, offset: int) -> bytes:
    """Return a file's line in the directory."""
    big, far = entry.size >= LARGE, offset >= LARGE
    more = struct.pack("<QQ", entry.size, entry.size) * big + struct.pack("<Q", offset) * far
    extra = struct.pack("<HH", 1, len(more)) + more if more else b""
    size, name, needed = _SEE_ZIP64 if big else entry.size, entry.name.encode("ascii"), _needed(big or far)
    fields = (b"PK\1\2", _UNIX | needed, needed, 0, 0, 0, _DATE, entry.crc, size, size, len(name), len(extra), 0, 0, 0)
    return _CENTRAL.pack(*fields, _PLAIN_FILE, _SEE_ZIP64 if far else offset) + name + extra


def _ending(count: int, length: int, start: int) -> bytes:
    """Return what lies behind the directory of so many files, which has this length and starts there."""
    many, big, far = count >= _MANY, length >= LARGE, start >= LARGE
    counts, sizes = [_MANY if many else count] * 2, (_SEE_ZIP64 if big else length, _SEE_ZIP64 if far else start)
    end = _END.pack(b"PK\5\6", 0, 0, *counts, *sizes, 0)
    if not (many or big or far):
        return end
    end64 = _END64.pack(b"PK\6\6", _END64.size - 12, _UNIX | 45, 45, 0, 0, count, count, length, start)
    return end64 + _LOCATOR.pack(b"PK\6\7", 0, start + length, 1) + end


def _needed(zip64: bool) -> int:
    """Return the version of the zip format that a reader needs."""
    return 45 if zip64 else 20


def _at(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)
