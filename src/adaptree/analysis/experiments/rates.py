"""Learning rates: what the methods' defaults rest on, tried on five real tasks and two sizes of data.

Each method is tried at its default and three times below and above; while the best mean over tasks is at an edge, one
more is tried beyond it. Scores are on validation rows, one seed; no test rows are read.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import ledger
from adaptree.analysis.experiments.corpora import Corpus, count_lines, one_file, parts
from adaptree.analysis.experiments.ledger import Cell
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.methods import parse
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table
from adaptree.training.pipeline import train
from adaptree.training.run import Run

if TYPE_CHECKING:
    from adaptree.models.base import Base

TASKS = (
    Corpus("sst2", test="validation"),
    one_file("crowdflower_airline"),
    one_file("crowdflower_corporate_messaging"),
    Corpus("stsb", test="test"),
    Corpus("sick", test="test"),
)
METHODS = (
    "pfeiffer", "full", "norms", "ia3", "scaled_parallel", "top", "houlsby", "lora", "bitfit", "parallel_adapter",
    "lt_sft", "diff_pruning", "bapna", "pal",
)  # fmt: skip
SIZES, VALIDATION = (250, 1000), 400
STEPS, BATCH, MAX_LENGTH = 300, 16, 64
FACTOR, MOST = 3.0, 7
"""Between two rates, and how many of a method are tried at most."""

Means = dict[float, dict[int, dict[str, float]]]
"""Validation scores in points by learning rate, number of rows and task."""


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page over all that are done."""
    found = _read(setup.out) if setup.redraw else _run(setup)
    return write_page(_page(found, setup), setup.out, setup.command)


def _read(out: Path) -> dict[str, Means]:
    """Return the scores of the cells that are done, by method."""
    cells = ledger.read(out)
    return {method: _means([c for c in cells if c["asked"]["method"] == method]) for method in METHODS}


def _run(setup: Setup) -> dict[str, Means]:
    """Run the cells that are missing; return the scores of all that are done, by method."""
    tasks, base = select(setup.tasks, TASKS), base_of(setup.base, "auto", setup.threads)
    files = {
        (corpus.name, size): parts(corpus, setup.data, setup.out / f"rows-{size}", size, VALIDATION)
        for corpus in tasks
        for size in SIZES
    }
    found: dict[str, Means] = {}
    for method in METHODS:
        rates = [_times(parse(method).lr, k) for k in (-1, 0, 1)]
        while True:
            cells = [_cell(method, lr, where, base) for lr in rates for where in files.items()]
            found[method] = _means(ledger.run(cells, setup))
            best = _best(found[method], len(files))
            if setup.dry_run or best is None or rates[0] < best < rates[-1] or len(rates) >= MOST:
                break
            rates = sorted([*rates, _times(best, -1 if best == rates[0] else 1)])
    return found


def _times(lr: float, k: int) -> float:
    return float(f"{lr * FACTOR**k:.1g}")


def _cell(method: str, lr: float, where: tuple[tuple[str, int], Mapping[str, Path]], base: Base) -> Cell:
    (task, size), files = where
    rows = count_lines(files["train"])
    epochs = -(-STEPS * BATCH // rows)
    asked = {
        "task": task, "size": size, "base": base.name, "method": method, "lr": lr, "epochs": epochs,
        "batch_size": BATCH, "max_length": MAX_LENGTH, "fingerprint": base.fingerprint,
        "rows": {part: file_digest(files[part]) for part in ("train", "validation")},
        "spelled": _in_full(method),
    }  # fmt: skip
    stages = parse(method).stages
    return Cell(asked, partial(_train, method, lr, epochs, files, base), 20 * STEPS * BATCH * stages, method)


def _in_full(method: str) -> dict[str, Any]:
    """Return all fields of a method: a cell of other defaults is another cell."""
    return {name: value for name, value in vars(parse(method)).items() if value is not None}


def _train(method: str, lr: float, epochs: int, files: Mapping[str, Path], base: Base) -> dict[str, Any]:
    run = Run.of(
        files["train"], validation=files["validation"], base=base, method=method, lr=lr, epochs=epochs,
        batch_size=BATCH, max_length=MAX_LENGTH, baselines=False, objective="cross-entropy",
    )  # fmt: skip
    record = train(run)[0].task.record
    metric = str(record.settings["metric"])
    return {"metric": metric, "score": record.metrics["validation"][metric], "seconds": record.seconds}


def _means(cells: list[ledger.Found]) -> Means:
    found: Means = {}
    for cell in cells:
        asked = cell["asked"]
        score = 100 * float(cell["found"]["score"]) if "found" in cell else 0.0  # a training that diverged
        found.setdefault(asked["lr"], {}).setdefault(asked["size"], {})[asked["task"]] = score
    return found


def _best(means: Means, wanted: int) -> float | None:
    """Return the rate with the best mean over tasks and sizes; None while cells are missing."""
    whole = {lr: [s for tasks in sizes.values() for s in tasks.values()] for lr, sizes in means.items()}
    if not whole or any(len(scores) < wanted for scores in whole.values()):
        return None
    return max(whole, key=lambda lr: statistics.fmean(whole[lr]))


def _page(found: Mapping[str, Means], setup: Setup) -> list[str]:
    """Return the lines of the page: for each method and size the mean over tasks at each rate, the best in bold."""
    body = []
    for method, means in found.items():
        for size in SIZES:
            rates = sorted(lr for lr, sizes in means.items() if size in sizes)
            if not rates:
                continue
            shared = set.intersection(*(set(means[lr][size]) for lr in rates))
            scores = {lr: statistics.fmean(means[lr][size][name] for name in shared) for lr in rates if shared}
            top = max(scores, key=lambda lr: scores[lr], default=None)
            shown = [f"**{s:.1f}**" if lr == top else f"{s:.1f}" for lr, s in scores.items()]
            body.append([
                f"`{method}`", f"{parse(method).lr:g}", str(size), str(len(shared)),
                ", ".join(f"{lr:g}" for lr in rates), ", ".join(shown),
            ])  # fmt: skip
    head = ("method", "default", "rows", "tasks", "tried", "mean validation score")
    intro = (
        f"Base: {setup.base}. Mean over tasks of the validation score in points (Pearson for stsb, else accuracy), "
        f"{VALIDATION} validation rows, {STEPS} batches of {BATCH} at most, one seed. Differences below a point mean "
        "little. Methods in two stages have so many batches in each."
    )
    return ["# Learning rates", "", intro, "", table(head, body), ""]
