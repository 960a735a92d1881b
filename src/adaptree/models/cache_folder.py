"""The user's cache folder, and digests of large files that are remembered in it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path


def folder() -> Path:
    """Return `ADAPTREE_CACHE`, else adaptree's part of the user's cache folder."""
    if path := os.environ.get("ADAPTREE_CACHE"):
        return Path(path).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adaptree"


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
