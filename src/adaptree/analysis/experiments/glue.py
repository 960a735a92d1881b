"""GLUE, as in the paper's first table: full fine-tuning, adapters, LoRA, BitFit and the head, each at its best.

The development sets are the test rows, since those of GLUE have no labels; validation rows are held out of the
training rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from adaptree.analysis.experiments import sweep
from adaptree.analysis.experiments.corpora import Corpus
from adaptree.analysis.experiments.setup import Setup, write_page
from adaptree.analysis.experiments.sweep import Chosen, Row, Sweep, Task

SWEEP = Sweep(
    tasks=(
        Task(Corpus("rte", test="validation")),
        Task(Corpus("sst2", test="validation")),
        Task(Corpus("mrpc", test="test"), "f1"),
        Task(Corpus("cola", test="validation"), "matthews"),
        Task(Corpus("stsb", test="test"), "spearman"),
        Task(Corpus("qqp", test="validation_from_train"), "f1"),
        Task(Corpus("mnli", test="validation_matched")),
        Task(Corpus("qnli", test="validation")),
    ),
    rows=(
        Row("full", ("full",)),
        Row("adapters 8-256", ("houlsby:8", "houlsby:64", "houlsby:256")),
        Row("adapters 64", ("houlsby:64",)),
        Row("LoRA 8", ("lora:8",)),
        Row("BitFit", ("bitfit",)),
        Row("head", ("head",)),
    ),
)
PUBLISHED = {
    "full, BERT-large": ("9.0×", "100 %", 70.1, 94.9, 89.3, 60.5, 87.6, 72.1, 86.7, 91.1, 80.4),
    "adapters 8-256, BERT-large": ("1.3×", "3.6 %", 71.5, 94.0, 89.5, 59.5, 86.9, 71.8, 84.9, 90.7, 80.0),
    "adapters 64, BERT-large": ("1.2×", "2.1 %", 68.8, 94.2, 89.6, 56.9, 87.3, 71.8, 85.3, 91.4, 79.6),
}
"""Houlsby et al. 2019, table 1, in the order of the tasks; the mean is over nine columns there."""
LEAST = 20.0
"""Points of correlation below which a task counts as not learned."""


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page."""
    bases = SWEEP.by_base(setup)
    recipe = sweep.PAPER if setup.paper else SWEEP.recipe
    names = [task.name for task in SWEEP.tasks]
    lines = [
        "# GLUE",
        "",
        f"{sweep.named([*bases])} At most {recipe.rows or 'all'} training and {recipe.validation} validation rows, at "
        "most 1,000 test rows; test scores in points, mean ± standard deviation over seeds (their number). For each "
        "method and task the learning rate, or for adapters 8-256 the size, that was best on validation, of as many "
        "tries as the table says, was trained again with fresh seeds, and only those were tested. Intervals of 95 % "
        f"over tasks. Trainings have {recipe.steps or 'as many'} batches of {recipe.batch_size} or a little more, to "
        "whole epochs.",
        "",
    ]
    for base, found in bases.items():
        lines += [f"## {base}", ""] if len(bases) > 1 else []
        lines += [*sweep.table(found, SWEEP.tasks, reference="full"), "", *not_learned(found)]
    lines += [
        "Published, for comparison: another base, all rows, and GLUE's own test sets (Houlsby et al. 2019, table 1).",
        "",
        f"| method | total parameters | trained a task | {' | '.join(names)} | mean of nine |",
        f"|{'---|' * (4 + len(names))}",
        *(f"| {label} | {' | '.join(map(str, values))} |" for label, values in PUBLISHED.items()),
        "",
        "## What validation chose",
        "",
    ]
    for base, found in bases.items():
        lines += [f"### {base}", ""] if len(bases) > 1 else []
        lines += [*sweep.choices_table(found, SWEEP.tasks), ""]
    return write_page(lines, setup.out, setup.command)


def not_learned(found: Mapping[str, Mapping[str, Chosen]]) -> list[str]:
    """Return a line on the tasks in which no method comes to a correlation of LEAST points: the base cannot do them."""
    best = {
        task.name: max((row[task.name].mean for row in found.values() if task.name in row), default=LEAST)
        for task in SWEEP.tasks
        if task.metric in ("matthews", "spearman")
    }
    poor = [f"{name} (at best {score:.1f})" for name, score in best.items() if score < LEAST]
    return [f"This base hardly learns {', '.join(poor)}, whatever the method.", ""] if poor else []
