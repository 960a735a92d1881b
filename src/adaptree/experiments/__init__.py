"""The experiments: each is one file that trains its cells on real data and writes a table and a figure.

A cell that is done is kept, and the same command goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from adaptree.errors import UsageError, near

NAMES = ("comparison", "kinds", "layers")
Event = dict[str, Any]


def about(name: str) -> str:
    """The first line of an experiment's description."""
    return str(_module(name).__doc__).partition("\n")[0]


def run(
    name: str,
    data: Path,
    out: Path,
    *,
    tasks: Sequence[str] = (),
    seeds: int | None = None,
    base: str | Path = "minilm",
    threads: int | None = None,
    command: str = "",
    on_event: Callable[[Event], None] = lambda event: None,
) -> str:
    """Run what is missing of an experiment, of these tasks only if some are given; the answer is its table."""
    if name not in NAMES:
        raise UsageError(f"no experiment '{name}'.", hint=near(name, NAMES) or f"There are: {', '.join(NAMES)}.")
    page = _module(name).grid.run(
        data, out, tasks=tasks, seeds=seeds, base=base, threads=threads, command=command, on_event=on_event
    )
    return str(page)


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")
