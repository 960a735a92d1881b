"""What a store's folder holds besides its tasks: the checkpoints of runs, and where this machine has the bases."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store


def run_folder(store: Store, name: str) -> Path:
    """Return where the run that trains a task keeps its checkpoint; the slash of a namespace becomes a dot."""
    return store.path / "runs" / name.replace("/", ".")


def bases_of(store: Store) -> dict[str, str]:
    """Return {fingerprint: folder or name} of the bases that this machine has trained a store's tasks on."""
    try:
        return dict(json.loads((store.path / "bases.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def remember(store: Store, base: Base) -> None:
    """Note where this machine has a base, unless the store knows a folder that still exists."""
    known = bases_of(store)
    kept = known.get(base.fingerprint)
    if kept is None or (Path(kept).is_absolute() and not Path(kept).is_dir()):
        partial = store.path / f"bases.json.{os.getpid()}"
        partial.write_text(json.dumps(known | {base.fingerprint: base.location}, indent=1))
        partial.replace(store.path / "bases.json")
