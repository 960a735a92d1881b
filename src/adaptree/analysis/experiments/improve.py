"""Which rows to label next: strategies of active learning against rows at random, on real tasks.

A cell begins with a few rows of each label and goes through some rounds. In each, the task that was trained on the rows
so far chooses more of a pool, whose labels are then revealed. Pool and test rows are the same for all strategies, and
so are the first rows of a sample.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.analysis.duplicates import normalised
from adaptree.analysis.experiments import figures, ledger, lowdata
from adaptree.analysis.experiments.corpora import Corpus, cut
from adaptree.analysis.experiments.ledger import Cell
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.core import acquisition
from adaptree.kinds.classify import Classify
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table as table_of
from adaptree.training.pipeline import train
from adaptree.training.run import Run
from adaptree.training.solve import Problem, solve_head

if TYPE_CHECKING:
    from adaptree.models.base import Base

Array = np.ndarray[Any, Any]
TASKS = lowdata.TASKS
START, ROUNDS, ROWS = 8, 4, 20
"""Rows of each label at the start, and how many rows each round adds."""
POOL, TEST_ROWS = 1000, 500
SAMPLES = {"head": 8, "contrastive": 2}
"""How often each learner is begun, with other rows: `head`, solved on the frozen base's vectors, and `contrastive`,
what `train` does by default."""
STRATEGIES = ("random", "uncertain", "entropy", "spread", "diverse", "contrastive")
TRAINED = ("random", "uncertain", "diverse")
"""The strategies that are tried with `train`'s default."""
TOKENS = {"head": 3_000, "contrastive": 150_000}
"""Roughly, for the estimate of the time."""

INTRO = (
    f"Test accuracy in points, mean over tasks and samples, on {TEST_ROWS} rows: at the start, with {START} rows of "
    f"each label, and after each round, which adds {ROWS} rows of a pool of {POOL:,}. *random* takes any; *uncertain* "
    "those whose two likeliest labels are nearest to each other; *entropy* those of the highest entropy; *spread* the "
    "rows nearest to the centres of clusters of all vectors; *diverse* the same of clusters in which a row counts as "
    "much as it is doubted; *contrastive* those that differ most from their neighbours. "
    "The vectors are the frozen base's. Against random: the mean over the rounds, ± its standard error over tasks and "
    "samples."
)
LEARNERS = {"head": "A solved head on the frozen base", "contrastive": "`train` as it is by default"}


@dataclass(frozen=True)
class Task:
    """A task's labels, and the texts, vectors (n, d) and targets of its pool and of its test rows."""

    labels: list[str]
    pool: tuple[list[str], Array, Array]
    test: tuple[list[str], Array, Array]


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page over all that are done."""
    if not setup.redraw:
        ledger.run(list(_cells(setup)), setup)
    return table(setup.out, setup.command)


def _cells(setup: Setup) -> Iterator[Cell]:
    """Yield all cells: the cheap ones first, then sample by sample."""
    base = base_of(setup.base, "auto", setup.threads)
    load = cache(partial(_load, setup, base))
    for learner, most in SAMPLES.items():
        for number in range(min(most, setup.seeds or most)):
            for corpus in select(setup.tasks, TASKS):
                for strategy in STRATEGIES if learner == "head" else TRAINED:
                    asked = {
                        "task": corpus.name, "learner": learner, "strategy": strategy, "sample": number,
                        "base": base.name, "fingerprint": base.fingerprint, "start": START, "rounds": ROUNDS,
                        "rows": ROWS, "pool": POOL, "tested": TEST_ROWS,
                    }  # fmt: skip
                    go = partial(_grow, base, load, corpus, learner, strategy, number)
                    yield Cell(asked, go, TOKENS[learner], learner)


def _load(setup: Setup, base: Base, corpus: Corpus) -> Task:
    """Return a task's pool and test rows, each text once."""
    files = cut(corpus, setup.data, setup.out / "rows")
    rows = [[json.loads(line) for line in path.read_text().splitlines()] for path in files]
    labels = sorted({str(row["label"]) for row in rows[0]})
    seen: set[Any] = set()
    found = []
    for some, most in zip(rows, (POOL, TEST_ROWS), strict=True):
        few: list[Any] = []
        for row in random.Random(0).sample(some, len(some)):
            if len(few) < most and (key := normalised(row["text"])) not in seen:
                seen.add(key)
                few.append(row)
        texts = [row["text"] for row in few]
        targets = np.array([labels.index(str(row["label"])) for row in few])
        found.append((texts, base.features(texts).numpy(), targets))
    return Task(labels, *found)


