"""Wrong labels: of a tenth of the labels made wrong, how many `clean` finds, on four real tasks, two seeds each."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from adaptree.analysis.clean import clean
from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import ledger
from adaptree.analysis.experiments.corpora import Corpus, one_file, read_lines, sample
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table

if TYPE_CHECKING:
    from adaptree.models.base import Base

TASKS = (one_file("sms_spam"), one_file("news_aggregator"), one_file("crowdflower_airline"), Corpus("sst2"))
ROWS, SHARE, SEEDS, FIRST = 500, 0.1, 2, 20


def run(setup: Setup) -> str:
    """Spoil labels of each task, clean it, and write how many of the spoiled ones were found."""
    found = ledger.alike(ledger.read(setup.out), "base", "rows") if setup.redraw else ledger.run(_cells(setup), setup)
    return write_page(_page(found), setup.out, setup.command)


def _cells(setup: Setup) -> list[Cell]:
    base = base_of(setup.base, "auto", setup.threads)
    found = []
    for corpus in select(setup.tasks, TASKS):
        path = setup.data / corpus.name / f"{corpus.train}.jsonl.xz"
        lines = _lines(path)
        tokens = sum(map(len, lines)) // 5
        for seed in range(setup.seeds or SEEDS):
            asked = {
                "task": corpus.name, "base": base.name, "seed": seed, "rows": ROWS, "share": SHARE,
                "fingerprint": base.fingerprint, "digest": file_digest(path),
            }  # fmt: skip
            found.append(Cell(asked, partial(_clean, lines, seed, base), tokens, "clean"))
    return found


def _page(cells: Sequence[Found]) -> list[str]:
    """Return the lines of the page, with the means over seeds of the cells that are done."""
    by_task: dict[str, list[Found]] = {}
    for cell in cells:
        if "found" in cell:
            by_task.setdefault(cell["asked"]["task"], []).append(cell["found"])
    lines = []
    for name, some in by_task.items():
        mean = {key: fmean(each[key] for each in some) for key in some[0]}
        lines.append(
            [name, f"{mean['labels']:.0f}", f"{mean['untouched']:.0f}", f"{mean['doubted']:.0f}",
             *(f"{100 * mean[key]:.0f} %" for key in ("precision", "first", "recall", "suggested")),
             *(f"{100 * mean[key]:.1f}" for key in ("accuracy", "without"))]
        )  # fmt: skip
    head = (
        "task", "labels", "doubted before", "doubted", "precision", f"of the first {FIRST}", "recall",
        "suggestion right", "accuracy", "without doubted",
    )  # fmt: skip
    intro = (
        f"{ROWS} rows each; {100 * SHARE:.0f} % of the labels, chosen at random, were exchanged for another one. "
        "Doubted: rows with a suggested label, before that and after. Precision: how many of them were exchanged. "
        "Recall: how many of the exchanged ones are doubted. Accuracy: on all rows, exchanged labels included, "
        "cross-validated, and trained without the doubted rows."
    )
    return ["# Wrong labels", "", intro, "", table(head, lines), ""]


def _lines(path: Path) -> list[str]:
    """Return a sample of a file's rows, each as one line of JSON."""
    rows = [json.loads(line) for line in read_lines(path)]
    return sample([json.dumps({"text": row["text"], "label": str(row["label"])}) for row in rows], ROWS)


def _clean(lines: Sequence[str], seed: int, base: Base) -> dict[str, Any]:
    """Return what `clean` finds in some rows, before and after labels are exchanged."""
    data = [json.loads(line) for line in lines]
    labels = sorted({row["label"] for row in data})
    rng = random.Random(seed)
    spoiled = set(rng.sample(range(len(data)), round(SHARE * len(data))))
    noisy = [
        {**row, "label": rng.choice([label for label in labels if label != row["label"]])} if i in spoiled else row
        for i, row in enumerate(data)
    ]
    before, found = (clean(each, base=base, kind="classify", seed=seed) for each in (data, noisy))
    doubted = [each for each in found.findings if each.suggested is not None]
    hits = [each for each in doubted if each.row - 1 in spoiled]
    right = sum(each.suggested == data[each.row - 1]["label"] for each in hits)
    return {
        "labels": len(labels),
        "untouched": before.doubted,
        "doubted": len(doubted),
        "precision": len(hits) / max(len(doubted), 1),
        "first": sum(each.row - 1 in spoiled for each in doubted[:FIRST]) / max(len(doubted[:FIRST]), 1),
        "recall": len(hits) / max(len(spoiled), 1),
        "suggested": right / max(len(hits), 1),
        "accuracy": found.scores["accuracy"],
        "without": found.without["accuracy"],
    }
