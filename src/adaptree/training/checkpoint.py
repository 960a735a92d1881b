"""Checkpoints: the state of a run on disk, replaced atomically and never a pickle."""

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

from adaptree.errors import CannotResume, StoreError
from adaptree.tasks import runs
from adaptree.tasks.files import sync

FILE = runs.CHECKPOINT
FORMAT = 2
"""The format of a checkpoint; a run of another one cannot be resumed."""
DAY = 24 * 60 * 60
SEARCH = runs.SEARCH
"""The file of a search's trials, beside the checkpoint."""


def prepare(folder: Path, anew: bool = False) -> None:
    """Make the run's folder; with `anew`, without the files of an earlier run of this name.

    Raise StoreError, before any work is done, if it cannot be written.
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
    """Write a run's tensors and state, without a second copy in memory."""
    whole = {name: t.contiguous() for name, t in tensors.items()}
    metadata = {"state": json.dumps({**state, "format": FORMAT}), runs.SHA256: runs.UNSEALED}

    def save(partial: Path) -> None:
        save_file(whole, partial, metadata=metadata)
        runs.seal(partial)

    put(folder / FILE, save)


def put(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file atomically: write a temporary one, flush it to the disk, rename it."""
    folder, partial = path.parent, _partial(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # another run of this name may have ended, and cleared it away
        write(partial)
        sync(partial)
        partial.replace(path)
        sync(folder)
    except (OSError, SafetensorError) as error:
        raise _cannot(folder, error) from error


def _cannot(folder: Path, error: Exception) -> StoreError:
    return StoreError(
        f"the run cannot be kept in '{folder}': {getattr(error, 'strerror', None) or error}.",
        hint="Make room there or choose another --store; a run that had begun goes on with --resume.",
    )


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Return the tensors and the state of the last checkpoint, or None if there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = dict(json.loads(file.metadata()["state"]))
        with contextlib.suppress(StoreError):  # it has no digest
            if wrong := runs.problem(path):
                raise ValueError(wrong)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CannotResume(
            f"the checkpoint in '{folder}' cannot be read ({type(error).__name__}).", hint="Train without --resume."
        ) from error
    if state.pop("format", 1) != FORMAT:
        raise CannotResume(
            f"the checkpoint in '{folder}' is of another version of adaptree.", hint="Train without --resume."
        )
    return tensors, state


def kept(folder: Path) -> str:
    """Return in words what a stopped run has left in its folder, or "" if there is nothing."""
    with contextlib.suppress(SafetensorError, OSError, ValueError, KeyError, TypeError):
        with safe_open(folder / FILE, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
        epochs, steps = len(state["history"]), state["batch"]
        parts = [_counted(epochs, "epoch")] * bool(epochs) + [_counted(steps, "step")] * bool(steps)
        return f"all that was trained ({' and '.join(parts)})" if parts else ""
    with contextlib.suppress(OSError):
        trials = len((folder / SEARCH).read_text().splitlines()) - 1  # the first line says of which search
        return f"the search so far ({_counted(trials, 'trial')})" if trials > 0 else ""
    return ""


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def remove(folder: Path) -> None:
    """Remove the run's files, and its folder unless another run of this name is writing there."""
    for path in (folder / FILE, folder / SEARCH):
        path.unlink(missing_ok=True)
        _partial(path).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _partial(path: Path) -> Path:
    """Return a temporary file of this process alone: two runs of one name must not write into one file."""
    return path.with_name(f"{path.name}.partial-{os.getpid()}")
