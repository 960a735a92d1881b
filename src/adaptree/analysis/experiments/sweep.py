"""Every method at its best: the same number of tries for each, chosen on validation, and only the choice is tested.

A try is one training, seed 0, scored on validation rows. A row of the table that has one method tries learning rates;
one that has several (sizes of adapters, numbers of layers) tries each of them at its own rate. The best try of each
row, on each task, is trained again with fresh seeds, and only those trainings are scored on the test rows. A row with
one candidate is not tried: there is nothing to choose. All have the same number of steps.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.analysis.compare.cells import full_spelling, short_spelling
from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import ledger, simple
from adaptree.analysis.experiments.corpora import Corpus, count_lines, parts
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select
from adaptree.kinds import metrics
from adaptree.methods import parse
from adaptree.models.opening import base_of
from adaptree.training.pipeline import train
from adaptree.training.precision import quick_at_bf16
from adaptree.training.run import Run

if TYPE_CHECKING:
    from adaptree.models.base import Base

RESAMPLES = 10_000


@dataclass(frozen=True)
class Task:
    """A corpus, and the metric that chooses and reports."""

    corpus: Corpus
    metric: str = "accuracy"

    @property
    def name(self) -> str:
        return self.corpus.name


@dataclass(frozen=True)
class Row:
    """A row of the table: the methods among which validation chooses."""

    label: str
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Recipe:
    """How the cells of a sweep are trained."""

    rows: int | None = 2000
    """Training rows of a task at most."""
    validation: int = 400
    steps: int | None = 400
    """Batches of each training; None: as many as `epochs` have."""
    epochs: tuple[int, ...] = ()
    batch_size: int = 8
    max_length: int = 128
    quick: bool = True
    """Whether steps are computed in bf16 where the processor is quicker at that; scores always in fp32."""
    factors: tuple[float, ...] = (1 / 3, 1.0, 3.0)
    """The learning rates that are tried for the only method of a row, relative to the method's own."""
    lrs: tuple[float, ...] = ()
    """The learning rates themselves, for all methods of a row, in the place of `factors`."""
    seeds: int = 3

    def tries(self, method: str, rows: int, *, alone: bool = True) -> list[tuple[float | None, int | None]]:
        """Return the learning rates and numbers of epochs to try for a method on so many rows; `alone` in its row."""
        if simple.is_simple(method) or parse(method).standalone or parse(method).name == "head":
            return [(None, None)]
        factors = self.factors if alone else (1.0,)
        lrs = self.lrs or tuple(float(f"{factor * parse(method).lr:.2g}") for factor in factors)
        epochs = self.epochs or (max(1, math.ceil((self.steps or 0) * self.batch_size / rows)),)
        return list(itertools.product(lrs, epochs))


PAPER = Recipe(
    rows=None,
    validation=1000,
    steps=None,
    epochs=(3, 20),
    batch_size=32,
    max_length=128,
    quick=False,
    lrs=(3e-5, 3e-4, 3e-3),
    seeds=5,
)
"""Houlsby et al. 2019, §3.2: for BERT-large on a GPU."""


@dataclass(frozen=True)
class Chosen:
    """A row's choice on one task, with the trainings that were tested."""

    method: str
    lr: float | None
    epochs: int | None
    tried: int
    finals: tuple[Found, ...]
    metric: str

    @property
    def scores(self) -> list[float]:
        """The test scores in points."""
        return self.points(self.metric)

    def points(self, metric: str) -> list[float]:
        """Return the test scores by another metric, in points."""
        return [100 * float(cell["found"]["test"][metric]) for cell in self.finals]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def trained(self) -> int:
        """The number of trained parameters."""
        return int(self.finals[0]["found"]["trained"])

    @property
    def share(self) -> float:
        """Trained parameters, as a share of the base's; 0 for what does not use the base."""
        base = self.finals[0]["found"]["base"]
        return float(self.trained / base) if base else 0.0


