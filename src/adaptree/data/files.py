"""One data file, opened as bytes or as text: unpacked, decoded, and never with more than one row in memory."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from adaptree.data.events import Listener, note, silent
from adaptree.errors import DataError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LARGEST_ROW = 8 << 20
"""Bytes that a row may have: a small packed file can hold an endless line, and memory must stay bounded."""
MOST_FOR_XZ = 256 << 20
"""Bytes that unpacking xz may take; what `xz -9` writes takes 65 MB."""
MOST_UNPACKED, MOST_TIMES = 64 << 20, 50
"""Bytes that any packed file may hold; more only up to so many times its size. Text has some ten times."""
CHUNK = 1 << 20
BLOCK = 1 << 16


class RowTooLong(Exception):
    """More than LARGEST_ROW bytes were read of a file since its last row."""


class UnpacksToTooMuch(Exception):
    """A packed file holds more than MOST_UNPACKED bytes, and more than MOST_TIMES its size."""


@dataclass
class File:
    """A file and how it is to be read.

    `fetched` counts the bytes since the last row: whoever takes a row sets it to 0, and `text` raises RowTooLong when
    it grows too large, UnpacksToTooMuch where a packed file is far larger than it looks.
    """

    path: Path
    ending: str
    encoding: str = "utf-8"
    no_header: bool = False
    columns: Collection[str] = ()
    """Columns that the user or a task asks for."""
    on_event: Listener = silent
    fetched: int = 0

    @property
    def name(self) -> str:
        """The file's name, for messages."""
        return self.path.name

    def note(self, text: str) -> None:
        """Send a sentence for the user."""
        note(self.on_event, text)

    def bytes(self) -> IO[bytes]:
        """Open the file, unpacked."""
        return UNPACK.get(self.path.suffix.lower(), _plain)(self.path)

    def text(self, newline: str | None = None) -> IO[str]:
        """Open the file as text; raise RowTooLong where a row has no end."""
        encoding = self.encoding
        if codecs.lookup(encoding).name == "utf-8":
            encoding = "utf-8-sig"  # the byte order mark that Excel writes is not part of the first column's name
        self.fetched = 0
        counted = cast(IO[bytes], _Counted(self, self.bytes()))
        return io.TextIOWrapper(counted, encoding=encoding, errors="strict", newline=newline)

    def start(self) -> str:
        """Return the first CHUNK characters."""
        with self.text(newline="") as stream:
            found = stream.read(CHUNK)
        self.fetched = 0
        return found


class _Counted(io.BufferedIOBase):
    """The bytes of a stream, counted in the file's `fetched`: once a block, which costs nothing."""

    def __init__(self, file: File, stream: IO[bytes]) -> None:
        self._file = file
        self._stream: Any = stream
        packed = file.path.suffix.lower() in UNPACK
        self._left = max(MOST_UNPACKED, MOST_TIMES * file.path.stat().st_size) if packed else math.inf

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        found: bytes = self._stream.read1(size)
        self._file.fetched += len(found)
        if self._file.fetched > LARGEST_ROW:
            raise RowTooLong
        self._left -= len(found)
        if self._left < 0:
            raise UnpacksToTooMuch
        return found

    def close(self) -> None:
        self._stream.close()
        super().close()


class _Xz(io.RawIOBase):
    """What an .xz file holds. Unlike lzma.open, it does not let the file say how much memory that takes."""

    def __init__(self, path: Path) -> None:
        self._packed = path.open("rb")
        self._unpacker = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(memlimit=MOST_FOR_XZ)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while True:
            more = b""
            if self._unpacker.eof:  # several streams may follow each other, with zeros between them
                more = (self._unpacker.unused_data or self._packed.read(BLOCK)).lstrip(b"\0")
                while not more:
                    block = self._packed.read(BLOCK)
                    if not block:
                        return 0
                    more = block.lstrip(b"\0")
                self._unpacker = self._new()
            elif self._unpacker.needs_input:
                more = self._packed.read(BLOCK)
                if not more:
                    raise EOFError("it ends in the middle")
            found = self._unpacker.decompress(more, len(view))
            if found:
                view[: len(found)] = found
                return len(found)

    def close(self) -> None:
        self._packed.close()
        super().close()


def _plain(path: Path) -> IO[bytes]:
    return path.open("rb")


def _gzip(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "rb"))


def _xz(path: Path) -> IO[bytes]:
    return io.BufferedReader(_Xz(path), BLOCK)


UNPACK: dict[str, Callable[[Path], IO[bytes]]] = {".gz": _gzip, ".xz": _xz}


def undecodable(file: File) -> DataError:
    """Return the error for a file in another encoding, with the first bad byte.

    The file is read again: the text layer knows the byte's place only within its own buffer.
    """
    encoding = file.encoding
    decoder = codecs.getincrementaldecoder(encoding)()
    offset = lines = 0
    where, start = "", b""
    with file.bytes() as stream:
        chunk = start = stream.read(CHUNK)
        while not where:
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                at = error.start - pending
                value = error.object[error.start]
                line = lines + chunk.count(b"\n", 0, max(at, 0)) + 1
                where = f"byte 0x{value:02x} at offset {offset + at:,} (line {line:,})"
            except UnicodeError as error:
                where = one_line(error)
            if not chunk:
                break
            offset += len(chunk)
            lines += chunk.count(b"\n")
            chunk = stream.read(CHUNK)
    marked = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    better = "utf-16" if marked else "utf-8" if "latin" in encoding or "16" in encoding else "latin-1"
    return DataError(f"'{file.name}' is not {encoding}: {where}.", hint=f"Choose how to read it: --encoding {better}")


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, without its full stop."""
    return " ".join(str(error).split()).rstrip(".")[:200]
