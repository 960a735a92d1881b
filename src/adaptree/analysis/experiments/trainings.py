"""Cells that train a task, of any kind and on top of other cells' tasks; a training that was killed is resumed.

A task that other cells build on is kept in OUT/store under its cell's key, so that with other settings it is another
task. If it is no longer there, it is trained again: the same seed gives the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.cells import full_spelling
from adaptree.analysis.compare.files import digest, file_digest
from adaptree.analysis.experiments.corpora import count_lines
from adaptree.analysis.experiments.ledger import Cell
from adaptree.analysis.experiments.setup import Setup
from adaptree.methods import parse
from adaptree.models.opening import base_of
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training import checkpoint
from adaptree.training.pipeline import train
from adaptree.training.precision import quick_at_bf16
from adaptree.training.run import Run

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound

LENGTH = 256
"""Tokens of a text at most, where an experiment leaves it to the base."""
Then = Callable[["Bound"], Mapping[str, Any]]
"""What is measured of a trained task beside its scores."""


@dataclass(frozen=True, kw_only=True)
class Training(Cell):
    """A cell whose task is in `store` under `name` when it is done."""

    name: str
    store: Path

    def task(self) -> Task:
        """Return the task; train it again if it is not in the store."""
        if self.name not in Store(self.store):
            self.run()
        return Store(self.store)[self.name]


@dataclass(frozen=True)
class Trainer:
    """Makes the cells of one experiment: all over one base, with batches and lengths of one size."""

    setup: Setup
    base: Base
    batch_size: int
    max_length: int | None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """What else decides the results, as JSON values: every cell's `asked` has it."""

    @classmethod
    def of(cls, setup: Setup, batch_size: int, max_length: int | None, **recipe: Any) -> Trainer:
        return cls(setup, base_of(setup.base, "auto", setup.threads), batch_size, max_length, recipe)

    @property
    def store(self) -> Path:
        return self.setup.out / "store"

    def asked(self, **more: Any) -> dict[str, Any]:
        """Return what all cells are asked for, and `more`."""
        return {
            **more, "base": self.base.name, "fingerprint": self.base.fingerprint, "batch_size": self.batch_size,
            "max_length": self.max_length, "recipe": dict(self.recipe),
        }  # fmt: skip

    def epochs(self, files: Mapping[str, Path], steps: int) -> int:
        """Return how many passes over the training rows have at least this many batches."""
        return max(1, math.ceil(steps * self.batch_size / max(1, count_lines(files["train"]))))

    def cell(
        self,
        what: str,
        task: str,
        files: Mapping[str, Path],
        method: str,
        epochs: int,
        seed: int = 0,
        *,
        fuse: Sequence[Training] = (),
        on: Training | None = None,
        start: Training | None = None,
        head: Training | None = None,
        then: Then | None = None,
        keep: bool = True,
        about: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Training:
        """Return the cell that trains a task on files[train], and scores it on files[validation] and files[test].

        Without a validation file a fifth of the training rows is held out.

        `fuse` are the cells whose tasks it fuses, `on` is the one that it is trained on top of, `start` the one whose
        weights it goes on with, `head` the one whose head it takes as it is. `then` measures more. Without `keep` no
        other cell can build on the task. `about` is further said in `asked`; `options` are those of `Run.of`.
        """
        links = {"on": on, "start": start, "head": head}
        given: dict[str, Any] = {role: cell.name for role, cell in links.items() if cell is not None}
        if fuse:
            given["fuse"] = [cell.name for cell in fuse]
        spelled = method if fuse else full_spelling(method)
        asked = self.asked(
            what=what, task=task, method=spelled, epochs=epochs, seed=seed, **options, **given, **(about or {}),
            rows={part: file_digest(path) for part, path in files.items()},
        )  # fmt: skip
        key = digest(asked)
        built_on = [*fuse, *(cell for cell in links.values() if cell is not None)]
        needs = tuple({cell.key: cell for cell in built_on}.values())
        options |= {"epochs": epochs, "seed": seed, "batch_size": self.batch_size, "max_length": self.max_length}
        learn = partial(self._train, f"{key}/{task}", files, method, options, fuse, links, then, keep)
        stages = 1 if fuse else parse(method).stages
        tokens = round(self._tokens(files) * epochs * stages * (1 + 0.05 * len(fuse)))
        like = f"{method.partition('(')[0].partition(':')[0]}, {options.get('kind', '')}".removesuffix(", ")
        return Training(asked, learn, tokens, like, needs, name=f"{key}/{task}", store=self.store)

    def _tokens(self, files: Mapping[str, Path]) -> float:
        """Return roughly how many tokens the training rows have."""
        rows = count_lines(files["train"])
        return min(files["train"].stat().st_size / max(rows, 1) / 5, self.max_length or LENGTH) * rows

    def _train(
        self,
        name: str,
        files: Mapping[str, Path],
        method: str,
        options: Mapping[str, Any],
        fuse: Sequence[Training],
        links: Mapping[str, Training | None],
        then: Then | None,
        keep: bool,
    ) -> dict[str, Any]:
        began = time.process_time()
        tasks = {role: cell.task() for role, cell in links.items() if cell is not None}
        on = tasks.pop("on").record.name if "on" in tasks else None
        if fuse:
            method = f"fuse({', '.join(cell.task().record.name for cell in fuse)})"
        folder = self.setup.out / "checkpoints" / name.partition("/")[0]
        precision = "bf16" if quick_at_bf16(self.base.device.partition(":")[0]) else None
        run = Run.of(
            files["train"], validation=files.get("validation"), test=files.get("test"), name=name, base=self.base,
            method=method, on=on, **tasks, baselines=False, objective="cross-entropy", precision=precision,
            store=Store(self.store) if keep or on or fuse else None, checkpoints=folder,
            resume="start" not in tasks and (folder / checkpoint.FILE).is_file(), **options,
        )  # fmt: skip
        bound = train(run)[0]
        record = bound.task.record
        if not record.settings.get("finished", True):  # Ctrl-C: half a training is no cell, and can be resumed
            raise KeyboardInterrupt
        found = {
            **measured(bound), "precision": precision or "fp32", **(then(bound) if then else {}),
            "cpu_seconds": round(time.process_time() - began, 2),
        }  # fmt: skip
        checkpoint.remove(folder)
        return found


def measured(bound: Bound) -> dict[str, Any]:
    """Return a task's kind, scores, price and numbers of rows."""
    record = bound.task.record
    return {
        "kind": record.kind,
        **record.metrics,
        "intervals": record.intervals.get("test", {}),
        "trained": record.parameters["trained"],
        "of_base": record.parameters.get("base", 0),
        "train_rows": record.data["train"],
        "validation_rows": record.data["validation"],
        "test_rows": record.data["test"],
        "best_epoch": record.settings.get("best_epoch"),
        "seconds": record.seconds,
    }


def length(recipe: Mapping[str, Any], batch_size: int) -> str:
    """Return how long the trainings of a recipe are, in words."""
    if "steps" in recipe:
        return f"{recipe['steps']:,} batches of {batch_size} or a little more, to whole epochs"
    return f"{recipe['epochs']} epochs in batches of {batch_size}"
