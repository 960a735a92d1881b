"""A cell: one method with one setting and one seed, trained in a process of its own.

Its file is named by a digest of its specification (data, base, method, settings, device), so that a finished cell is
found again. The file holds the specification as `asked`; `state`, which is asked (not finished), done or failed; and
`found` (scores and price) or `error`.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.files import digest, read, write
from adaptree.data.events import Event, Listener, note
from adaptree.errors import AdaptreeError, TrainingError
from adaptree.methods import Method, parse
from adaptree.models.opening import base_of
from adaptree.reports.json_text import json_text
from adaptree.training.run import Run
from adaptree.training.work import Call, Outcome, executor_for
from adaptree.training.work.interrupt import ctrl_c

if TYPE_CHECKING:
    from adaptree.tasks.store import Store
    from adaptree.tasks.task import Task

LOOK = 0.2
"""Seconds from one look at running cells to the next."""
Cell = dict[str, Any]


def run_all(
    cells: Sequence[Cell],
    place: Mapping[str, Any],
    folder: Path,
    need_task: bool,
    retry: bool,
    on_event: Listener,
    *,
    jobs: int = 1,
    cluster: str | None = None,
) -> list[Cell]:
    """Run the cells that are not done yet; return the files of all of them, done or failed.

    Failed cells are run again with `retry`, finished ones if their task is needed and not in the store.
    """
    from adaptree.tasks.store import Store

    store = Store(folder / "store")
    paths = [folder / "cells" / f"{digest(cell)}.json" for cell in cells]

    def is_open(path: Path) -> bool:
        state = read(path).get("state")
        if state == "done":
            return need_task and path.stem not in store
        return state != "failed" or retry

    todo = {path.stem: (path, cell) for path, cell in zip(paths, cells, strict=True) if is_open(path)}
    if len(todo) < len(cells):
        note(on_event, f"{len(cells) - len(todo)} of {len(cells)} cells are finished already.")
    if todo:
        _run_open(todo, place, store, on_event, jobs, cluster)
    return [read(path) for path in paths]


def _run_open(
    todo: Mapping[str, tuple[Path, Cell]],
    place: Mapping[str, Any],
    store: Store,
    on_event: Listener,
    jobs: int,
    cluster: str | None,
) -> None:
    """Run cells, by the digest of their specification; raise KeyboardInterrupt after Ctrl-C."""
    began: dict[str, float] = {}
    took: list[tuple[str, float]] = []
    left = dict(todo)

    def hear(key: str, event: Event) -> None:
        rest = [cell["method"] for _, cell in left.values()]
        began[key] = time.monotonic()
        number = len(began)
        on_event(
            {"event": "cell", "number": number, "cells": len(todo), "left": _left(took, rest), **_setting(todo[key][1])}
        )

    with contextlib.closing(executor_for(cluster, jobs, hear)) as executor, ctrl_c() as pressed:
        kept = None if executor.sends_files else str(store.path.resolve())
        for key, (path, cell) in todo.items():
            write(path, {"state": "asked", "asked": cell})
            executor.submit(Call(key, make_cell, (key, cell, place, kept), cores=cell["threads"] or 1))
        while left:
            for outcome in executor.outcomes(LOOK):
                path, cell = left.pop(outcome.key)
                took.append((cell["method"], time.monotonic() - began.get(outcome.key, time.monotonic())))
                if outcome.stopped:
                    raise KeyboardInterrupt
                _keep(outcome, path, cell, store, on_event)
            if pressed():
                raise KeyboardInterrupt


def _keep(outcome: Outcome, path: Path, cell: Cell, store: Store, on_event: Listener) -> None:
    """Write down how a cell has ended, and put its task into the store if it was trained elsewhere."""
    ended, task = outcome.value if outcome.value else ({"state": "failed", "asked": cell, "error": outcome.error}, None)
    if task is not None:
        store.add(task)
    write(path, ended)
    if ended["state"] == "failed":
        note(on_event, f"{_described(cell)} failed: {ended['error']}")


def make_cell(
    name: str, cell: Cell, place: Mapping[str, Any], store: str | None, on_event: Listener
) -> tuple[Cell, Task | None]:
    """Train a cell in a process of its own; return what its file says then, and its task if there is no `store`."""
    from adaptree.tasks.store import Store

    on_event({"event": "begun"})
    with tempfile.TemporaryDirectory() as folder:
        path, kept = Path(folder) / f"{name}.json", store or f"{folder}/store"
        files = {part: str(file) for part, file in place["files"].items()}
        where = {**place, "files": files, "base": str(place["base"]), "store": kept}
        write(path, {"state": "asked", "asked": cell, "place": where})
        _run(path)
        ended = read(path)
        ended.pop("place", None)
        return ended, Store(kept)[name] if store is None and ended["state"] == "done" else None


def _left(took: Sequence[tuple[str, float]], rest: Sequence[str]) -> float | None:
    """Estimate the seconds that the rest takes: by the mean of the same method, else of all that ran."""
    if not took:
        return None
    usual = statistics.fmean(seconds for _, seconds in took)
    by = {name: statistics.fmean(s for n, s in took if n == name) for name, _ in took}
    return sum(by.get(name, usual) for name in rest)


def _run(path: Path) -> None:
    """Run one cell in a process of its own; its file says how it ended, also if the process was killed."""
    log = path.with_suffix(".log")
    with log.open("wb") as lines, ctrl_c() as pressed:
        child = subprocess.Popen(
            [sys.executable, "-m", "adaptree.analysis.compare", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=lines,
            stderr=lines,
            start_new_session=True,  # Ctrl-C ends the comparison; in the cell it would only end training early
        )
        try:
            while (code := _ended(child)) is None:
                if pressed():
                    raise KeyboardInterrupt
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    found = read(path)
    if found.get("state") == "asked":
        why = "killed, for want of memory perhaps" if code == -9 else f"its process ended with {code}"
        last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1][:200]
        write(path, {**found, "state": "failed", "error": f"{why}: {last}" if last else why})


def _ended(child: subprocess.Popen[bytes]) -> int | None:
    """Return a process's exit code; None if it is still running after a moment."""
    try:
        return child.wait(LOOK)
    except subprocess.TimeoutExpired:
        return None


