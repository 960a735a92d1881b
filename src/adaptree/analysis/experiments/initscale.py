"""The scale of the adapters' first weights, from 1e-7 to 1, as in the paper's figure 6 (right)."""

from __future__ import annotations

from adaptree.analysis.experiments import figures, sweep
from adaptree.analysis.experiments.corpora import Corpus
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.analysis.experiments.sweep import Recipe, Row, Sweep, Task
from adaptree.reports.markdown import table

SCALES = (1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
STABLE = 1e-2
"""Up to this scale the paper finds scores stable."""
SIZE = 64


def label(scale: float) -> str:
    """Return the name of a scale's row."""
    return f"{scale:g}"


SWEEP = Sweep(
    tasks=(Task(Corpus("sst2", test="validation")), Task(Corpus("sick", test="test"))),
    rows=tuple(Row(label(scale), (f"houlsby(size={SIZE}, init_std={scale})",)) for scale in SCALES),
    recipe=Recipe(rows=1000, steps=300, factors=(1.0,), seeds=3),
)


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page."""
    found, recipe = SWEEP.run(setup), SWEEP.recipe
    tasks = [task.name for task in select(setup.tasks, SWEEP.tasks)]
    body = [
        [name, *(sweep.score_text(row[task]) if task in row else "" for task in tasks)] for name, row in found.items()
    ]
    lines = [
        "# The scale of the adapters' first weights",
        "",
        f"Base: {setup.base}. houlsby:{SIZE}, its weights drawn with this standard deviation (the default is 0.01); at "
        f"most {recipe.rows} training rows, {recipe.steps} batches of {recipe.batch_size}. Test accuracy in points, "
        "mean ± standard deviation over seeds (their number). The paper finds scores "
        f"stable up to {STABLE:g} and lower above it.",
        "",
        table(["standard deviation", *tasks], body),
        "",
    ]
    curves = {
        task: {scale: row[task].scores for scale in SCALES if task in (row := found[label(scale)])} for task in tasks
    }
    if any(curves.values()):
        title, x = f"Test accuracy of houlsby:{SIZE}", "standard deviation of the first weights"
        figures.spreads(curves, setup.out / "figure.png", title=title, xlabel=x)
        lines += ["![Accuracy against the scale](figure.png)", ""]
    return write_page(lines, setup.out, setup.command)
