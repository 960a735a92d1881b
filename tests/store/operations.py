"""Operations on a store in processes that are killed, or that run at once; run as a script by test_versions.py.

    python -m tests.store.operations kill STORE KILLS SEED
    python -m tests.store.operations together STORE PROCESSES SECONDS

A child is forked from a process that has imported torch already, so that a campaign takes seconds. It writes each
operation into a journal before and after it. What the journal calls done must be there; the one that was under way when
the child was killed may be there, whole, or not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from adaptree.errors import TaskNotFound, UsageError
from adaptree.hub.verify import verify
from adaptree.tasks.record import Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.tasks.versions import rollback

NAMES = ("a", "b", "lang/qu")
TAGS = ("stable", "best")
State = dict[str, dict[str, Any]]
"""By name: the versions, the fill of each one's weights, and the tags."""


def task(name: str, fill: float) -> Task:
    record = Record(name=name, kind="classify", method="houlsby(size=2)", base={"name": "b", "fingerprint": "f"})
    return Task(record, {"head.bias": torch.full((50,), fill)})


def journal(path: Path, *entry: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def operate(store: Store, rng: random.Random, path: Path) -> None:
    """Do one operation, and write it down before and after."""
    name = rng.choice(NAMES)
    versions = store.versions(name)
    what = rng.choices(("add", "remove", "tag", "rollback"), (4, 2, 3, 2))[0] if len(versions) > 1 else "add"
    if what == "add":
        fill = float(rng.randrange(1000))
        journal(path, "begin", "add", name, fill)
        journal(path, "done", "add", name, fill, store.add(task(name, fill)).record.version)
    elif what == "remove":
        number = rng.choice(versions)
        journal(path, "begin", "remove", name, number)
        store.remove(f"{name}@{number}", force=True)
        journal(path, "done", "remove", name, number)
    elif what == "tag":
        number, tag = rng.choice(versions), rng.choice(TAGS)
        journal(path, "begin", "tag", name, number, tag)
        store.tag(f"{name}@{number}", tag)
        journal(path, "done", "tag", name, number, tag)
    else:
        number = rng.choice(versions[:-1])
        journal(path, "begin", "rollback", name, number)
        journal(path, "done", "rollback", name, number, rollback(store, f"{name}@{number}").record.version)


def expected(path: Path) -> tuple[State, list[Any] | None]:
    """What the journal's completed operations leave, and the one that was under way."""
    state: State = {name: {"fill": {}, "tags": {}} for name in NAMES}
    open_: list[Any] | None = None
    for line in path.read_text().splitlines():
        when, what, name, *rest = json.loads(line)
        if when == "begin":
            open_ = [what, name, *rest]
            continue
        open_ = None
        apply(state, what, name, *rest)
    return state, open_


def apply(state: State, what: str, name: str, *rest: Any) -> None:
    fill, tags = state[name]["fill"], state[name]["tags"]
    if what == "add":
        fill[rest[1]] = rest[0]
    elif what == "rollback":
        fill[rest[1]] = fill[rest[0]]
    elif what == "remove":
        del fill[rest[0]]
        for tag in [tag for tag, number in tags.items() if number == rest[0]]:
            del tags[tag]
    else:
        tags[rest[1]] = rest[0]


def actual(store: Store) -> State:
    """What the store holds; every version is read whole."""
    return {
        name: {
            "fill": {
                number: store[f"{name}@{number}"].tensors["head.bias"][7].item() for number in store.versions(name)
            },
            "tags": store.tags(name),
        }
        for name in NAMES
    }


def with_last(state: State, found: State, last: list[Any]) -> State:
    """What would be there if the operation under way had been completed; a new version has the number it was given."""
    what, name, *rest = last
    new = sorted(found[name]["fill"].keys() - state[name]["fill"].keys())
    after: State = json.loads(json.dumps(state), object_hook=_with_numbers)
    if what in ("add", "rollback"):
        if len(new) == 1:
            apply(after, what, name, *rest, new[0])
    else:
        apply(after, what, name, *rest)
    return after


def _with_numbers(values: dict[str, Any]) -> dict[Any, Any]:
    return {int(key) if key.isdigit() else key: value for key, value in values.items()}


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(3)
    os._exit(0)


def kill(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill a child at random moments, again and again over the same store; compare it with the journal each time."""
    store, path, rng = Store(folder), folder.parent / "journal", random.Random(seed)
    path.touch()
    usual = warm_up(folder.parent / "first")
    wrong: list[str] = []
    for turn in range(kills):

        def work(turn: int = turn) -> None:
            own = random.Random(f"{seed} {turn}")
            while True:
                operate(store, own, path)

        child = fork(work)
        wanted = done(path) + rng.randrange(4)
        while done(path) < wanted:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, usual))  # somewhere in the next one
        os.kill(child, signal.SIGKILL)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            wrong.append(f"{turn}: the child ended by itself")
        before, last = expected(path)
        found = actual(store)
        choices = [before] + ([with_last(before, found, last)] if last else [])
        if found not in choices:
            wrong.append(f"{turn}: {found}, not {choices}")
        if last and found != before:  # the next turn begins with what there is
            number = max(found[last[1]]["fill"], default=0)
            journal(path, "done", *last, *([number] if last[0] in ("add", "rollback") else []))
        damaged = verify(store).damaged
        if damaged:
            wrong.append(f"{turn}: {[row.problem for row in damaged]}")
    return {"kills": kills, "completed": done(path), "wrong": wrong}


def done(path: Path) -> int:
    return path.read_text().count('["done"')


def warm_up(folder: Path) -> float:
    """Import all that the first operation imports, so that no child has to; return how long a later one takes."""
    store, rng = Store(folder), random.Random(0)
    started = []
    for _ in range(12):
        started.append(time.monotonic())
        operate(store, rng, folder.with_suffix(".journal"))
    actual(store)
    verify(store)
    return (started[-1] - started[3]) / 8


def together(folder: Path, processes: int, seconds: float) -> dict[str, Any]:
    """Add, remove, tag and read in several processes at once; then compare the store with what all of them did."""
    warm_up(folder.parent / "first")
    store, started = Store(folder), time.monotonic()
    paths = [folder.parent / f"journal-{number}" for number in range(processes)]

    def work(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() - started < seconds:
            name = rng.choice(NAMES)
            try:
                if rng.random() < 0.5:
                    reference = rng.choice([name, f"{name}@{rng.choice(TAGS)}"])
                    weights = store[reference].tensors["head.bias"]
                    assert (weights == weights[0]).all()
                    store.list()
                    journal(paths[number], "done", "read", name)
                else:
                    operate(store, rng, paths[number])
            except (TaskNotFound, UsageError):
                pass  # another process removed it, or made a newer one, meanwhile

    children = [fork(lambda number=number: work(number)) for number in range(processes)]  # type: ignore[misc]
    ended = [os.waitpid(child, 0)[1] for child in children]
    wrong = [f"process {number} ended with {code}" for number, code in enumerate(ended) if code]
    entries = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    changes = [entry[1:] for each in entries for entry in each if entry[0] == "done" and entry[1] != "read"]
    added = [(name, rest[-1], rest[0]) for what, name, *rest in changes if what == "add"]
    again = [(name, rest[-1]) for what, name, *rest in changes if what == "rollback"]
    removed = [(name, rest[0]) for what, name, *rest in changes if what == "remove"]
    found = actual(store)
    there = {(name, number) for name, each in found.items() for number in each["fill"]}
    made = [(name, number) for name, number, _ in added] + again
    # A name whose versions were all removed begins with 1 again, so that numbers come back.
    for each in {*made, *removed, *there}:
        if made.count(each) - removed.count(each) != (each in there):
            wrong.append(f"{each}: added {made.count(each)} times, removed {removed.count(each)} times")
    fills = {(name, number): {fill for n, v, fill in added if (n, v) == (name, number)} for name, number, _ in added}
    for name, number in there - set(again):
        if found[name]["fill"][number] not in fills.get((name, number), ()):
            wrong.append(f"{name}@{number} has the weights of another")
    for name, each in found.items():
        wrong += [f"{name}@{tag} is {number}" for tag, number in each["tags"].items() if number not in each["fill"]]
    return {"wrong": wrong, "operations": [len(each) for each in entries]}


if __name__ == "__main__":
    from adaptree.reports import figures

    figures.figures = lambda record: {}  # drawing takes longer than all the rest
    torch.set_num_threads(1)
    store_folder = Path(sys.argv[2])
    if sys.argv[1] == "kill":
        print(json.dumps(kill(store_folder, int(sys.argv[3]), int(sys.argv[4]))))
    else:
        print(json.dumps(together(store_folder, int(sys.argv[3]), float(sys.argv[4]))))
    sys.exit(0)