@dataclass(frozen=True)
class Sweep:
    """The rows and tasks of a table."""

    tasks: tuple[Task, ...]
    rows: tuple[Row, ...]
    recipe: Recipe = Recipe()

    def run(self, setup: Setup) -> dict[str, dict[str, Chosen]]:
        """Run what is missing, task by task; return the choices that are done by row and task."""
        if setup.redraw:
            return self.read(setup.out)
        recipe = PAPER if setup.paper else self.recipe
        if setup.seeds:
            recipe = replace(recipe, seeds=setup.seeds)
        base = base_of(setup.base, "auto", setup.threads)
        found: dict[str, dict[str, Chosen]] = {row.label: {} for row in self.rows}
        for task in select(setup.tasks, self.tasks):
            files = parts(task.corpus, setup.data, setup.out / "rows", recipe.rows, recipe.validation)
            on = _On(task, files, base, recipe)
            tries = list(on.tries(self.rows))
            tried = ledger.run(tries, setup) if tries else []
            best = {row.label: on.best(row, tried) for row in self.rows}
            finals = [cell for choice in best.values() if choice for cell in on.finals(choice)]
            scored = ledger.run(finals, setup)
            for label, choice in best.items():
                if choice and (chosen := _tested(choice, scored, task)):
                    found[label][task.name] = chosen
        return found

    def read(self, out: Path) -> dict[str, dict[str, Chosen]]:
        """Return the choices that are done by row and task, from the cells alone: no dataset and no base is opened.

        Of cells with several bases or recipes, those that there are most of are read.
        """
        return self._read(ledger.alike(ledger.read(out), "fingerprint", "batch_size", "max_length"))

    def by_base(self, setup: Setup) -> dict[str, dict[str, dict[str, Chosen]]]:
        """Run what is missing; return the choices of every base that has cells, by its name, in the cells' order."""
        found = self.run(setup)
        cells = ledger.read(setup.out)
        names = dict.fromkeys(cell["asked"]["base"] for cell in cells)
        own = {name: [cell for cell in cells if cell["asked"]["base"] == name] for name in names}
        recipe = "fingerprint", "batch_size", "max_length"
        return {name: self._read(ledger.alike(some, *recipe)) for name, some in own.items()} or {str(setup.base): found}

    def _read(self, cells: Sequence[Found]) -> dict[str, dict[str, Chosen]]:
        found: dict[str, dict[str, Chosen]] = {row.label: {} for row in self.rows}
        for task, row in itertools.product(self.tasks, self.rows):
            methods = set(map(full, row.methods))
            own = [c for c in cells if c["asked"]["task"] == task.name and c["asked"]["method"] in methods]
            scored = [cell for cell in own if "test" in cell["asked"]["rows"]]
            tried = [cell for cell in own if cell not in scored] or scored
            if len(methods) > 1:  # one of them may have been tried at further rates, alone in another row
                at_own_rates = [cell for cell in tried if _at_own_rate(cell)]
                tried = at_own_rates if _methods(at_own_rates) == methods else tried
            if _methods(tried) != methods:
                continue
            best = _best(tried, task)
            count = len(set(map(_try, tried)))
            if best and (chosen := _tested((*best, count), scored, task)):
                found[row.label][task.name] = chosen
        return found


Try = tuple[str, float | None, int | None]
"""A method, its learning rate and its number of epochs."""
Choice = tuple[str, float | None, int | None, int]
"""The try that was chosen, and from how many."""


