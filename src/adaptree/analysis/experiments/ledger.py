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
from adaptree.data.events import Event, Listener, note
from adaptree.models.cache_files import alone
from adaptree.reports.json_text import json_text
from adaptree.reports.times import about
from adaptree.tasks.record import installed
from adaptree.training.work import Call, Outcome, executor_for
from adaptree.training.work.interrupt import ctrl_c

FILE = "cells.jsonl"
TOKENS_PER_SECOND = 1000.0
"""How fast a cell is thought to train before one like it was measured."""
LOOK = 0.5
"""Seconds from one look at running cells to the next."""

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
    needs: tuple[Cell, ...] = ()
    """Cells that must be done before, as this one builds on their tasks."""

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

    A dry run only says what would be run. A cell that fails is kept with its `error`, and is not run again; one that
    needs it stays open.
    """
    setup.out.mkdir(parents=True, exist_ok=True)
    done = _by_key(setup.out)
    todo = [cell for cell in cells if cell.key not in done]
    if todo and (setup.dry_run or len(todo) < len(cells)):
        note(setup.on_event, f"{len(cells) - len(todo):,} of {len(cells):,} cells are done.")
    if setup.dry_run:
        _list(todo, done, setup)
        return [done[cell.key] for cell in cells if cell.key in done]
    if todo:
        with contextlib.closing(_Running(todo, setup)) as running:
            running.run()
    done = _by_key(setup.out)
    if missing := [cell for cell in cells if cell.key not in done]:
        text = f"{len(missing):,} of {len(cells):,} cells are open, about {about(_estimate(missing, done))}"
        note(setup.on_event, f"{text}: the same command goes on.")
    return [done[cell.key] for cell in cells if cell.key in done]


class _Running:
    """The cells of a run that are open: they are handed to an executor, and their lines written when they are done."""

    def __init__(self, todo: Sequence[Cell], setup: Setup) -> None:
        self.setup, self.count = setup, len(todo)
        self.waiting = list(todo)
        self.running: dict[str, tuple[Cell, contextlib.ExitStack]] = {}
        """By key, each with its lock."""
        self.begun = 0
        self.executor = executor_for(setup.cluster, setup.jobs, self.hear)
        self.most = 1 if self.executor.here else 10_000
        """Cells that are handed over at a time: in this process one, so that the budget is looked at before each."""

    def run(self) -> None:
        """Run cells until none is left that can be run; raise KeyboardInterrupt after Ctrl-C."""
        with ctrl_c() as pressed:
            while self._submit() or self.running:
                for outcome in self.executor.outcomes(LOOK):
                    self._end(outcome)
                if pressed():
                    raise KeyboardInterrupt

    def _submit(self) -> bool:
        """Hand over the cells that can be run now; return whether there were any."""
        done, before = _by_key(self.setup.out), len(self.running)
        for cell in list(self.waiting):
            if len(self.running) >= self.most:
                break
            if cell.key in done:
                self.waiting.remove(cell)
            elif all("found" in done.get(need.key, {}) for need in cell.needs):
                self._take(cell, done)
        return len(self.running) > before

    def _take(self, cell: Cell, done: Mapping[str, Found]) -> None:
        self.waiting.remove(cell)
        if not self.setup.fits(_estimate([cell], done)):
            return  # a shorter one may still do
        stack = contextlib.ExitStack()
        if not stack.enter_context(_taken(self.setup.out, cell.key)) or cell.key in _by_key(self.setup.out):
            stack.close()
            return
        self.running[cell.key] = cell, stack
        threads = self.setup.threads if self.executor.here else self.setup.threads or 1
        self.executor.submit(Call(cell.key, run_cell, (cell.run, threads), threads or 1))

    def hear(self, key: str, event: Event) -> None:
        """Say that a cell is begun."""
        self.begun += 1
        cells = [*self.waiting, *(cell for cell, _ in self.running.values())]
        left = about(_estimate(cells, _by_key(self.setup.out)) / max(1, min(self.most, len(self.running))))
        note(self.setup.on_event, f"{self.begun}/{self.count}  {self.running[key][0]}   about {left} left")

    def _end(self, outcome: Outcome) -> None:
        cell, lock = self.running.pop(outcome.key)
        with lock:
            if outcome.stopped:
                raise KeyboardInterrupt
            if outcome.error and not outcome.expected:
                raise RuntimeError(f"{cell}: {outcome.error}\n{outcome.trace}")
            line: Found = {"asked": dict(cell.asked)}
            found, seconds = outcome.value or (None, 0.0)
            line |= {"error": outcome.error} if outcome.error else {"found": found}
            line |= {"like": cell.like, "tokens": cell.tokens, "wall_seconds": seconds, "versions": installed()}
            with writing(self.setup.out / FILE), (self.setup.out / FILE).open("a", encoding="utf-8") as file:
                file.write(json_text(line) + "\n")
        if outcome.error:
            note(self.setup.on_event, f"{cell} failed: {outcome.error}")

    def close(self) -> None:
        """Give up what is under way."""
        self.executor.close()
        for _, lock in self.running.values():
            lock.close()


def run_cell(run: Callable[[], Mapping[str, Any]], threads: int | None, on_event: Listener) -> tuple[Found, float]:
    """Run a cell with so many threads; return what was found, and in how many seconds."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    on_event({"event": "begun"})
    began = time.monotonic()
    return dict(run()), round(time.monotonic() - began, 2)


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
