"""Labels by a language model: a head on its last token, and labels read as text, beside encoders.

Tasks on which grammar and inference count: whether a sentence is English (CoLA), whether one follows from another
(RTE), whether a passage answers a question with yes (BoolQ), what common sense answers (CommonsenseQA). On each, all
bases have the same rows, and all that are trained the same method and steps.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.cells import short_spelling
from adaptree.analysis.experiments import ledger
from adaptree.analysis.experiments.corpora import Corpus, parts, sample, write_lines
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.analysis.experiments.trainings import Trainer
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table

if TYPE_CHECKING:
    from adaptree.models.base import Base


@dataclass(frozen=True)
class Task:
    """A dataset, the words that stand for its labels, so that they can be read as text, and how much is learned."""

    corpus: Corpus
    words: Mapping[str, str]
    rows: int
    steps: int
    """Batches at least; as many passes over the rows as that takes."""

    @property
    def name(self) -> str:
        return self.corpus.name


TASKS = (
    Task(Corpus("cola", test="validation"), {"1": "correct", "0": "wrong"}, rows=1000, steps=300),
    Task(Corpus("rte", test="validation"), {"entailment": "yes", "not_entailment": "no"}, rows=400, steps=100),
    Task(Corpus("boolq", train="validation"), {"True": "yes", "False": "no"}, rows=400, steps=100),
    Task(Corpus("commonsenseqa", test="validation"), {}, rows=300, steps=75),
)
BASES = ("minilm", "smollm")
METHOD = "houlsby:32"
VALIDATION, TESTED, BATCH, MAX_LENGTH, SEEDS = 100, 500, 8, 96, 1
FROZEN, HEAD, AS_TEXT = "frozen, a head alone", "head", "labels as text"


def run(setup: Setup) -> str:
    """Run the cells that are missing, on two bases and on a third if one is named; return the page."""
    found = ledger.read(setup.out) if setup.redraw else ledger.run(_cells(setup), setup)
    return write_page(_page([cell for cell in found if "found" in cell]), setup.out, setup.command)


def _cells(setup: Setup) -> list[Cell]:
    files = [(task, write_rows(task, setup.data, setup.out / "rows")) for task in select(setup.tasks, TASKS)]
    found: list[Cell] = []
    named = dict.fromkeys((*BASES, setup.base) if setup.base != Setup.base else BASES)
    bases = [base_of(base, "auto", setup.threads) for base in named]
    for seed in range(setup.seeds or SEEDS):
        for task, of in files:
            for base in bases:
                trainer = Trainer(setup, base, BATCH, MAX_LENGTH, {"steps": task.steps})
                epochs = trainer.epochs(of, task.steps)
                for way in _ways(task, base):
                    options: dict[str, Any] = {"as_text": True} if way == AS_TEXT else {}
                    method = "head" if way == FROZEN else METHOD
                    found.append(trainer.cell(way, task.name, of, method, epochs, seed, keep=False, **options))
    return found


def _ways(task: Task, base: Base) -> tuple[str, ...]:
    """Return the ways to the labels that a base has; choices, which differ from row to row, are no labels."""
    return (FROZEN, HEAD, AS_TEXT) if base.encoder.writer is not None and task.words else (FROZEN, HEAD)


def write_rows(task: Task, data: Path, out: Path) -> dict[str, Path]:
    """Write the rows to train, to validate and to test on, with words as labels; return the files by part."""
    files = parts(task.corpus, data, out, task.rows, VALIDATION)
    for part, path in files.items():
        lines = sample(path.read_text().splitlines(), TESTED if part == "test" else None)
        rows = [json.loads(line) for line in lines]
        words = [task.words.get(str(row["label"]), row["label"]) for row in rows]
        write_lines(path, [json.dumps({**row, "label": word}) for row, word in zip(rows, words, strict=True)])
    return files


def _page(cells: Sequence[Found]) -> list[str]:
    tasks = [task.name for task in TASKS if any(cell["asked"]["task"] == task.name for cell in cells)]
    groups: dict[tuple[Any, ...], list[Found]] = {}
    for cell in cells:
        asked = cell["asked"]
        groups.setdefault((asked["task"], asked["base"], asked["what"]), []).append(cell)
    order = sorted(groups, key=lambda key: (tasks.index(key[0]), -_mean(groups[key], "accuracy")))
    trained = [cell["asked"]["method"] for cell in cells if cell["asked"]["what"] != FROZEN]
    method = short_spelling(trained[0]) if trained else METHOD
    return [
        "# A language model beside encoders, for labels",
        "",
        f"A head alone is solved on the frozen base's vectors; else `{method}`, in batches of {BATCH}, the best epoch "
        f"by validation rows. Texts of at most {MAX_LENGTH} tokens. Scores on at most {TESTED} test rows in "
        "points: the mean over seeds, with the standard deviation, or with one seed the interval of 95 %. A Matthews "
        "correlation of 0 is what always the same answer gets. Seconds are of a processor, for training and scoring.",
        "",
        table(
            ["task", "base", "way", "seeds", "accuracy", "Matthews", "trained", "seconds"],
            [_line(key, groups[key]) for key in order],
        ),
        "",
        *([f"Tasks: {', '.join(f'{name} ({count})' for name, count in _sizes(cells).items())}.", ""] if cells else []),
    ]  # fmt: skip


def _sizes(cells: Sequence[Found]) -> dict[str, str]:
    """Return the numbers of rows that each task was trained and tested on, and of batches."""
    return {
        cell["asked"]["task"]: f"{cell['found']['train_rows']:,} rows to train, {cell['found']['test_rows']:,} to "
        f"test, {cell['asked']['recipe']['steps']} batches or a little more"
        for cell in cells
    }


def _line(key: tuple[Any, ...], cells: Sequence[Found]) -> list[str]:
    found = cells[0]["found"]
    seconds = statistics.fmean(cell["found"]["cpu_seconds"] for cell in cells)
    scores = [_score(cells, metric) for metric in ("accuracy", "matthews")]
    return [*key, str(len(cells)), *scores, f"{found['trained']:,}", f"{seconds:.0f}"]


def _mean(cells: Sequence[Found], metric: str) -> float:
    return statistics.fmean(100 * cell["found"]["test"][metric] for cell in cells)


def _score(cells: Sequence[Found], metric: str) -> str:
    if metric not in cells[0]["found"]["test"]:
        return "–"
    mean = _mean(cells, metric)
    if len(cells) > 1:
        return f"{mean:.1f} ± {statistics.stdev(100 * cell['found']['test'][metric] for cell in cells):.1f}"
    span = cells[0]["found"]["intervals"].get(metric)
    return f"{mean:.1f}" + (f" ({100 * span[0]:.1f}-{100 * span[1]:.1f})" if span else "")
