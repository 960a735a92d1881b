"""Few labels: every way to train with 4 to 512 rows a label, on real tasks, and when contrastive training is best.

A sample has so many rows of each label; another number gives another sample. Test rows are the same for all. A cell
is one training, as `adaptree train` runs it without a validation file. SetFit's cells come from
benchmarks/setfit_cells.py, which reads the rows that this experiment writes.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import figures, ledger
from adaptree.analysis.experiments.corpora import Corpus, count_lines, cut, one_file, sample, write_lines
from adaptree.analysis.experiments.ledger import Cell
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.models.forward import vectors
from adaptree.models.opening import base_of
from adaptree.training import contrastive
from adaptree.training.objective import FEW
from adaptree.training.pipeline import train
from adaptree.training.run import Run
from adaptree.training.settings import Settings

if TYPE_CHECKING:
    from adaptree.models.base import Base

TASKS = (
    Corpus("sst2", test="validation"),
    one_file("crowdflower_airline"),
    one_file("crowdflower_corporate_messaging"),
    one_file("news_aggregator"),
    one_file("sms_spam"),
    one_file("crowdflower_disasters"),
)
SIZES = (8, 32, 128, 4, 16, 512)
FIRST = (8, 32)
"""Rows a label, all of them, and those whose cells are run before the others'."""
SAMPLES = 5
TEST_ROWS = 300
WAYS: dict[str, dict[str, Any]] = {
    "head": {"method": "head"},
    "scikit-learn": {"method": "head"},
    "tfidf": {"method": "tfidf"},
    "contrastive": {"method": "houlsby", "objective": "contrastive"},
    "described": {"method": "houlsby", "objective": "contrastive"},
    "cross-entropy": {"method": "houlsby", "objective": "cross-entropy"},
    "full": {"method": "full", "objective": "cross-entropy"},
    "head first": {"method": "houlsby", "objective": "head-first"},
}
DESCRIPTIONS = {
    "sst2": {"0": "a bad film, a negative review", "1": "a good film, a positive review"},
    "crowdflower_airline": {
        "negative": "a complaint about the airline", "neutral": "a question or a remark to the airline",
        "positive": "praise and thanks for the airline",
    },
    "crowdflower_corporate_messaging": {
        "Information": "news and facts about the company", "Action": "a call to do something: vote, click, apply",
        "Dialogue": "a reply to another person", "Exclude": "a text that cannot be used",
    },
    "news_aggregator": {
        "b": "business and economy", "t": "science and technology", "e": "entertainment and celebrities",
        "m": "medicine and health",
    },
    "sms_spam": {"ham": "an ordinary message between people", "spam": "an advertisement, a prize to win, a service"},
    "crowdflower_disasters": {
        "Relevant": "a report of a real disaster: a fire, a flood, an accident",
        "Not Relevant": "no disaster, only words like it in another sense",
    },
}  # fmt: skip
"""One for each label, for `described`: written once, before any was tried on these samples."""
SETFIT, SKLEARN = "setfit", "scikit-learn"
LAST = ("full", "head first", "described")
"""Ways whose cells are run after the others' at the sizes that matter most."""
FEWEST_NOT = {"contrastive": 512, "described": 128, "head first": 128}
"""Rows a label from which on a way is not tried: these are for few."""
PASSES = {"head": 1, SKLEARN: 1, "tfidf": 1, "contrastive": 20, "described": 20}
"""Passes over the rows, roughly, for the estimate of the time."""
TOKENS_PER_TEXT = 25


def run(setup: Setup) -> str:
    """Train the cells that are missing; return the page over all that are done."""
    if not setup.redraw:
        ledger.run(sorted(_cells(setup), key=_turn), setup)
    return table(setup.out, setup.command)


