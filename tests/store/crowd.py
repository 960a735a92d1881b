"""Processes that use one store at the same time, and processes that are killed while they do.

`python -m tests.store.crowd together URL PROCESSES SECONDS` and `… killed URL ROUNDS FOLDER` check that nothing is lost
and nothing is half there, and print what was done. They fork, so that torch is imported once for all.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from adaptree.errors import TaskNotFound
from adaptree.hub.transfer import push
from adaptree.hub.verify import verify
from adaptree.reports import card, figures  # noqa: F401  # once for all processes
from adaptree.tasks import beside
from adaptree.tasks.record import Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.tasks.versions import rollback

NAMES = ("a", "b", "lang/qu")
LEAST = 8
"""Things that each process does, however slow the machine is."""
GONE = re.compile("no (task|version)")
"""The problem of a version that is removed while it is listed."""


def task(name: str, number: int) -> Task:
    """A task that tells by its tensors which one it is."""
    record = Record(name=name, kind="classify", method="houlsby(size=2)", base={"name": "minilm"})
    return Task(record, {"head.bias": torch.full((2048,), float(number))})


def number_of(found: Task) -> int:
    values = found.tensors["head.bias"]
    assert values.shape == (2048,)
    assert (values == values[0]).all()
    return int(values[0])


def work(url: str, worker: int, seconds: float) -> dict[str, Any]:
    """Add, remove, tag, note and read for so many seconds, and at least some times; return what was done."""
    store, rng = Store(url), random.Random(worker)
    added: dict[str, int] = {}
    removed: list[str] = []
    noted: list[tuple[str, str]] = []
    reads, number, until = 0, worker * 100_000, time.monotonic() + seconds
    for turn in itertools.count():
        if turn >= LEAST and time.monotonic() > until:
            break
        name = rng.choice(NAMES)
        match rng.choices(("add", "remove", "tag", "note", "read", "list"), (4, 1, 1, 1, 3, 1))[0]:
            case "add":
                number += 1
                added[store.add(task(name, number)).record.reference] = number
            case "remove" if versions := store.versions(name):
                doomed = f"{name}@{rng.choice(versions)}"
                try:
                    store.remove(doomed, force=True)
                    removed.append(doomed)
                except TaskNotFound:
                    pass
            case "tag" if versions := store.versions(name):
                store.write_beside(name, "stable.tag", str(versions[-1]))
            case "note" if versions := store.versions(name):
                noted.append((name, f"{worker} {number} {len(noted)}"))
                store.append_beside(name, "0.notes", noted[-1][1])
            case "read" if versions := store.versions(name):
                try:
                    number_of(store[f"{name}@{rng.choice(versions)}"])
                    reads += 1
                except TaskNotFound:
                    pass
            case "list":
                problems = [line.problem for line in store.list() if line.problem]
                assert all(GONE.match(problem) for problem in problems), problems
    return {"added": added, "removed": removed, "noted": noted, "reads": reads}


def together(url: str, processes: int, seconds: float) -> dict[str, int]:
    """Have processes work at the same time, and compare the store with what they say they did."""
    outputs = [forked(lambda worker=worker: work(url, worker, seconds)) for worker in range(1, processes + 1)]
    done = [result(*output) for output in outputs]
    added = {reference: number for each in done for reference, number in each["added"].items()}
    removed = {reference for each in done for reference in each["removed"]}
    assert len(added) == sum(len(each["added"]) for each in done), "a number was given twice"
    assert len(removed) == sum(len(each["removed"]) for each in done), "a version was removed twice"
    assert removed <= added.keys()
    store = Store(url)
    there = {f"{name}@{version}" for name in store.names() for version in store.versions(name)}
    assert there == added.keys() - removed
    for reference in there:
        assert number_of(store[reference]) == added[reference]
    for name in NAMES:
        said = [line for each in done for of, line in each["noted"] if of == name]
        assert sorted(beside.lines(store.read_beside(name, "0.notes"))) == sorted(said)
        tag = beside.lines(store.read_beside(name, "stable.tag"))
        assert not tag or (len(tag) == 1 and f"{name}@{tag[0]}" in added)
    return {"added": len(added), "removed": len(removed), "reads": sum(each["reads"] for each in done)}


def killed(url: str, rounds: int, folder: Path) -> dict[str, int]:
    """Kill processes that add, push, remove or roll back at random moments; each time the store is as they left it."""
    rng, store, source = random.Random(rounds), Store(url), Store(folder)
    known: dict[str, int] = {}
    for number in (1, 2):
        began = time.monotonic()
        known[store.add(task("added", number)).record.reference] = number
    takes = time.monotonic() - began
    unsaid = 0
    for turn in range(1, rounds + 1):
        reader, child = os.pipe()
        pid = os.fork()
        if not pid:
            with os.fdopen(child, "w", buffering=1) as out:
                for step in (adding, pushing, rolling_back, removing)[turn % 4](url, folder, turn):
                    print(json.dumps(step), file=out)
        os.close(child)
        with os.fdopen(reader) as lines:
            first = lines.readline()  # it is at work
            time.sleep(rng.uniform(0, 2 * takes))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            said = [json.loads(line) for line in (first, *lines) if line.endswith("\n")]
        assert said, "the process ended by itself"
        before = dict(known)
        for reference, number in said:
            known.pop(reference) if number is None else known.update({reference: number})
        references = [f"{name}@{version}" for name in store.names() for version in store.versions(name)]
        there = {each: before[each] if each in before else number_of(store[each]) for each in references}
        assert all(there[each] == known[each] for each in there.keys() & known.keys())
        assert len(there.keys() ^ known.keys()) <= 1, "at most one that was not said to be done"
        unsaid += len(there.keys() ^ known.keys())
        known = there
        assert [line.problem for line in store.list() if line.problem] == []
    assert {each: number_of(store[each]) for each in known} == known
    assert verify(store).ok
    push(["pushed"], url, store=source, versions=True)
    sent = sorted(number_of(store[f"pushed@{version}"]) for version in store.versions("pushed"))
    assert sent == sorted(number_of(source[f"pushed@{version}"]) for version in source.versions("pushed"))
    return {"rounds": rounds, "versions": len(known), "unsaid": unsaid}


def adding(url: str, _: Path, turn: int) -> Iterator[tuple[str, int]]:
    store = Store(url)
    for number in itertools.count(turn * 1000):
        yield store.add(task("added", number)).record.reference, number


def rolling_back(url: str, _: Path, turn: int) -> Iterator[tuple[str, int]]:
    store, rng = Store(url), random.Random(turn)
    while True:
        added = rollback(store, f"added@{rng.choice(store.versions('added')[:-1])}")
        yield added.record.reference, number_of(added)


def removing(url: str, _: Path, turn: int) -> Iterator[tuple[str, int | None]]:
    """Remove versions, and add one whenever there are too few; a removed one is said with None."""
    store, rng = Store(url), random.Random(turn)
    for number in itertools.count(turn * 1000):
        if len(versions := store.versions("added")) > 2:
            doomed = f"added@{rng.choice(versions)}"
            store.remove(doomed, force=True)
            yield doomed, None
        else:
            yield store.add(task("added", number)).record.reference, number


def pushing(url: str, folder: Path, turn: int) -> Iterator[tuple[str, int]]:
    store, source = Store(url), Store(folder)
    for number in itertools.count(turn * 1000):
        source.add(task("pushed", number))
        (copied,) = push(["pushed"], store, store=source)
        yield copied.task, number


def forked(function: Any) -> tuple[int, int]:
    """Run a function in a process of its own; return its id and the pipe with its result."""
    reader, child = os.pipe()
    pid = os.fork()
    if pid:
        os.close(child)
        return pid, reader
    try:
        with os.fdopen(child, "w") as out:
            out.write(json.dumps(function()))
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def result(pid: int, reader: int) -> Any:
    with os.fdopen(reader) as lines:
        text = lines.read()
    assert os.waitpid(pid, 0)[1] == 0, "a process failed"
    return json.loads(text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if importlib.util.find_spec("s3fs"):
        import s3fs  # noqa: F401  # once for all processes
    what, url, count, last = sys.argv[1:]
    found = together(url, int(count), float(last)) if what == "together" else killed(url, int(count), Path(last))
    print(json.dumps(found))
