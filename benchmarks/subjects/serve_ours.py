"""Time a forward pass of 32 rows that are each of another task, beside --counts tasks in memory, and loading a task."""

from __future__ import annotations

import statistics
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from measured import Measured, arguments, median_seconds

import adaptree as at
from adaptree.data.encode import Encoding
from adaptree.methods import parse
from adaptree.models.bank import Bank
from adaptree.serve.shelf import Served, Shelf

ROWS, LENGTH, ROUNDS = 32, 22, 15
METHODS = ("houlsby:48", "pfeiffer:48", "lora:8", "lora(rank=8, targets=all)")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def made(base: at.Base, method: str, seed: int) -> Any:
    """Return a composition of one task with weights at random."""
    sites, generator = base.hooked.sites, torch.Generator().manual_seed(seed)
    v = parse(method).init(sites, base.hooked.backbone, generator)
    return SimpleNamespace(parts=[(parse(method), v)], expression=method)


def seconds(run: Any) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    options = arguments(("task", ""), ("counts", "64,512"))
    measured = Measured()
    base = at.load_base(options.base)
    rng = np.random.default_rng(0)
    rows = [
        Encoding(rng.integers(1000, 20_000, LENGTH).astype(np.int32), np.zeros(LENGTH, dtype=np.int32), False)
        for _ in range(ROWS)
    ]
    plain: dict[str, float] = {}
    mixed: dict[str, float] = {}
    memory: dict[str, float] = {}
    for method in METHODS:
        bank = Bank(base)
        places: list[Any] = [bank.add(made(base, method, 0))]
        before = resident()
        for count in map(int, options.counts.split(",")):
            places += [bank.add(made(base, method, i)) for i in range(len(places), count)]
            one, many = [], []
            for _ in range(ROUNDS + 2):
                picked = rng.choice(count, ROWS, replace=False)
                batch = [(places[i], [row]) for i, row in zip(picked, rows, strict=True)]
                one.append(seconds(partial(bank.states, [(places[0], rows)])))
                many.append(seconds(partial(bank.states, batch)))
            plain[f"{method} {count}"] = statistics.median(one[2:])
            mixed[f"{method} {count}"] = statistics.median(many[2:])
        memory[method] = (resident() - before) / ((len(places) - 1) * places[0].bytes)
        for place in places:
            bank.remove(place)
    load: dict[int, float] = {}
    store = at.Store(options.out)
    task = at.Store(options.task)["task"]
    for i in range(8):
        object.__setattr__(task.record, "name", f"task-{i}")
        store.add(task)
    shelf = Shelf(base, store, memory=16 << 30)
    for count in map(int, options.counts.split(",")):
        for i in range(count - len(shelf)):
            shelf._here[f"other-{len(shelf)}@1"] = SimpleNamespace(  # type: ignore[assignment]
                place=shelf.bank.add(made(base, "houlsby:64", i)), busy=False, bytes=0, retire=lambda: None
            )

        def fetch(i: int) -> None:
            shelf.forget(f"task-{i}")
            found = shelf.get(f"task-{i}")
            (found if isinstance(found, Served) else found.result()).release()

        load[count] = median_seconds(fetch, 8)
    measured.say(plain=plain, mixed=mixed, memory=memory, load=load)


if __name__ == "__main__":
    main()
