"""Labels by a language model: a head on its last token, and labels read as text, beside encoders.

Tasks on which grammar and inference count: whether a sentence is English (CoLA), whether one follows from another
(RTE), whether a passage answers a question with yes (BoolQ). All have the same method, rows and steps.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.cells import short_spelling
from adaptree.analysis.experiments import ledger
from adaptree.analysis.experiments.corpora import Corpus, parts, sample, write_lines
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.analysis.experiments.trainings import Trainer
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table


@dataclass(frozen=True)
class Task:
    """A dataset, and the words that stand for its labels, so that they can be read as text."""

    corpus: Corpus
    words: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.corpus.name


TASKS = (
    Task(Corpus("cola", test="validation"), {"1": "correct", "0": "wrong"}),
    Task(Corpus("rte", test="validation"), {"entailment": "yes", "not_entailment": "no"}),
    Task(Corpus("boolq", train="validation"), {"True": "yes", "False": "no"}),
)
BASES = ("minilm", "smollm")
METHOD = "houlsby:32"
ROWS, VALIDATION, TESTED, STEPS, BATCH, MAX_LENGTH, SEEDS = 400, 100, 500, 100, 8, 96, 1
HEAD, AS_TEXT = "head", "labels as text"


def run(setup: Setup) -> str:
    """Run the cells that are missing, on two bases and on a third if one is named; return the page."""
    found = ledger.read(setup.out) if setup.redraw else ledger.run(_cells(setup), setup)
    return write_page(_page([cell for cell in found if "found" in cell]), setup.out, setup.command)


def _cells(setup: Setup) -> list[Cell]:
    files = {task.name: write_rows(task, setup.data, setup.out / "rows") for task in select(setup.tasks, TASKS)}
    found: list[Cell] = []
    named = dict.fromkeys((*BASES, setup.base) if setup.base != Setup.base else BASES)
    bases = [base_of(base, "auto", setup.threads) for base in named]
    for seed in range(setup.seeds or SEEDS):
        for task, of in files.items():
            for base in bases:
                trainer = Trainer(setup, base, BATCH, MAX_LENGTH, {"steps": STEPS})
                for way in (HEAD, AS_TEXT) if base.encoder.writer is not None else (HEAD,):
                    options: dict[str, Any] = {"as_text": True} if way == AS_TEXT else {}
                    epochs = trainer.epochs(of, STEPS)
                    found.append(trainer.cell(way, task, of, METHOD, epochs, seed, keep=False, **options))
    return found


def write_rows(task: Task, data: Path, out: Path) -> dict[str, Path]:
    """Write the rows to train, to validate and to test on, with words as labels; return the files by part."""
    files = parts(task.corpus, data, out, ROWS, VALIDATION)
    for part, path in files.items():
        lines = sample(path.read_text().splitlines(), TESTED if part == "test" else None)
        rows = [json.loads(line) for line in lines]
        write_lines(path, [json.dumps({**row, "label": task.words[str(row["label"])]}) for row in rows])
    return files


def _page(cells: Sequence[Found]) -> list[str]:
    tasks = [task.name for task in TASKS if any(cell["asked"]["task"] == task.name for cell in cells)]
    groups: dict[tuple[Any, ...], list[Found]] = {}
    for cell in cells:
        asked = cell["asked"]
        groups.setdefault((asked["task"], asked["base"], asked["what"]), []).append(cell)
    order = sorted(groups, key=lambda key: (tasks.index(key[0]), -_mean(groups[key], "accuracy")))
    method = short_spelling(cells[0]["asked"]["method"]) if cells else METHOD
    return [
        "# A language model beside encoders, for labels",
        "",
        f"`{method}` everywhere, at most {ROWS} training rows, {STEPS} batches of {BATCH} or a little more, texts of "
        f"at most {MAX_LENGTH} tokens; the best epoch by validation rows. Scores on at most {TESTED} test rows in "
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
    """Return the numbers of rows that each task was trained and tested on."""
    rows = {cell["asked"]["task"]: (cell["found"]["train_rows"], cell["found"]["test_rows"]) for cell in cells}
    return {name: f"{train:,} rows to train, {test:,} to test" for name, (train, test) in rows.items()}


def _line(key: tuple[Any, ...], cells: Sequence[Found]) -> list[str]:
    found = cells[0]["found"]
    seconds = statistics.fmean(cell["found"]["cpu_seconds"] for cell in cells)
    scores = [_score(cells, metric) for metric in ("accuracy", "matthews")]
    return [*key, str(len(cells)), *scores, f"{found['trained']:,}", f"{seconds:.0f}"]


def _mean(cells: Sequence[Found], metric: str) -> float:
    return statistics.fmean(100 * cell["found"]["test"][metric] for cell in cells)


def _score(cells: Sequence[Found], metric: str) -> str:
    mean = _mean(cells, metric)
    if len(cells) > 1:
        return f"{mean:.1f} ± {statistics.stdev(100 * cell['found']['test'][metric] for cell in cells):.1f}"
    span = cells[0]["found"]["intervals"].get(metric)
    return f"{mean:.1f}" + (f" ({100 * span[0]:.1f}-{100 * span[1]:.1f})" if span else "")
