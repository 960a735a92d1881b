"""States of the activation cache that several machines share, behind the URL in `ADAPTREE_CACHE_URL`.

A manifest says what is there: for each file of states an entry, NAME.json, which is written once the file is whole. It
has the number of bytes, the machine that computed them, and when. Whatever is missing, damaged or not to be reached is
computed: a shared cache costs time at worst, and never changes a bit.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import AdaptreeError

if TYPE_CHECKING:
    from adaptree.tasks.objects import Objects

VARIABLE = "ADAPTREE_CACHE_URL"
Note = Callable[[str], None]


def fetch(path: Path, total: int, note: Note) -> bool:
    """Fetch the file of states that is to stand at `path`, with `total` bytes of them; return whether it is there.

    The caller holds the lock of `path`, has made room for it, and verifies what it holds.
    """
    if (objects := _objects()) is None:
        return False
    partial = path.with_suffix(".partial")
    try:
        entry = objects.read(f"{path.stem}.json")
        if entry is None or _bytes(entry) != total or not objects.get_file(path.name, partial):
            return False
        partial.replace(path)
        return True
    except (AdaptreeError, OSError) as error:
        note(f"the shared activation cache cannot be read: {_line(error)}")
        return False
    finally:
        partial.unlink(missing_ok=True)


def offer(path: Path, total: int, facts: dict[str, Any], note: Note) -> None:
    """Put a file of states where other machines find it, then its entry in the manifest."""
    if (objects := _objects()) is None:
        return
    entry = {**facts, "bytes": total, "machine": socket.gethostname(), "computed": datetime.now(UTC).isoformat()}
    try:
        objects.put_file(path.name, path)
        objects.put(f"{path.stem}.json", json.dumps(entry, indent=1).encode())
    except (AdaptreeError, OSError) as error:
        note(f"the shared activation cache cannot be written: {_line(error)}")


def _objects() -> Objects | None:
    from adaptree.tasks.objects import Objects

    url = os.environ.get(VARIABLE)
    return Objects(url if "://" in url else Path(url).expanduser().resolve().as_uri()) if url else None


def _bytes(entry: bytes) -> Any:
    """Return how many bytes of states an entry of the manifest speaks of; None if it cannot be read."""
    try:
        return json.loads(entry)["bytes"]
    except (ValueError, KeyError, TypeError):
        return None


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]
