"""The user's cache folder, and digests of large files that are remembered in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from adaptree.errors import UsageError


def folder() -> Path:
    """Return `ADAPTREE_CACHE`, else adaptree's part of the user's cache folder."""
    if path := os.environ.get("ADAPTREE_CACHE"):
        return Path(path).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adaptree"


def most_bytes() -> int:
    """Return how large each of the caches may grow: ADAPTREE_CACHE_BYTES, else 8 GB."""
    setting = os.environ.get("ADAPTREE_CACHE_BYTES")
    try:
        most = int(float(setting)) if setting else 8_000_000_000
        if most < 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise UsageError(f"ADAPTREE_CACHE_BYTES is not a number of bytes: {setting!r}.", hint="8e9 is 8 GB.") from None
    return most


def digest_of(files: Iterable[Path], what: str, compute: Callable[[], str]) -> str:
    """Return `compute()`, a sha256, remembered as long as these files keep their path, size and time."""
    stamps = [f"{path.resolve()} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in sorted(files)]
    key = hashlib.sha256("\n".join([what, *stamps]).encode()).hexdigest()[:32]
    kept = folder() / "digests" / key
    try:
        if len(digest := kept.read_text()) == 64:
            return digest
    except OSError:
        pass
    digest = compute()
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(digest)
        partial.replace(kept)
    except OSError:  # a cache that cannot be written costs time, nothing else
        pass
    return digest