@dataclass(frozen=True)
class _On:
    """The cells of one task."""

    task: Task
    files: Mapping[str, Path]
    base: Base
    recipe: Recipe

    def candidates(self, row: Row) -> list[Try]:
        """Return the methods of a row, each with its learning rates and numbers of epochs."""
        count, alone = count_lines(self.files["train"]), len(row.methods) == 1
        return [
            (method, *each)
            for method in map(full, row.methods)
            for each in self.recipe.tries(method, count, alone=alone)
        ]

    def tries(self, rows: Sequence[Row]) -> Iterator[Cell]:
        """Yield a cell for every candidate of the rows that have something to choose."""
        several = [found for row in rows if len(found := self.candidates(row)) > 1]
        for method, lr, epochs in dict.fromkeys(itertools.chain.from_iterable(several)):
            yield self._cell(method, lr, epochs, seed=0, tested=False)

    def finals(self, choice: Choice) -> Iterator[Cell]:
        """Yield the cells of a choice that are tested: fresh seeds; one where nothing is random."""
        method, lr, epochs, _ = choice
        fixed = simple.is_simple(method) or parse(method).standalone or parse(method).name == "head"
        for seed in range(1, 2 if fixed else 1 + self.recipe.seeds):
            yield self._cell(method, lr, epochs, seed=seed, tested=True)

    def best(self, row: Row, tried: Sequence[Found]) -> Choice | None:
        """Return the choice of a row: its only candidate, or the best on validation; None while tries are missing."""
        candidates = self.candidates(row)
        if len(candidates) == 1:
            return *candidates[0], 1
        cells = [cell for cell in tried if _try(cell) in candidates]
        best = _best(cells, self.task) if len(cells) == len(candidates) else None
        return (*best, len(cells)) if best else None

    def _cell(self, method: str, lr: float | None, epochs: int | None, *, seed: int, tested: bool) -> Cell:
        recipe = self.recipe
        files = {part: file_digest(path) for part, path in self.files.items() if tested or part != "test"}
        asked = {
            "task": self.task.name, "base": self.base.name, "method": method, "lr": lr, "epochs": epochs, "seed": seed,
            "metric": self.task.metric, "batch_size": recipe.batch_size, "max_length": recipe.max_length,
            "fingerprint": self.base.fingerprint, "rows": files,
        }  # fmt: skip
        rows = count_lines(self.files["train"])
        letters = self.files["train"].stat().st_size / max(rows, 1)
        tokens = round(min(letters / 5, recipe.max_length) * rows * (epochs or 1))
        like = method.partition("(")[0]
        return Cell(asked, partial(self._train, method, lr, epochs, seed, tested), tokens, like)

    def _train(self, method: str, lr: float | None, epochs: int | None, seed: int, tested: bool) -> dict[str, Any]:
        if simple.is_simple(method):
            return simple.train(method, self.files, self.base, tested=tested, max_length=self.recipe.max_length)
        began = time.process_time()
        precision = "bf16" if self.recipe.quick and quick_at_bf16(self.base.device.partition(":")[0]) else None
        settings = {"lr": lr, "epochs": epochs, "batch_size": self.recipe.batch_size, "precision": precision}
        run = Run.of(
            self.files["train"],
            validation=self.files["validation"],
            test=self.files["test"] if tested else None,
            base=self.base,
            method=method,
            baselines=False,
            seed=seed,
            metric=self.task.metric,
            max_length=self.recipe.max_length,
            objective="cross-entropy",
            **{name: value for name, value in settings.items() if value is not None},
        )
        record = train(run)[0].task.record
        return {
            **record.metrics,
            "trained": record.parameters["trained"],
            "base": record.parameters.get("base", 0),
            "best_epoch": record.settings.get("best_epoch"),
            "precision": precision or "fp32",
            "seconds": record.seconds,
            "cpu_seconds": round(time.process_time() - began, 2),
        }


def full(method: str) -> str:
    """Return a method's full spelling; that of a simple model is its name."""
    return method if simple.is_simple(method) else full_spelling(method)


def short(method: str) -> str:
    """Return a method's short spelling."""
    return method if simple.is_simple(method) else short_spelling(method)


def _methods(cells: Sequence[Found]) -> set[str]:
    return {cell["asked"]["method"] for cell in cells}


def _at_own_rate(cell: Found) -> bool:
    """Return whether a cell has the learning rate that its method has without a search."""
    method, lr = cell["asked"]["method"], cell["asked"]["lr"]
    return lr is None or lr == float(f"{parse(method).lr:.2g}")