def run_cell(path: Path) -> None:
    """Train the cell that a file specifies and write the result into it: the main function of a cell's process."""
    cell = read(path)
    spec, place = cell["asked"], cell["place"]
    parent = os.getppid()

    def watch(event: Event) -> None:
        if os.getppid() != parent:
            raise SystemExit("the comparison was killed, so this cell is not needed.")
        if event["event"] == "epoch":
            print(json_text({k: v for k, v in event.items() if isinstance(v, int | float | str)}), file=sys.stderr)

    try:
        found = _train(spec, place, path.stem, watch)
    except AdaptreeError as error:
        write(path, {**cell, "state": "failed", "error": str(error)})
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        write(path, {**cell, "state": "failed", "error": f"{type(error).__name__}: {first}"})
        raise
    else:
        write(path, {"state": "done", "asked": spec, "found": found, "tests": {}})


def _train(spec: Cell, place: Mapping[str, Any], name: str, watch: Listener) -> dict[str, Any]:
    from adaptree.tasks.store import Store
    from adaptree.training.pipeline import train

    began = time.monotonic()
    base = base_of(place["base"], spec["device"], spec["threads"], **place["trust"])
    before = _memory(start=True)
    settings = {key: value for key, value in spec["settings"].items() if value is not None}
    method, fast = method_of(spec["method"])
    run = Run.of(
        place["files"]["train"],
        validation=place["files"]["validation"],
        **place["columns"],
        name=name,
        base=base,
        method=method,
        fast=fast,
        store=Store(place["store"]),
        baselines=False,
        threads=spec["threads"],
        **settings,
    )
    bound = train(run, watch)[0]
    peak, record = _memory(), bound.task.record
    if not record.settings.get("finished", True):
        raise TrainingError("the run was stopped.", hint="--retry")
    return {
        "task": record.reference,
        "metrics": record.metrics,
        "intervals": record.intervals,
        "parameters": record.parameters,
        "trained_percent": record.trained_percent,
        "settings": record.settings,
        "bytes": record.file_bytes,
        "seconds": record.seconds,
        "wall_seconds": round(time.monotonic() - began, 3),
        "base_memory": before,
        "peak_memory": peak,
        "memory": None if before is None or peak is None else max(0, peak - before),
    }


def _memory(start: bool = False) -> int | None:
    """Return this process's peak memory in bytes; with `start`, first reset the peak to what it holds now, if it can.

    Not by getrusage on Linux, where a process inherits the peak of the one that started it.
    """
    try:
        if start:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        with contextlib.suppress(ImportError):
            import resource

            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return held if sys.platform == "darwin" else held * 1024
    return None


FAST = " --fast"


def method_of(spelling: str | Method) -> tuple[Method, bool]:
    """Return the method, and whether its spelling ends in --fast."""
    fast = isinstance(spelling, str) and spelling.endswith(FAST)
    return parse(spelling.removesuffix(FAST) if isinstance(spelling, str) else spelling), fast


def full_spelling(spelling: str | Method) -> str:
    """Return the method as it spells itself, houlsby(size=64), with --fast where that was added."""
    method, fast = method_of(spelling)
    return f"{method}{FAST}" if fast else str(method)


def short_spelling(spelling: str) -> str:
    """Return the shortest spelling: houlsby:64 for houlsby(size=64), ia3 for ia3(scale_init=1.0)."""
    method, fast = method_of(spelling)
    return f"{_short(method)}{FAST}" if fast else _short(method)


def _short(method: Method) -> str:
    value = getattr(method, method.main, None)
    if method == type(method)() and (isinstance(value, bool) or not isinstance(value, int)):
        return method.name
    short = f"{method.name}:{value:g}" if isinstance(value, float) else f"{method.name}:{value}"
    with contextlib.suppress(AdaptreeError):
        return short if value is not None and parse(short) == method else str(method)
    return str(method)


def _setting(cell: Cell) -> dict[str, Any]:
    """Return what tells a cell from the others of a comparison."""
    return {"method": short_spelling(cell["method"]), **{k: cell["settings"][k] for k in ("lr", "epochs", "seed")}}


def _described(cell: Cell) -> str:
    method, *rest = _setting(cell).items()
    return ", ".join([method[1], *(f"{key} {value}" for key, value in rest if value is not None)])
