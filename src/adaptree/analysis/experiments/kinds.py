"""Every kind of task on real data: adapters beside full fine-tuning and a head alone.

SQuAD, entities in English and Swahili, two multiple-choice datasets, and masked words in Quechua. A cell is one
`adaptree train` in a process of its own, whose JSON is kept; a training that was stopped is resumed.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.files import read
from adaptree.analysis.experiments import commands
from adaptree.analysis.experiments.corpora import count_lines, read_lines, sample, write_lines
from adaptree.analysis.experiments.setup import Setup, select, write_page

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
    options: tuple[str, ...] = ()
    methods: tuple[str, ...] = METHODS


RECIPES = (
    Recipe("panx-en", "panx/en.train.jsonl.xz", "panx/en.validation.jsonl.xz", epochs=5, rows=3000),
    Recipe("masakhaner-swa", "masakhaner/swa.train.jsonl.xz", "masakhaner/swa.test.jsonl.xz", epochs=10),
    Recipe("winogrande-m", "winogrande/train_m.jsonl.xz", "winogrande/validation.jsonl.xz", epochs=3),
    Recipe("commonsenseqa", "commonsenseqa/train.jsonl.xz", "commonsenseqa/validation.jsonl.xz", epochs=3, rows=1000),
    Recipe("quechua", "quechua_text/quy_open.txt.xz", None, epochs=5, rows=6000, options=("--kind", "mlm"),
         methods=("head", "houlsby:64")),
    Recipe("squad", "squad/train_subset.json.xz", "squad/validation.json.xz", epochs=3, test_rows=2000,
         methods=("houlsby:64", "full")),
)  # fmt: skip


def run(setup: Setup) -> str:
    """Train the cells that are missing; return the page over all that are done."""
    out = setup.out
    for recipe in select(setup.tasks, RECIPES):
        train, test = cut(recipe, setup.data, out / "rows")
        rows = {"train_rows": count_lines(train), "test_rows": count_lines(test)}
        for method, seed in itertools.product(recipe.methods, range(setup.seeds or 1)):
            path = cell(out, recipe, method, seed)
            options: list[str | Path] = ["--test", test, "--method", method, "--epochs", str(recipe.epochs)]
            options += ["--seed", str(seed), "--precision", "bf16", *recipe.options]
            commands.train(path, train, path.stem, path.parent / "store", options, setup, **rows)
    return table(out, setup.command)


def cell(out: Path, recipe: Recipe, method: str, seed: int) -> Path:
    """Return the file of a cell."""
    return out / recipe.name / f"{method.replace(':', '-')}-{seed}.json"


def cut(recipe: Recipe, data: Path, out: Path) -> tuple[Path, Path]:
    """Write the rows to train and to test on, samples with seed 0, as files of their own; return both."""
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
    return train, write_lines(out / f"{recipe.name}-test{suffix}", test)


def table(out: Path, command: str) -> str:
    """Write the page with every cell that is done; return it."""
    lines = [
        "# Every kind of task",
        "",
        "Test scores with 95 % bootstrap intervals. A fifth of the training rows chose the best epoch; "
        "training steps are in bf16, answers in fp32. By chance: 0.5 of winogrande, 0.2 of commonsenseqa.",
        "",
        "| task | kind | base | rows to train, to test | epochs | method | seed | scores on test | trained | seconds |",
        f"|{'---|' * 10}",
    ]
    for recipe in RECIPES:
        for method in recipe.methods:
            done = itertools.takewhile(Path.is_file, (cell(out, recipe, method, seed) for seed in itertools.count()))
            lines += [_line(recipe, method, read(path)) for path in done]
    return write_page([*lines, ""], out, command)


def _line(recipe: Recipe, method: str, found: Mapping[str, Any]) -> str:
    spans = found["intervals"]["test"]
    scores = ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}"
        + (f" ({spans[name][0]:.3f}-{spans[name][1]:.3f})" if name in spans else "")
        for name, value in found["metrics"]["test"].items()
    )
    rows = f"{found['train_rows']:,}, {found['test_rows']:,}"
    cells = [recipe.name, found["kind"], found["base"], rows, str(recipe.epochs), method, str(found["seed"]), scores]
    cells += [f"{found['trained_percent']:.2f} %", f"{found['seconds']:.0f}"]
    return f"| {' | '.join(cells)} |"
