"""Files that survive a crash: synced to disk, and the error for a place that cannot be written."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from adaptree.errors import StoreError

TAKEN = frozenset({errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR})
"""Error numbers of a rename onto something that exists."""


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet, and sync it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in the place of another, whole or not at all, and sync it."""
    partial = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        write_new(partial, data)
        os.replace(partial, path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that they survive a power cut (not on Windows)."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cannot_write(path: Path, error: OSError, *, to_store: bool = True) -> StoreError:
    """Return the error for a place, in a store or elsewhere, that cannot be written: the reason, and what to do."""
    first = {
        errno.ENOSPC: "Free some space",
        errno.EDQUOT: "Free some of your quota",
        errno.EACCES: "Make the folder writable",
        errno.EPERM: "Make the folder writable",
        errno.EROFS: "Make the folder writable",
        errno.ENOENT: "Check that its folder is there",
    }.get(error.errno or 0, "Check that it is a folder on a working disk")
    other = "choose another (--store DIR, or ADAPTREE_STORE)" if to_store else "choose another place"
    return StoreError(
        f"cannot write {path}: {error.strerror or error}. Nothing was changed.",
        hint=f"{first}, or {other}.",
    )
