"""A name for what is made of a data file."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

from adaptree.data.read import FORMATS, UNPACK

LONGEST = 64


def stem(source: object) -> str:
    """Return a name for a task of this file: the file's name without endings, in a-z, 0-9, '_' and '-'."""
    path = Path(os.fspath(source)) if isinstance(source, str | os.PathLike) else Path("data")
    while path.suffix.lower() in (*FORMATS, *UNPACK):
        path = path.with_suffix("")
    plain = unicodedata.normalize("NFKD", path.name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9_]+", "-", plain).lstrip("_-")[:LONGEST].rstrip("-") or "data"
