"""The state of a run on disk: there whole or not at all, and never a pickle."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from adaptree.errors import StoreError, TrainingError

FILE = "checkpoint.safetensors"
DAY = 24 * 60 * 60
SEARCH = "search.jsonl"
"""Where a search keeps its trials, beside the checkpoint."""


def prepare(folder: Path, anew: bool = False) -> None:
    """Make the run's folder, so that a store which cannot be written is said before the work, not after.

    `anew` clears away what an earlier run of this name left, so that nothing of it is resumed by mistake.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if anew:
            for name in (FILE, SEARCH):
                (folder / name).unlink(missing_ok=True)
        for left in folder.glob("*.partial-*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > DAY:  # of a process that was killed
                    left.unlink()
        partial = _partial(folder / FILE)
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise _cannot(folder, error) from error


def write(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Keep a run's tensors and its state, without a copy of them in memory."""
    whole = {name: t.contiguous() for name, t in tensors.items()}
    put(folder / FILE, lambda partial: save_file(whole, partial, metadata={"state": json.dumps(state)}))


def put(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the old one, flush to the disk, then take its place in one step."""
    folder, partial = path.parent, _partial(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # another run of this name may have ended, and cleared it away
        write(partial)
        _flush(partial)
        partial.replace(path)
        _flush(folder)
    except (OSError, SafetensorError) as error:
        raise _cannot(folder, error) from error


def _flush(path: Path) -> None:
    at = os.open(path, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)


def _cannot(folder: Path, error: Exception) -> StoreError:
    return StoreError(
        f"the run cannot be kept in '{folder}': {getattr(error, 'strerror', None) or error}.",
        hint="Make room there or choose another --store; a run that had begun goes on with --resume.",
    )


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the state of the last checkpoint, or None where there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["state"])  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"the checkpoint in '{folder}' cannot be read ({type(error).__name__}).", hint="Train without --resume."
        ) from error


def remove(folder: Path) -> None:
    for path in (folder / FILE, folder / SEARCH):
        path.unlink(missing_ok=True)
        _partial(path).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # another run of this name is writing there
        folder.rmdir()


def _partial(path: Path) -> Path:
    """Of this process alone: two runs of one name must not write into one file."""
    return path.with_name(f"{path.name}.partial-{os.getpid()}")
