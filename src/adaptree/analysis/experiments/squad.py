"""SQuAD by the adapters' size, beside full fine-tuning: F1 and exact match."""

from __future__ import annotations

import statistics

from adaptree.analysis.experiments import figures
from adaptree.analysis.experiments.corpora import Corpus
from adaptree.analysis.experiments.setup import Setup, write_page
from adaptree.analysis.experiments.sweep import Chosen, Recipe, Row, Sweep, Task
from adaptree.reports.markdown import table

TASK = Task(Corpus("squad", train="train_subset", test="validation", ending="json"), "f1")
SIZES = (2, 8, 64, 256)
METRICS = {"f1": "F1", "exact_match": "exact match"}
FULL = "full"
SWEEP = Sweep(
    tasks=(TASK,),
    rows=(*(Row(f"houlsby:{size}", (f"houlsby:{size}",)) for size in SIZES), Row(FULL, (FULL,))),
    recipe=Recipe(
        rows=1500, validation=300, steps=None, epochs=(3,), batch_size=16, max_length=256, factors=(1.0,), seeds=1
    ),
)
PUBLISHED = {"houlsby:2": 89.9, "houlsby:64": 90.4, FULL: 90.7}
"""F1 of Houlsby et al. 2019, §3.5: BERT-base and all 87,599 questions."""


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page."""
    found, recipe = SWEEP.run(setup), SWEEP.recipe
    done = {label: row[TASK.name] for label, row in found.items() if TASK.name in row}
    body = [
        [f"`{label}`", f"{choice.trained:,}", f"{100 * choice.share:.3g} %"]
        + [_spread(choice, metric) for metric in METRICS]
        + [f"{choice.finals[0]['found']['seconds']:.0f}", str(PUBLISHED.get(label, ""))]
        for label, choice in done.items()
    ]
    head = ("method", "trained", "of the base", *METRICS.values(), "seconds", "F1 (published)")
    lines = [
        "# SQuAD by the adapters' size",
        "",
        f"Base: {setup.base}. At most {recipe.rows:,} training questions and {recipe.validation} to choose the epoch, "
        f"{recipe.epochs[0]} epochs; at most 1,000 questions of the development set to test. Points, mean ± standard "
        "deviation over seeds (their number). The published F1 is of another base and of all questions (Houlsby et al. "
        "2019, §3.5).",
        "",
        table(head, body),
        "",
    ]
    if adapters := [choice for label, choice in done.items() if label != FULL]:
        figures.spreads(
            {name: {c.trained: c.points(metric) for c in adapters} for metric, name in METRICS.items()},
            setup.out / "figure.png",
            title=f"SQuAD, {recipe.rows:,} training questions",
            xlabel="trained parameters",
            lines={n: statistics.fmean(done[FULL].points(m)) for m, n in METRICS.items()} if FULL in done else {},
        )
        lines += ["![F1 and exact match against trained parameters](figure.png)", ""]
    return write_page(lines, setup.out, setup.command)


def _spread(choice: Chosen, metric: str) -> str:
    points = choice.points(metric)
    spread = f" ± {statistics.stdev(points):.1f}" if len(points) > 1 else ""
    return f"{statistics.fmean(points):.1f}{spread} ({len(points)})"
