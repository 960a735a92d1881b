"""Wrong labels: of a tenth of the labels made wrong, how many `clean` finds, on four real tasks, two seeds each."""

from __future__ import annotations

import json
import random
from statistics import fmean
from typing import Any

from adaptree.analysis.clean import clean
from adaptree.analysis.compare.files import read, write
from adaptree.analysis.experiments.corpora import Corpus, one_file, read_lines, sample
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.data.events import note
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table

TASKS = (one_file("sms_spam"), one_file("news_aggregator"), one_file("crowdflower_airline"), Corpus("sst2"))
ROWS, SHARE, SEEDS, FIRST = 500, 0.1, 2, 20


def run(setup: Setup) -> str:
    """Spoil labels of each task, clean it, and write how many of the spoiled ones were found."""
    setup.out.mkdir(parents=True, exist_ok=True)
    base, lines = None, []
    for corpus in select(setup.tasks, TASKS):
        cells = []
        for seed in range(setup.seeds or SEEDS):
            path = setup.out / f"{corpus.name}-{seed}.json"
            if not (cell := read(path)):
                note(setup.on_event, f"{corpus.name}, seed {seed}")
                base = base or base_of(setup.base, "auto", setup.threads)
                write(path, cell := _cell(setup, corpus, seed, base))
            cells.append(cell)
        mean = {key: fmean(cell[key] for cell in cells) for key in cells[0]}
        lines.append(
            [corpus.name, f"{mean['labels']:.0f}", f"{mean['untouched']:.0f}", f"{mean['doubted']:.0f}",
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
    return write_page(["# Wrong labels", "", intro, "", table(head, lines), ""], setup.out, setup.command)


def _cell(setup: Setup, corpus: Corpus, seed: int, base: Any) -> dict[str, float]:
    """Return what `clean` finds in one sample of a corpus, before and after labels are exchanged."""
    rows = [json.loads(line) for line in read_lines(setup.data / corpus.name / f"{corpus.train}.jsonl.xz")]
    lines = sample([json.dumps({"text": row["text"], "label": str(row["label"])}) for row in rows], ROWS)
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