def _grow(base: Base, load: Any, corpus: Corpus, learner: str, strategy: str, number: int) -> Mapping[str, Any]:
    """Return the scores on the test rows at the start and after each round."""
    task: Task = load(corpus)
    _, x, y = task.pool
    order = np.array(random.Random(number).sample(range(len(y)), len(y)))
    rows = [int(i) for label in range(len(task.labels)) for i in order[y[order] == label][:START]]
    kind, began = Classify(tuple(task.labels)), time.process_time()
    scores: list[Mapping[str, float]] = []
    for turn in range(ROUNDS + 1):
        p, answers = (_solve if learner == "head" else _train)(base, task, kind, rows, number)
        scores.append(kind.score(task.test[2], answers))
        if turn == ROUNDS:
            break
        left = np.setdiff1d(np.arange(len(y)), rows)
        chosen = choose(strategy, p[left], x[left], ROWS, seed=1000 * number + turn)
        rows += [int(i) for i in left[chosen]]
    found = {name: [round(each[name], 4) for each in scores] for name in ("accuracy", "macro_f1")}
    return {**found, "cpu_seconds": round(time.process_time() - began, 1), "train_rows": len(rows)}


def choose(strategy: str, p: Array, x: Array, count: int, *, seed: int) -> Array:
    """Return the places of the rows that a strategy chooses by probabilities (n, k) and vectors (n, d)."""
    if strategy == "random":
        return np.random.default_rng(seed).permutation(len(p))[:count]
    if strategy == "spread":
        return acquisition.spread(x, count, seed)
    if strategy == "contrastive":
        return acquisition.contrastive(p, x, count)
    doubt = acquisition.entropies(p) if strategy == "entropy" else acquisition.doubts(p)
    return acquisition.diverse(doubt, x, count, seed) if strategy == "diverse" else acquisition.uncertain(doubt, count)


def _solve(base: Base, task: Task, kind: Classify, rows: Sequence[int], seed: int) -> tuple[Array, Array]:
    """Return the pool's probabilities and the test rows' answers of a head that is solved on the frozen vectors."""
    import torch

    _, x, y = task.pool
    problem = Problem(kind, [[]] * len(rows), [torch.from_numpy(x[i : i + 1]) for i in rows], y[rows])
    head, _ = solve_head(problem, y[rows], seed)
    weight, bias = head["head.weight"].numpy(), head["head.bias"].numpy()
    out = torch.from_numpy(x @ weight.T + bias).double()
    return out.softmax(-1).numpy(), (task.test[1] @ weight.T + bias).argmax(1)


def _train(base: Base, task: Task, kind: Classify, rows: Sequence[int], seed: int) -> tuple[Array, Array]:
    """Return the same of a task that `adaptree train` makes without options."""
    texts, _, y = task.pool
    data = [{"text": texts[i], "label": task.labels[y[i]]} for i in rows]
    bound = train(Run.of(data, base=base, baselines=False, seed=seed, kind="classify"))[0]
    place = [list(map(str, bound.kind.labels)).index(label) for label in task.labels]  # type: ignore[attr-defined]
    pool, test = (bound.logits(texts).double().softmax(-1).numpy()[:, place] for texts in (texts, task.test[0]))
    return pool, test.argmax(1)


