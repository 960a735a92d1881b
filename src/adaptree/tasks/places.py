"""What lies in a store's folder beside its tasks: the checkpoints of runs, and where this machine has the bases."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store


def run_folder(store: Store, name: str) -> Path:
    """Where a run of this name keeps its checkpoint; no name has a dot in it."""
    return store.path / "runs" / name.replace("/", ".")


def bases_of(store: Store) -> dict[str, str]:
    """Where this machine has the bases of a store's tasks, by fingerprint."""
    try:
        return dict(json.loads((store.path / "bases.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def remember(store: Store, base: Base) -> None:
    """Note where this machine has a base, for the tasks of a store."""
    known = bases_of(store)
    kept = known.get(base.fingerprint)
    if kept is None or (Path(kept).is_absolute() and not Path(kept).is_dir()):  # a place that still holds it is kept
        partial = store.path / f"bases.json.{os.getpid()}"
        partial.write_text(json.dumps(known | {base.fingerprint: base.location}, indent=1))
        partial.replace(store.path / "bases.json")
