"""Score against trained parameters, as in the paper's figures 1, 4 and 5: adapters, top layers, LoRA and others.

Every size of every method is trained on six tasks with short texts. A score is set beside that of full fine-tuning on
the same task; the figure has the median over tasks, and the 20th to 80th percentiles as a band.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from adaptree.analysis.experiments import figures
from adaptree.analysis.experiments.corpora import Corpus, one_file
from adaptree.analysis.experiments.setup import Setup, write_page
from adaptree.analysis.experiments.sweep import Chosen, Recipe, Row, Sweep, Task
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table

TASKS = (
    Task(Corpus("sst2", test="validation")),
    Task(one_file("crowdflower_airline")),
    Task(one_file("crowdflower_corporate_messaging")),
    Task(Corpus("sick", test="test")),
    Task(one_file("sms_spam")),
    Task(Corpus("mrpc", test="test"), "f1"),
)
RECIPE = Recipe(rows=1000, steps=300, factors=(1.0,), seeds=1)
SIZES, RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 2, 4, 8, 16, 32)
FULL = "full"
LOW, HIGH = 20, 80
"""The percentiles of the band."""


class Point(NamedTuple):
    """A method at one size: its trained parameters, and its points against full fine-tuning over the tasks."""

    trained: float
    percent: float
    median: float
    low: float
    high: float


def families(depth: int) -> dict[str, tuple[str, ...]]:
    """Return the methods by family, for a base of so many layers.

    The top layers end with `full`: all layers, with the embeddings that belong to the lowest.
    """
    return {
        "adapters": tuple(f"houlsby:{size}" for size in SIZES),
        "top layers": (*(f"top:{n}" for n in range(1, depth)), FULL),
        "LoRA": tuple(f"lora:{rank}" for rank in RANKS),
        "norms": ("norms",),
        "BitFit": ("bitfit",),
        "head": ("head",),
    }


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page."""
    groups = families(base_of(setup.base, "cpu", None).hooked.sites.depth)
    rows = tuple(Row(method, (method,)) for methods in groups.values() for method in methods)
    found = Sweep(TASKS, rows, RECIPE).run(setup)
    shared = shared_tasks(found)
    lines = [
        "# Score against trained parameters",
        "",
        f"Base: {setup.base}. At most {RECIPE.rows} training rows, {RECIPE.validation} to choose the epoch, 1,000 to "
        f"test; {RECIPE.steps} batches of {RECIPE.batch_size}, {setup.seeds or RECIPE.seeds} seed(s), each method at "
        "its own learning rate. Test scores in points, less that of `full` on the same task: the median over "
        f"{len(shared)} tasks, and the {LOW}th to {HIGH}th percentiles. Trained parameters are means over tasks, heads "
        "and norms included.",
        "",
    ]
    if not shared:
        return write_page([*lines, "No task is done by all methods yet.", ""], setup.out, setup.command)
    against = {method: beside_full(found, method, shared) for method in found}
    points = {method: point(found, method, shared) for method in found}
    figures.bands(
        {name: [points[method] for method in methods] for name, methods in groups.items()},
        setup.out / "figure.png",
        title=f"Points against full fine-tuning, median of {len(shared)} tasks",
    )
    body = [
        [f"`{method}`", f"{p.trained:,.0f}", f"{p.percent:.3g} %"]
        + [f"{value:+.1f}" for value in (p.median, p.low, p.high, *against[method])]
        for method, p in points.items()
    ]
    full = " · ".join(f"{name} {found[FULL][name].mean:.1f}" for name in shared)
    head = ["method", "trained", "of the base", "median", f"{LOW} %", f"{HIGH} %", *shared]
    lines += [table(head, body), "", f"`full` itself: {full}."]
    lines += ["", "![Points against trained parameters](figure.png)", ""]
    return write_page(lines, setup.out, setup.command)


def shared_tasks(found: Mapping[str, Mapping[str, Chosen]]) -> list[str]:
    """Return the tasks that all methods have."""
    return [task.name for task in TASKS if all(task.name in row for row in found.values())]


def beside_full(found: Mapping[str, Mapping[str, Chosen]], method: str, tasks: Sequence[str]) -> list[float]:
    """Return by how many points a method lies above full fine-tuning on each task."""
    return [found[method][name].mean - found[FULL][name].mean for name in tasks]


def point(found: Mapping[str, Mapping[str, Chosen]], method: str, tasks: Sequence[str]) -> Point:
    """Return a method's place in the figure."""
    choices = [found[method][name] for name in tasks]
    low, middle, high = np.percentile(beside_full(found, method, tasks), [LOW, 50, HIGH])
    return Point(
        statistics.fmean(choice.trained for choice in choices),
        100 * statistics.fmean(choice.share for choice in choices),
        float(middle),
        float(low),
        float(high),
    )