def finished(out: Path) -> list[dict[str, Any]]:
    """Return the cells that are done, each with what was asked and what was found in one dict."""
    return [{**cell["asked"], **cell["found"]} for cell in ledger.read(out) if "found" in cell]


def table(out: Path, command: str) -> str:
    """Write the page with every cell that is done, and the figure; return the page."""
    cells = finished(out)
    lines = ["# Which rows to label next", "", INTRO]
    curves: dict[str, dict[int, float]] = {}
    for learner, title in (
        ("head", "A solved head on the frozen base"),
        ("contrastive", "`train` as it is by default"),
    ):
        wanted = STRATEGIES if learner == "head" else TRAINED
        mine = _complete([cell for cell in cells if cell["learner"] == learner], wanted)
        if not mine:
            continue
        head = ("strategy", *(f"+{ROWS * turn}" if turn else "start" for turn in range(ROUNDS + 1)), "against random",
                "macro F1")  # fmt: skip
        pairs = len({(cell["task"], cell["sample"]) for cell in mine})
        by = {strategy: [cell for cell in mine if cell["strategy"] == strategy] for strategy in STRATEGIES}
        rows = [_line(strategy, some, by["random"]) for strategy, some in by.items() if some]
        lines += ["", f"## {title}", "", f"Pairs of a task and a sample: {pairs}.", "", table_of(head, rows)]
        lines += ["", *_by_task(mine)]
        curves |= {f"{strategy}, {learner}": _curve(some) for strategy, some in by.items() if some}
    if curves:
        figures.improve(curves, out / "figure.png")
        lines += ["", "![Accuracy against labelled rows](figure.png)"]
    return write_page([*lines, ""], out, command)


def _complete(cells: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the cells of those pairs of a task and a sample that every strategy has."""
    have: dict[Any, set[str]] = {}
    for cell in cells:
        have.setdefault((cell["task"], cell["sample"]), set()).add(cell["strategy"])
    return [cell for cell in cells if have[cell["task"], cell["sample"]] == set(names)]


def _curve(cells: Sequence[Mapping[str, Any]], metric: str = "accuracy") -> dict[int, float]:
    """Return the mean over tasks of the mean over samples in points, by rows added."""
    by: dict[str, list[list[float]]] = {}
    for cell in cells:
        by.setdefault(cell["task"], []).append(cell[metric])
    means = np.mean([np.mean(some, axis=0) for some in by.values()], axis=0)
    return {ROWS * turn: 100 * float(value) for turn, value in enumerate(means)}


def _gain(cell: Mapping[str, Any]) -> float:
    """Return the mean accuracy over the rounds after the start, in points."""
    return 100 * statistics.fmean(cell["accuracy"][1:])


def _line(strategy: str, cells: Sequence[Mapping[str, Any]], random_: Sequence[Mapping[str, Any]]) -> list[str]:
    other = {(cell["task"], cell["sample"]): _gain(cell) for cell in random_}
    gains = [_gain(cell) - other[cell["task"], cell["sample"]] for cell in cells]
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    against = "" if strategy == "random" else f"{statistics.fmean(gains):+.1f} ± {error:.1f}"
    last = list(_curve(cells, "macro_f1").values())[-1]
    return [strategy, *(f"{value:.1f}" for value in _curve(cells).values()), against, f"{last:.1f}"]


def _by_task(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of the last round, task by task."""
    tasks = sorted({cell["task"] for cell in cells})
    names = [name for name in STRATEGIES if any(cell["strategy"] == name for cell in cells)]
    rows = []
    for task in tasks:
        mine = {name: [c for c in cells if (c["task"], c["strategy"]) == (task, name)] for name in names}
        rows.append([task, *(f"{100 * statistics.fmean(c['accuracy'][-1] for c in mine[name]):.1f}" for name in names)])
    return [f"After the last round, {ROUNDS * ROWS} rows:", "", table_of(("task", *names), rows)]
