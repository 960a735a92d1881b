"""The CPU time of a store of --counts small tasks: add, list, search, verify, rebuild of the index, remove."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import subprocess
import sys
import time
from pathlib import Path

from measured import Measured, arguments, median_computed

import adaptree as at
from adaptree.hub.search import search
from adaptree.hub.verify import verify
from adaptree.reports.json_text import json_text
from adaptree.tasks.digests import SUMS, sums_text
from adaptree.tasks.record import RECORD, TENSORS, Record
from adaptree.tasks.task import CARD, Task
from adaptree.tasks.unchanged import YOUNG

WORDS = [
    first + last for first in ("al", "be", "co", "di", "ex", "fo", "gra", "hu") for last in ("ba", "de", "fi", "lo")
]


def main() -> None:
    options = arguments(("task", ""), ("counts", "100,1000"))
    measured = Measured()
    whole = at.Store(options.task)["task"]
    few = {name: tensor for name, tensor in whole.tensors.items() if name.startswith("head.")}
    small = Task(whole.record, few)  # the record of a real task, and the tensors of its head
    store = at.Store(options.out)
    model = store.add(small)
    first = store.path_of("task")
    found: dict[str, dict[int, float]] = {}
    there = 1
    for count in map(int, options.counts.split(",")):
        for number in range(there, count):
            copy(model.record, first, store.path / "tasks" / f"task-{number}" / "1", number)
        there = count
        time.sleep(YOUNG + 0.5)  # until the last files are old enough to be trusted by their times
        for what, seconds in times(store, small, count).items():
            found.setdefault(what, {})[count] = seconds
    measured.say(**found, record=(first / RECORD).stat().st_size)


def copy(record: Record, source: Path, target: Path, number: int) -> None:
    """Write another task of the same size, with a name and labels of its own."""
    target.mkdir(parents=True)
    draw = random.Random(number)
    labels = sorted({draw.choice(WORDS) + draw.choice(WORDS) for _ in range(4)})
    own = dataclasses.replace(record, name=target.parent.name, version=1, labels=labels)
    files = {name: (source / name).read_bytes() for name in (TENSORS, CARD)}
    files[RECORD] = f"{json_text(own.to_json(), indent=1, sort_keys=True)}\n".encode()
    files[SUMS] = sums_text({name: hashlib.sha256(data).hexdigest() for name, data in files.items()}).encode()
    for name, data in files.items():
        (target / name).write_bytes(data)


def times(store: at.Store, task: Task, count: int) -> dict[str, float]:
    """Return the CPU seconds of each operation in a store of so many tasks."""
    new = [Task(dataclasses.replace(task.record, name=f"new-{i}"), task.tensors) for i in range(8)]
    command = [sys.executable, "-m", "adaptree", "list", "--store", str(store.path), "--limit", "50"]
    store.list()  # what is imported only once is not counted
    store.index.clear()
    found = {
        "rebuild": median_computed(lambda i: store.list(), 1),
        "list": median_computed(lambda i: store.list(), 5),
        "command": median_computed(lambda i: subprocess.run(command, check=True, capture_output=True), 3),
        "search": median_computed(lambda i: search("alba codefi", store), 5),
        "verify": median_computed(lambda i: verify(store), 1),
        "add": median_computed(lambda i: store.add(new[i]), len(new)),
        "remove": median_computed(lambda i: store.remove(new[i].record.name), len(new)),
    }
    assert len(store) == count
    return found


if __name__ == "__main__":
    main()
