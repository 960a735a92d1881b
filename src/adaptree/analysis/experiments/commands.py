"""Cells that are commands: each runs in a process of its own, and the JSON that it prints is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.files import read, write
from adaptree.analysis.experiments.setup import Setup
from adaptree.errors import DataError
from adaptree.tasks.runs import run_folder
from adaptree.tasks.store import Store


def run_command(path: Path, words: Sequence[str | Path], setup: Setup, **more: Any) -> dict[str, Any]:
    """Return what `path` holds, or else run `adaptree WORDS` and keep there what it prints as JSON, with `more`."""
    if found := read(path):
        return found
    setup.on_event({"event": "note", "text": f"{path.parent.name}, {path.stem}"})
    line = [sys.executable, "-m", "adaptree", *map(str, words), "--format", "json", "--quiet"]
    line += ["--threads", str(setup.threads)] if setup.threads else []
    path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(f"{path.parent.name} with {path.stem}: {reason}")
    printed = json.loads(done.stdout)
    found = {"printed": printed, **more} if isinstance(printed, list) else {**printed, **more}
    write(path, found)
    return found


def train(
    path: Path,
    data: Path | Sequence[Path],
    name: str,
    store: Path,
    options: Sequence[str | Path],
    setup: Setup,
    **more: Any,
) -> dict[str, Any]:
    """Return the cell of `adaptree train DATA --name NAME …`; resume a training that was stopped."""
    begun = any(run_folder(Store(store), name).glob("*.safetensors"))
    files = [data] if isinstance(data, Path) else list(data)
    words = ["train", *files, "--name", name, "--store", store, "--base", setup.base, *options]
    return run_command(path, [*words, "--resume"] if begun else words, setup, **more)
