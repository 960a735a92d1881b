"""The same methods on several tasks: a comparison for each, then one table over all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adaptree.analysis.compare import compare
from adaptree.analysis.compare.files import read
from adaptree.analysis.experiments import summary
from adaptree.analysis.experiments.tasks import Asked, Task, files, named


@dataclass(frozen=True)
class Grid:
    """Tasks and methods, and how much of each."""

    title: str
    tasks: Sequence[Task]
    methods: Sequence[str]
    reference: str
    """The method that the others are set against."""
    rows: int
    epochs: int
    draw: Callable[[Sequence[summary.Row], Path], None]
    seeds: int = 1
    more_seeds: Mapping[str, int] = field(default_factory=dict)
    """By task, where there are more."""

    def run(self, asked: Asked) -> str:
        out = asked.out
        for task in named(asked.tasks, self.tasks):
            train, test = files(task, asked.data, out / "rows")
            asked.on_event({"event": "note", "text": task.name})
            compare(
                train, test=test, methods=self.methods, out=out / task.name, rows=self.rows, epochs=(self.epochs,),
                base=asked.base, seeds=asked.seeds or self.more_seeds.get(task.name, self.seeds),
                threads=asked.threads, title=task.name, command=asked.command, on_event=asked.on_event,
            )  # fmt: skip
        return self.summarise(out, asked.command)

    def summarise(self, out: Path, command: str) -> str:
        """One table and one figure over the tasks that are done."""
        done = [path for task in self.tasks if (path := out / task.name / "results.json").is_file()]
        return summary.write(
            [read(path) for path in done], out, title=self.title, reference=self.reference, command=command,
            draw=self.draw,
        )  # fmt: skip