def _cells(setup: Setup) -> Iterator[Cell]:
    """Yield all cells."""
    tasks = select(setup.tasks, TASKS)
    files = {corpus.name: cut(corpus, setup.data, setup.out / "rows") for corpus in tasks}
    base = base_of(setup.base, "auto", setup.threads)
    for number in range(setup.seeds or SAMPLES):
        for size in SIZES:
            for corpus in tasks:
                training, test = write_sample(*files[corpus.name], setup.out, corpus.name, size, number)
                same = {
                    "task": corpus.name, "rows_per_label": size, "sample": number, "base": base.name,
                    "fingerprint": base.fingerprint, "rows": file_digest(training), "test": file_digest(test),
                }  # fmt: skip
                rows = len(training.read_text().splitlines())
                for way, options in WAYS.items():
                    if size >= FEWEST_NOT.get(way, size + 1):
                        continue
                    more = {"descriptions": DESCRIPTIONS.get(corpus.name)} if way == "described" else {}
                    asked = {**same, "way": way, **options, **_recipe(way), **more}
                    passes = PASSES.get(way, max(10, 6400 // max(rows, 1)))
                    tokens = TOKENS_PER_TEXT * (passes * rows + TEST_ROWS // 3)
                    yield Cell(asked, partial(_train, base, training, test, number, way, more), tokens, way)


def _turn(cell: Cell) -> tuple[float, ...]:
    """Return a cell's place in the order: the sizes that matter most, sample by sample; then the cheapest first."""
    size, sample = cell.asked["rows_per_label"], cell.asked["sample"]
    if size in FIRST and cell.like not in LAST:
        return 0, FIRST.index(size), sample
    return 1, cell.tokens * (1 + sample)


def _recipe(way: str) -> dict[str, Any]:
    """Return the numbers of the way's recipe: a cell of another recipe is another cell."""
    if way == "head":
        return {"recipe": {"learns": "all rows"}}
    if way not in ("contrastive", "described"):
        return {}
    names = ("TEMPERATURE", "BATCH", "OF_LABEL", "STEPS", "PASSES", "RATE", "CONTINUED")
    return {"recipe": {name.lower(): getattr(contrastive, name) for name in names}}


def _train(base: Base, training: Path, test: Path, seed: int, way: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a training on the test rows, with the training's price."""
    if way == SKLEARN:
        return _logistic(base, training, test, seed)
    began = time.process_time()
    bound = train(Run.of(training, base=base, baselines=False, seed=seed, **WAYS[way], **more))[0]
    cpu, record = time.process_time() - began, bound.task.record
    scored = bound.evaluate(test)
    return {
        "accuracy": scored["metrics"]["test"]["accuracy"], "macro_f1": scored["metrics"]["test"]["macro_f1"],
        "labels": len(record.labels), "train_rows": record.data["rows"], "test_rows": count_lines(test),
        "seconds": round(record.seconds, 2), "cpu_seconds": round(cpu, 2), "trained": record.parameters["trained"],
    }  # fmt: skip


def _logistic(base: Base, training: Path, test: Path, seed: int) -> dict[str, Any]:
    """Return the scores of scikit-learn's logistic regression on the base's vectors, its strength cross-validated."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score
    from sklearn.model_selection import GridSearchCV, StratifiedKFold

    began = time.process_time()
    texts, labels = zip(*map(_text_and_label, (training, test)), strict=True)
    limit = Settings().longest(base.limit)
    x, held = (vectors(base, base.encoder.encode(some, limit), base.pooling).numpy() for some in texts)
    folds = StratifiedKFold(min(5, min(Counter(labels[0]).values())), shuffle=True, random_state=seed)
    strengths = {"C": np.logspace(-4, 4, 10)}
    search = GridSearchCV(LogisticRegression(max_iter=5000), strengths, cv=folds, scoring="neg_log_loss")
    found = search.fit(x, labels[0]).best_estimator_
    predicted = found.predict(held)
    return {
        "accuracy": float(accuracy_score(labels[1], predicted)),
        "macro_f1": float(f1_score(labels[1], predicted, average="macro")),
        "labels": len(found.classes_), "train_rows": len(x), "test_rows": len(held),
        "cpu_seconds": round(time.process_time() - began, 2), "trained": int(found.coef_.size + found.intercept_.size),
    }  # fmt: skip


def _text_and_label(path: Path) -> tuple[list[str], list[str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [row["text"] for row in rows], [str(row["label"]) for row in rows]


def write_sample(train_file: Path, test_file: Path, out: Path, name: str, size: int, number: int) -> tuple[Path, Path]:
    """Write the rows of a sample and those to test on, if they are not there; return both files."""
    training, test = out / "rows" / f"{name}-{size}-{number}.jsonl", out / "rows" / f"{name}-tested.jsonl"
    if not training.is_file():
        lines = train_file.read_text().splitlines()
        random.Random(number).shuffle(lines)
        found: dict[str, list[str]] = {}
        for line in lines:
            found.setdefault(str(json.loads(line)["label"]), []).append(line)
        write_lines(training, [line for label in sorted(found) for line in found[label][:size]])
    if not test.is_file():
        write_lines(test, sample(test_file.read_text().splitlines(), TEST_ROWS))
    return training, test


def finished(out: Path) -> list[dict[str, Any]]:
    """Return the cells that were trained to the end, each with what was asked and what was found in one dict."""
    return [{**cell["asked"], **cell["found"]} for cell in ledger.read(out) if "found" in cell]


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, dict[str, list[float]]]]:
    """Return accuracies in points by rows a label, way and task, one per sample."""
    found: dict[int, dict[str, dict[str, list[float]]]] = {}
    for cell in cells:
        ways = found.setdefault(cell["rows_per_label"], {})
        ways.setdefault(cell["way"], {}).setdefault(cell["task"], []).append(100 * cell["accuracy"])
    return dict(sorted(found.items()))


def table(out: Path, command: str) -> str:
    """Write the page with every cell that is done, and the figure; return the page."""
    cells = finished(out)
    found = summary(cells)
    ways = [way for way in (*WAYS, SETFIT) if any(way in row for row in found.values())]
    lines = [
        "# Few labels",
        "",
        f"Test accuracy in points on at most {TEST_ROWS} rows: mean over tasks of the mean over samples, and the "
        "median seconds of a processor, on the tasks that all ways of a line have. Trainings hold a fifth of the rows "
        "out: to choose an epoch, or, contrastive ones and `head`, to score and then to learn all rows. SetFit learns "
        "all rows; seconds are of the training alone, without the test rows. scikit-learn is its logistic regression "
        "on the base's vectors, with the strength cross-validated, as `head` is. `described` is contrastive with a "
        "description of each label as one more text. "
        f"`train` without options is contrastive up to {FEW} rows a label.",
        "",
        f"| rows a label | tasks | {' | '.join(ways)} |",
        f"|{'---|' * (2 + len(ways))}",
    ]
    for size, row in found.items():
        shared = sorted(set.intersection(*(set(row[way]) for way in ways if way in row)))
        texts = [_mean(cells, size, way, shared) if way in row else "" for way in ways]
        lines.append(f"| {size} | {len(shared)} | {' | '.join(texts)} |")
    for size, row in found.items():
        names = sorted({name for of_way in row.values() for name in of_way})
        lines += [
            "",
            f"## {size} rows a label",
            "",
            f"| task | {' | '.join(ways)} |",
            f"|{'---|' * (1 + len(ways))}",
            *(f"| {name} | {' | '.join(_spread(row.get(way, {}).get(name)) for way in ways)} |" for name in names),
        ]
    if found:
        figures.lowdata({way: _curve(found, way) for way in ways}, out / "figure.png")
        lines += ["", "![Accuracy against rows a label](figure.png)"]
    return write_page([*lines, ""], out, command)


def _curve(found: Mapping[int, Mapping[str, Mapping[str, Sequence[float]]]], way: str) -> dict[int, float]:
    """Return the mean accuracy by rows a label, over the tasks that every way has at that size."""
    curve = {}
    for size, row in found.items():
        shared = set.intersection(*(set(tasks) for tasks in row.values()))
        if way in row and shared:
            curve[size] = statistics.fmean(statistics.fmean(row[way][name]) for name in shared)
    return curve


def _mean(cells: Sequence[Mapping[str, Any]], size: int, way: str, tasks: Sequence[str]) -> str:
    mine = [c for c in cells if (c["rows_per_label"], c["way"]) == (size, way) and c["task"] in tasks]
    if not mine:
        return ""
    by = [[100 * c["accuracy"] for c in mine if c["task"] == name] for name in tasks]
    mean = f"{statistics.fmean(map(statistics.fmean, by)):.1f}"
    seconds = [c["cpu_seconds"] for c in mine if "cpu_seconds" in c]
    return f"{mean} ({statistics.median(seconds):.0f} s)" if seconds else mean


def _spread(values: Sequence[float] | None) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({len(values)})"
