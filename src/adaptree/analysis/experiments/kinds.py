"""Every kind of task on real data: adapters beside full fine-tuning and a head alone.

SQuAD, entities in English and Swahili, two multiple-choice datasets, and masked words in Quechua.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.cells import full_spelling, short_spelling
from adaptree.analysis.experiments import ledger
from adaptree.analysis.experiments.corpora import read_lines, sample, write_lines
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.analysis.experiments.trainings import Trainer

BATCH = 32
METHODS = ("head", "houlsby:64", "full")


@dataclass(frozen=True)
class Recipe:
    """A dataset of any kind: its files, how many of their rows, and how it is trained."""

    name: str
    train: str
    test: str | None
    """None: rows of the training file that are held out."""
    epochs: int
    rows: int | None = None
    test_rows: int | None = 1000
    kind: str | None = None
    """None: guessed."""
    methods: tuple[str, ...] = METHODS


RECIPES = (
    Recipe("panx-en", "panx/en.train.jsonl.xz", "panx/en.validation.jsonl.xz", epochs=5, rows=3000),
    Recipe("masakhaner-swa", "masakhaner/swa.train.jsonl.xz", "masakhaner/swa.test.jsonl.xz", epochs=10),
    Recipe("winogrande-m", "winogrande/train_m.jsonl.xz", "winogrande/validation.jsonl.xz", epochs=3),
    Recipe("commonsenseqa", "commonsenseqa/train.jsonl.xz", "commonsenseqa/validation.jsonl.xz", epochs=3, rows=1000),
    Recipe("quechua", "quechua_text/quy_open.txt.xz", None, epochs=5, rows=6000, kind="mlm",
         methods=("head", "houlsby:64")),
    Recipe("squad", "squad/train_subset.json.xz", "squad/validation.json.xz", epochs=3, test_rows=2000,
         methods=("houlsby:64", "full")),
)  # fmt: skip


def run(setup: Setup) -> str:
    """Train the cells that are missing; return the page over all that are done."""
    found = ledger.alike(ledger.read(setup.out), "base") if setup.redraw else ledger.run(_cells(setup), setup)
    return write_page(_page(found), setup.out, setup.command)


def _cells(setup: Setup) -> list[Cell]:
    trainer = Trainer.of(setup, BATCH, None)
    found: list[Cell] = []
    for recipe in select(setup.tasks, RECIPES):
        files = cut(recipe, setup.data, setup.out / "rows")
        for method, seed in itertools.product(recipe.methods, range(setup.seeds or 1)):
            options: dict[str, Any] = {"kind": recipe.kind} if recipe.kind else {}
            cell = trainer.cell("task", recipe.name, files, method, recipe.epochs, seed, keep=False, **options)
            found.append(cell)
    return found


def cut(recipe: Recipe, data: Path, out: Path) -> dict[str, Path]:
    """Write the rows to train and to test on, samples with seed 0, as files of their own; return them by part."""
    source = data / recipe.train
    rows = read_lines(source)
    if recipe.test is None:
        random.Random(0).shuffle(rows)
        held = recipe.test_rows or len(rows) // 10
        test, rows = rows[:held], rows[held:]
    else:
        test = sample(read_lines(data / recipe.test), recipe.test_rows)
    suffix = ".txt" if ".txt" in source.suffixes else ".jsonl"
    train = write_lines(out / f"{recipe.name}-train{suffix}", sample(rows, recipe.rows))
    return {"train": train, "test": write_lines(out / f"{recipe.name}-test{suffix}", test)}


def _page(cells: Sequence[Found]) -> list[str]:
    """Return the lines of the page: every cell that is done, in the order of the recipes."""
    lines = [
        "# Every kind of task",
        "",
        "Test scores with 95 % bootstrap intervals. A fifth of the training rows chose the best epoch; "
        "training steps are in bf16, answers in fp32. By chance: 0.5 of winogrande, 0.2 of commonsenseqa.",
        "",
        "| task | kind | base | rows to train, to test | epochs | method | seed | scores on test | trained | seconds |",
        f"|{'---|' * 10}",
    ]
    order = [(recipe.name, full_spelling(method)) for recipe in RECIPES for method in recipe.methods]
    for each in order:
        own = [c for c in cells if (c["asked"]["task"], c["asked"]["method"]) == each and "found" in c]
        lines += [_line(cell) for cell in sorted(own, key=lambda cell: int(cell["asked"]["seed"]))]
    return [*lines, ""]


def _line(cell: Found) -> str:
    asked, found = cell["asked"], cell["found"]
    spans = found["intervals"]
    scores = ", ".join(
        f"{name.replace('_', ' ')} {_rounded(value)}"
        + (f" ({'-'.join(map(_rounded, spans[name]))})" if name in spans else "")
        for name, value in found["test"].items()
    )
    held = found.get("validation_rows", 0)
    rows = f"{found['train_rows'] + held:,}, {found['test_rows']:,}"
    columns = [asked["task"], found["kind"], asked["base"], rows, str(asked["epochs"])]
    columns += [short_spelling(asked["method"]), str(asked["seed"]), scores]
    columns += [f"{100 * found['trained'] / found['of_base']:.2f} %", f"{found['seconds']:.0f}"]
    return f"| {' | '.join(columns)} |"


def _rounded(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"  # a perplexity is no share
