"""Texts end to end in memory, or in a file when they grow."""

from __future__ import annotations

import mmap
import tempfile
from array import array
from typing import Any

from adaptree.errors import DataError

IN_MEMORY = 64 << 20  # bytes of text beyond which texts go to a file


class Buffer:
    """Texts end to end in one buffer that moves to an unlinked file when it grows, with their places and keys."""

    def __init__(self) -> None:
        self.starts = array("Q", [0])
        self.lengths = array("I")
        self.keys = array("Q")
        self._memory = bytearray()
        self._file: Any = None
        self._room = IN_MEMORY

    def add(self, text: bytes, pair: bytes, key: int) -> None:
        self._memory += text
        self._memory += pair
        self.starts.append(self.starts[-1] + len(text) + len(pair))
        self.lengths.append(len(text))
        self.keys.append(key)
        if len(self._memory) > self._room:
            self._spill()

    def _spill(self) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="adaptree-")  # noqa: SIM115 (closed once it is mapped)
                self._room = min(IN_MEMORY, 1 << 20)
            self._file.write(self._memory)
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"cannot keep the texts in '{tempfile.gettempdir()}': {error.strerror}.",
                hint="Name a folder with room: TMPDIR=/some/folder adaptree …",
            ) from None
        self._memory = bytearray()

    def finish(self) -> bytearray | mmap.mmap:
        if self._file is None:
            return self._memory
        self._spill()
        with self._file:
            return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
