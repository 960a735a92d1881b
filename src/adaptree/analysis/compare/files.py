"""How a comparison keeps its files: whole or not at all, and named by what they hold."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from adaptree.errors import TrainingError
from adaptree.tasks.files import cannot_write


def read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError):
        raise TrainingError(f"'{path}' is damaged.", hint="Remove it, and the cell is run again.") from None


def write(path: Path, value: Mapping[str, Any]) -> None:
    """There whole or not at all."""
    partial = path.with_suffix(f".{os.getpid()}")
    with writing(path):
        partial.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
        partial.replace(path)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
