"""The cells of an experiment: one line of JSON each in OUT/cells.jsonl, written when the cell is done.

A line has `asked`, all that decides the result (rows, base, method, settings), `found`, and the versions that it was
found with. A cell is found again by a digest of `asked`, so that it is run again only if something of that has changed.
Several processes may work in one folder: each takes a cell that no other is running.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from adaptree.analysis.compare.files import digest, writing
from adaptree.analysis.experiments.setup import Setup
from adaptree.data.events import note
from adaptree.errors import AdaptreeError
from adaptree.models.cache_files import alone
from adaptree.reports.json_text import json_text
from adaptree.reports.times import about
from adaptree.tasks.record import installed

FILE = "cells.jsonl"
TOKENS_PER_SECOND = 1000.0
"""How fast a cell is thought to train before one like it was measured."""

Found = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One training of an experiment."""

    asked: Mapping[str, Any]
    """All that decides the result, as JSON values."""
    run: Callable[[], Mapping[str, Any]]
    tokens: int
    """How many tokens it trains on, roughly: cells of one `like` take time in proportion to that."""
    like: str

    @property
    def key(self) -> str:
        return digest(self.asked)

    def __str__(self) -> str:
        shown = (
            value for value in self.asked.values() if isinstance(value, int | float | str) and len(str(value)) < 40
        )
        return ", ".join(map(str, shown))


def read(out: Path) -> list[Found]:
    """Return the lines of an experiment's cells, the last one of each; a line that was cut off is left out."""
    found: dict[str, Found] = {}
    path = out / FILE
    for line in path.read_text().splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, KeyError):
            cell = json.loads(line)
            found[digest(cell["asked"])] = cell
    return list(found.values())


def alike(cells: Sequence[Found], *names: str) -> list[Found]:
    """Return the cells that were asked with the same values under these names: those that there are most of."""
    keys = [digest([cell["asked"].get(name) for name in names]) for cell in cells]
    most = max(keys, key=keys.count, default="")
    return [cell for cell, key in zip(cells, keys, strict=True) if key == most]


def run(cells: Sequence[Cell], setup: Setup) -> list[Found]:
    """Run the cells that are not done, as far as the budget goes; return the lines of those that are, in order.

    A dry run only says what would be run. A cell that fails is kept with its `error`, and is not run again.
    """
    setup.out.mkdir(parents=True, exist_ok=True)
    done = _by_key(setup.out)
    todo = [cell for cell in cells if cell.key not in done]
    if todo and (setup.dry_run or len(todo) < len(cells)):
        note(setup.on_event, f"{len(cells) - len(todo):,} of {len(cells):,} cells are done.")
    if setup.dry_run:
        _list(todo, done, setup)
        return [done[cell.key] for cell in cells if cell.key in done]
    for number, cell in enumerate(todo, 1):
        if not setup.fits(_estimate([cell], done)):
            continue  # a shorter one may still do
        with _taken(setup.out, cell.key) as mine:
            done = _by_key(setup.out)
            if not mine or cell.key in done:
                continue
            left = _estimate([each for each in todo[number - 1 :] if each.key not in done], done)
            note(setup.on_event, f"{number}/{len(todo)}  {cell}   about {about(left)} left")
            done[cell.key] = _add(setup.out, cell)
            if why := done[cell.key].get("error"):
                note(setup.on_event, f"{cell} failed: {why}")
    done = _by_key(setup.out)
    if missing := [cell for cell in cells if cell.key not in done]:
        text = f"{len(missing):,} of {len(cells):,} cells are open, about {about(_estimate(missing, done))}"
        note(setup.on_event, f"{text}: the same command goes on.")
    return [done[cell.key] for cell in cells if cell.key in done]


def _add(out: Path, cell: Cell) -> Found:
    """Run a cell and add its line to the file; return it."""
    began = time.monotonic()
    line: Found = {"asked": dict(cell.asked)}
    try:
        line["found"] = dict(cell.run())
    except AdaptreeError as error:
        line["error"] = str(error)
    line |= {"like": cell.like, "tokens": cell.tokens, "wall_seconds": round(time.monotonic() - began, 2)}
    line["versions"] = installed()
    with writing(out / FILE), (out / FILE).open("a", encoding="utf-8") as file:
        file.write(json_text(line) + "\n")
    return line


def _by_key(out: Path) -> dict[str, Found]:
    return {digest(cell["asked"]): cell for cell in read(out)}


@contextlib.contextmanager
def _taken(out: Path, key: str) -> Iterator[bool]:
    """Hold a cell's lock; yield whether it could be had, as no other process is running the cell."""
    folder = out / "running"
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(alone(folder / key))
        except BlockingIOError:
            yield False
            return
        yield True
        (folder / key).unlink(missing_ok=True)


def _estimate(cells: Sequence[Cell], done: Mapping[str, Found]) -> float:
    """Return the seconds that cells will take, by those of the same `like` that are done."""
    rates: dict[str, list[float]] = {}
    for cell in done.values():
        if cell.get("tokens"):
            rates.setdefault(cell["like"], []).append(cell["wall_seconds"] / cell["tokens"])
    usual = {like: median(values) for like, values in rates.items()}
    every = median(usual.values()) if usual else 1 / TOKENS_PER_SECOND
    return sum(cell.tokens * usual.get(cell.like, every) for cell in cells)


def _list(todo: Sequence[Cell], done: Mapping[str, Found], setup: Setup) -> None:
    """Send a note for each cell that would be run, with its estimate, and one for their sum."""
    for cell in todo:
        note(setup.on_event, f"{cell}: about {about(_estimate([cell], done))}")
    note(setup.on_event, f"{len(todo):,} cells would be run, about {about(_estimate(todo, done))}.")
