"""Cells that are commands: each runs in a process of its own, and the JSON that it prints is what is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.files import read, write
from adaptree.analysis.experiments.tasks import Asked
from adaptree.errors import DataError
from adaptree.tasks.runs import run_folder
from adaptree.tasks.store import Store


def said(path: Path, words: Sequence[str | Path], asked: Asked, **more: Any) -> dict[str, Any]:
    """What a command of adaptree printed, with `more`; it runs if `path` does not hold that yet."""
    if found := read(path):
        return dict(found)
    asked.on_event({"event": "note", "text": f"{path.parent.name}, {path.stem}"})
    line = [sys.executable, "-m", "adaptree", *map(str, words), "--format", "json", "--quiet"]
    line += ["--threads", str(asked.threads)] if asked.threads else []
    path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise DataError(f"{path.parent.name} with {path.stem}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    printed = json.loads(done.stdout)
    found = {"printed": printed, **more} if isinstance(printed, list) else {**printed, **more}
    write(path, found)
    return found


def trained(
    path: Path,
    data: Path | Sequence[Path],
    name: str,
    store: Path,
    options: Sequence[str | Path],
    asked: Asked,
    **more: Any,
) -> dict[str, Any]:
    """What `adaptree train` printed; a training that was stopped is gone on with."""
    begun = any(run_folder(Store(store), name).glob("*.safetensors"))
    files = [data] if isinstance(data, Path) else list(data)
    words = ["train", *files, "--name", name, "--store", store, "--base", asked.base, *options]
    return said(path, [*words, "--resume"] if begun else words, asked, **more)
