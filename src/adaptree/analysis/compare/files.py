"""The JSON files of a comparison: written whole or not at all, and named by a digest of what they hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptree.errors import TrainingError
from adaptree.reports.json_text import json_text
from adaptree.tasks.files import cannot_write


def read(path: Path) -> dict[str, Any]:
    """Return the object in a file; an empty one if there is no file."""
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError):
        raise TrainingError(f"'{path}' is damaged.", hint="Remove it, and the cell is run again.") from None


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object to a file, whole or not at all."""
    partial = path.with_suffix(f".{os.getpid()}")
    with writing(path):
        partial.write_text(json_text(value, indent=1) + "\n")
        partial.replace(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into one that says what cannot be written, why and what to do."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def digest(value: object) -> str:
    """Return the first 16 hex digits of the sha256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def file_digest(path: Path) -> str:
    """Return the first 16 hex digits of the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
