"""The files of the activation cache: one for each set of inputs, the least recently used removed to make room."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from adaptree.tasks import cache_folder

Array = np.ndarray[Any, Any]


FOLDER = "trunk"
"""In the user's cache folder. The name of earlier versions, whose files are used, or removed to make room."""


BLOCK = 1 << 24
"""Bytes that are verified at once."""


class NotCacheable(Exception):
    """A run's activations cannot be cached; the message says why, and what would make it possible."""


class Damaged(Exception):
    """A file of states is not as it was written."""


def mapped(path: Path, dtype: np.dtype[Any], total: int) -> Array | None:
    """Map a file of `total` bytes of states, verify them, and mark it as used; return None if it is absent.

    Raise Damaged if one bit of it is not as it was written.
    """
    try:
        whole = np.memmap(path, dtype=np.uint8, mode="r")
    except FileNotFoundError:
        return None
    except ValueError as error:  # an empty file
        raise Damaged from error
    states = whole[:total]
    if whole[total:].tobytes() != last_line(path, states):
        raise Damaged
    with contextlib.suppress(OSError):  # removed meanwhile, or another user's
        os.utime(path)
    return states.view(dtype)


def last_line(path: Path, states: Array) -> bytes:
    """Return what stands behind the states in a file: whose they are, how many bytes, and their CRC-32."""
    crc = 0
    for start in range(0, len(states), BLOCK):
        crc = zlib.crc32(states[start : start + BLOCK].data, crc)
    return f"adaptree states {path.stem} {len(states):020d} {crc:08x}\n".encode()


def room(folder: Path) -> int:
    """Return how many bytes may be kept: ADAPTREE_CACHE_BYTES, else 8 GB; at most half of the free disk space."""
    there = next((p for p in (folder, *folder.parents) if p.exists()), Path("/"))
    kept = sum(map(_bytes, folder.glob("*.states"))) if folder.is_dir() else 0
    return min(cache_folder.most_bytes(), (shutil.disk_usage(there).free + kept) // 2)


def _bytes(path: Path) -> int:
    """Return a file's size, or 0 if another process has just removed it."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def sized(count: int) -> str:
    """Return a number of bytes with a unit."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def reserve(file: IO[bytes], size: int) -> None:
    """Allocate the file's bytes: a full disk is an error here, and would be a crash in the middle of a mapped write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


@contextlib.contextmanager
def alone(path: Path, stopped: Callable[[], bool] | None = None) -> Iterator[None]:
    """Hold a file lock, which the system releases if the process dies; without fcntl, hold nothing.

    Wait for another process's lock until `stopped()`; without `stopped`, raise BlockingIOError at once.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if stopped is None:
                    raise
            if stopped():
                raise KeyboardInterrupt
            time.sleep(0.05)
        yield


def make_room(path: Path, total: int) -> None:
    """Delete leftovers of killed processes, then the least recently used files, until `total` bytes fit.

    Raise NotCacheable if they never can. The caller holds the lock of `path`. Lock files stay: if one were removed
    while another process waits for it, two processes could hold it.
    """
    folder = path.parent
    for stale in (path, path.with_suffix(".partial")):
        stale.unlink(missing_ok=True)
    for partial in folder.glob("*.partial"):
        _remove(partial)
    if total > (most := room(folder)):
        raise NotCacheable(
            f"its states are {sized(total)}, and the cache may take {sized(most)} (ADAPTREE_CACHE_BYTES)"
        )
    files = sorted(_ages(folder))
    kept = sum(size for _, size, _ in files)
    for _, size, old in files:
        if kept + total <= most:
            break
        if _remove(old):  # whoever has it open goes on with it
            kept -= size


def _ages(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield for each file of states when it was last used, its size and its path."""
    for path in folder.glob("*.states"):
        with contextlib.suppress(OSError):
            stat = path.stat()
            yield stat.st_mtime_ns, stat.st_size, path


def _remove(path: Path) -> bool:
    """Remove a file unless a process holds its lock; return whether it is gone."""
    with contextlib.suppress(OSError), alone(path.with_suffix(".lock")):
        path.unlink()
        return True
    return False
