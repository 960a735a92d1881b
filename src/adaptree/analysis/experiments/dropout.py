"""Dropout in the base: whether methods that train its own weights score better with it or without.

Methods that leave the base as it is train without: there it would only blur the features. Where the base's own weights
are trained, dropout is a setting of the yardstick, and this is what its default rests on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import ledger, sweep
from adaptree.analysis.experiments.corpora import Corpus, count_lines, one_file, parts
from adaptree.analysis.experiments.ledger import Cell, Found
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
    Corpus("sick", test="test"),
    one_file("sms_spam"),
)
METHODS = ("full", "top:3", "lt_sft", "diff_pruning")
ROWS, VALIDATION, STEPS, BATCH, MAX_LENGTH = 500, 300, 250, 8, 64
SEEDS = 2


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page over all that are done."""
    found = ledger.read(setup.out) if setup.redraw else _run(setup)
    return write_page(_page([cell for cell in found if "found" in cell], setup), setup.out, setup.command)


def _run(setup: Setup) -> list[Found]:
    base = base_of(setup.base, "auto", setup.threads)
    files = {
        corpus.name: parts(corpus, setup.data, setup.out / "rows", ROWS, VALIDATION)
        for corpus in select(setup.tasks, TASKS)
    }
    cells = [
        _cell(task, method, dropout, seed, files[task], base)
        for seed in range(setup.seeds or SEEDS)
        for method in METHODS
        for task in files
        for dropout in (False, True)
    ]
    return ledger.run(cells, setup)


def _cell(task: str, method: str, dropout: bool, seed: int, files: Mapping[str, Path], base: Base) -> Cell:
    rows = count_lines(files["train"])
    epochs = -(-STEPS * BATCH // rows)
    asked = {
        "task": task, "base": base.name, "fingerprint": base.fingerprint, "method": method, "dropout": dropout,
        "seed": seed, "epochs": epochs, "batch_size": BATCH, "max_length": MAX_LENGTH, "lr": parse(method).lr,
        "rows": {part: file_digest(path) for part, path in files.items()},
    }  # fmt: skip
    tokens = 20 * STEPS * BATCH * parse(method).stages
    return Cell(asked, partial(_train, method, dropout, seed, epochs, files, base), tokens, method)


def _train(method: str, dropout: bool, seed: int, epochs: int, files: Mapping[str, Path], base: Base) -> dict[str, Any]:
    run = Run.of(
        files["train"], validation=files["validation"], test=files["test"], base=base, method=method, epochs=epochs,
        batch_size=BATCH, max_length=MAX_LENGTH, seed=seed, dropout=dropout, baselines=False,
        objective="cross-entropy",
    )  # fmt: skip
    record = train(run)[0].task.record
    return {"validation": record.metrics["validation"], "test": record.metrics["test"], "seconds": record.seconds}


def gains(cells: Sequence[Found], method: str) -> dict[str, tuple[float, float]]:
    """Return the mean test accuracy without and with dropout, by task, where both are there for the same seeds."""
    scores: dict[str, dict[bool, dict[int, float]]] = {}
    for cell in cells:
        asked = cell["asked"]
        if asked["method"] == method:
            by = scores.setdefault(asked["task"], {}).setdefault(asked["dropout"], {})
            by[asked["seed"]] = 100 * float(cell["found"]["test"]["accuracy"])
    found = {}
    for task, both in scores.items():
        if seeds := set(both.get(False, ())) & set(both.get(True, ())):
            without, with_ = (statistics.fmean(both[way][seed] for seed in seeds) for way in (False, True))
            found[task] = without, with_
    return found


def _page(cells: Sequence[Found], setup: Setup) -> list[str]:
    tasks = sorted({cell["asked"]["task"] for cell in cells})
    body = []
    for method in METHODS:
        if not (found := gains(cells, method)):
            continue
        mean = [statistics.fmean(pair[i] for pair in found.values()) for i in range(2)]
        differences = [with_ - without for without, with_ in found.values()]
        body.append([
            f"`{method}`", *(f"{found[task][0]:.1f} / {found[task][1]:.1f}" if task in found else "" for task in tasks),
            f"{mean[0]:.1f} / {mean[1]:.1f}", sweep.with_interval(differences),
        ])  # fmt: skip
    seeds = len({cell["asked"]["seed"] for cell in cells})
    return [
        "# Dropout in the base",
        "",
        f"Base: {setup.base}. Test accuracy in points without / with the base's dropout, mean of {seeds} seed(s); at "
        f"most {ROWS} training rows, {STEPS} batches of {BATCH} or a little more in each stage, every method at its "
        "own learning rate. The last column is the gain by dropout, with an interval of 95 % over tasks.",
        "",
        table(["method", *tasks, "mean", "gain by dropout"], body),
        "",
    ]
