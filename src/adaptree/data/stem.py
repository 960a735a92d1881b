"""A name for what is made of a data file."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

from adaptree.data.excel import split_sheet
from adaptree.data.read import FORMATS, UNPACK

LONGEST = 64
PARTS = (".train", ".valid", ".test")
"""Endings that also say which part of the data a file is; they stay in the name."""


def stem(source: object) -> str:
    """Return a name for a task of this file: the file's name without endings, in a-z, 0-9, '_' and '-'."""
    path, sheet = split_sheet(Path(os.fspath(source)) if isinstance(source, str | os.PathLike) else Path("data"))
    whole = without_endings(path).name
    return as_name(f"{whole}-{sheet}" if sheet else whole)


def without_endings(path: Path) -> Path:
    """Return the path without the endings that only say how the file is written: reviews for reviews.csv.gz."""
    while path.suffix.lower() in (*FORMATS, *UNPACK) and path.suffix.lower() not in PARTS:
        path = path.with_suffix("")
    return path


def as_name(words: str) -> str:
    """Return any words in a-z, 0-9, '_' and '-'."""
    plain = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_]+", "-", plain).lstrip("_-")[:LONGEST].rstrip("-") or "data"