def _try(cell: Found) -> Try:
    asked = cell["asked"]
    return asked["method"], asked["lr"], asked["epochs"]


def _best(tried: Sequence[Found], task: Task) -> Try | None:
    """Return the try with the best validation score; None if all failed."""
    good = [cell for cell in tried if "found" in cell]
    sign = -1 if task.metric in metrics.LOWER_IS_BETTER else 1
    if not good:
        return None
    return _try(max(good, key=lambda cell: sign * float(cell["found"]["validation"][task.metric])))


def _tested(choice: Choice, scored: Sequence[Found], task: Task) -> Chosen | None:
    """Return a choice with its trainings that were tested; None if there are none."""
    own = tuple(cell for cell in scored if _try(cell) == choice[:3] and "found" in cell)
    return Chosen(*choice, own, task.metric) if own else None


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the interval of a mean over tasks, by resampling the tasks."""
    drawn = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    means = np.asarray(values)[drawn].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def total_parameters(choices: Mapping[str, Chosen]) -> float:
    """Return the parameters that a row needs for all its tasks, in units of the base.

    Full fine-tuning has a whole model for every task; others have the base once, and what each task trains.
    """
    whole = all(parse(choice.method).name == "full" for choice in choices.values())
    return (0.0 if whole else 1.0) + sum(choice.share for choice in choices.values())


def table(found: Mapping[str, Mapping[str, Chosen]], tasks: Sequence[Task], *, reference: str) -> list[str]:
    """Return the lines of the table: a row's price, its score on each task that all rows have, mean and difference."""
    shared = [task for task in tasks if all(task.name in row for row in found.values() if row)]
    rows = {label: {task.name: row[task.name] for task in shared} for label, row in found.items() if row}
    head = [
        "method", "total parameters", "trained a task", "tries", *(f"{task.name}, {task.metric}" for task in shared),
        "mean", f"less than {reference}",
    ]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    if not shared:
        return [*lines, "", "No task is done by all rows yet."]
    beside = {name: choice.mean for name, choice in rows.get(reference, {}).items()}
    for label, row in rows.items():
        outside = all(simple.is_simple(choice.method) or not choice.share for choice in row.values())
        means = [row[task.name].mean for task in shared]
        total = "-" if outside else f"{total_parameters(row):.2f}×"
        share = "-" if outside else f"{100 * statistics.fmean(choice.share for choice in row.values()):.3g} %"
        lines.append(
            f"| {label} | {total} | {share} | {_span([choice.tried for choice in row.values()])} | "
            + " | ".join(score_text(row[task.name]) for task in shared)
            + f" | {with_interval(means)} | "
            + (with_interval([beside[task.name] - row[task.name].mean for task in shared]) if beside else "-")
            + " |"
        )
    return lines


def named(bases: Sequence[str]) -> str:
    """Return the sentence that names the bases of a page."""
    return f"Base: {bases[0]}." if len(bases) == 1 else f"Bases: {', '.join(bases)}."


def choices_table(found: Mapping[str, Mapping[str, Chosen]], tasks: Sequence[Task]) -> list[str]:
    """Return the lines of a table with what was chosen on validation."""
    lines = [f"| method | {' | '.join(task.name for task in tasks)} |", f"|{'---|' * (1 + len(tasks))}"]
    for label, row in found.items():
        cells = [_choice(row[task.name]) if task.name in row else "" for task in tasks]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def _choice(choice: Chosen) -> str:
    lr = "" if choice.lr is None else f", {choice.lr:.2g}"
    return f"{short(choice.method)}{lr}"


def score_text(choice: Chosen) -> str:
    scores = choice.scores
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{choice.mean:.1f}{spread} ({len(scores)})"


def with_interval(values: Sequence[float]) -> str:
    low, high = mean_interval(values)
    return f"{statistics.fmean(values):.1f} ({low:.1f} to {high:.1f})"


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)}-{max(values)}"
