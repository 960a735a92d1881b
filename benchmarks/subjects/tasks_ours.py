"""Time loading and adding a task beside --counts others in the store."""

from __future__ import annotations

import dataclasses
import os

from measured import Measured, arguments, median_seconds

import adaptree as at
from adaptree.tasks.task import Task


def main() -> None:
    options = arguments(("task", ""), ("counts", "1,10"))
    measured = Measured()
    base = at.load_base(options.base)
    source = at.Store(options.task)
    task, folder = source["task"], source.path_of("task")
    store = at.Store(options.out)
    load: dict[int, float] = {}
    add: dict[int, float] = {}
    there = 0
    for count in map(int, options.counts.split(",")):
        while there < count:  # linked, not copied: what is measured is the reading
            place = store.path / "tasks" / f"task-{there}" / "1"
            place.mkdir(parents=True)
            for file in folder.iterdir():
                os.link(file, place / file.name)
            there += 1
        load[count] = median_seconds(lambda i, n=count: base.bind(store[f"task-{i * 7919 % n}"]), 30)
        new = [Task(dataclasses.replace(task.record, name=f"new-{count}-{i}"), task.tensors) for i in range(10)]
        add[count] = median_seconds(lambda i, of=new: store.add(of[i]), len(new))
        for each in new:
            store.remove(each.record.name)
    measured.say(load=load, add=add)


if __name__ == "__main__":
    main()
