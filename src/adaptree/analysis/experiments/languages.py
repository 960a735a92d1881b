"""Entities in a language that nobody labelled: tasks trained on English, languages swapped below them (MAD-X).

(a) the English task alone; (b) on language adapters, which are swapped; (c) on swapped invertible adapters; (d) sums
of sparse δs; (e) trained on the few sentences that are labelled in the target language, as the ceiling. All languages
share one head for masked words, which is trained on English first and then stays as it is.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import ledger, trainings
from adaptree.analysis.experiments.corpora import read_lines, sample, write_lines
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.analysis.experiments.trainings import Trainer, Training
from adaptree.kinds import bootstrap, iob
from adaptree.models.evaluate import evaluate
from adaptree.reports.markdown import table
from adaptree.tasks.store import Store

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound

SENTENCES, FEW, HELD = 3000, 100, 500
"""Labelled English sentences, those of the target language, and lines of a text that are held out, twice: to choose the
epoch and to test."""
LANGUAGE_STEPS, TASK_STEPS, FEW_STEPS = 5000, 800, 200
BATCH, MAX_LENGTH, SEEDS = 8, 128, 3
AUTHORS = {"lr": 5e-5}
"""LT-SFT as its authors train it: one rate for both phases, and by default L1 0.1 for languages, norms frozen."""
SPARSE = "lt_sft(density=0.05, dense_rate=1.0)"
HEAD, LANGUAGE, TASK, FEW_TASK, ANSWERS = "head", "language", "task", "few", "answers"
ENGLISH = "en"
DATE = "DATE"
"""What masakhaner labels and panx does not: counted as no entity."""


@dataclass(frozen=True)
class Way:
    """A way to combine a language and a task."""

    key: str
    what: str
    language: str | None
    """The method that is trained on plain text; None: no language is learned."""
    task: str
    options: Mapping[str, Any]


WAYS = (
    Way("bare", "(a) the English task alone", None, "pfeiffer:48", {}),
    Way("madx", "(b) on swapped language adapters", "pfeiffer:192", "pfeiffer:48", {}),
    Way("sparse", "(d) the sum of sparse δs", SPARSE, SPARSE, AUTHORS),
    Way("inverse", "(c) the same with invertible adapters", "pfeiffer(size=192, invertible=true)", "pfeiffer:48", {}),
)
LEFT, CEILING = "English left below", "(e) trained on 100 labelled sentences of the target"
TEXTS = {ENGLISH: "mnli/train.jsonl.xz", "qu": "quechua_text/quy_open.txt.xz", "sw": "swahili_text/all.txt.xz"}
"""The plain text of each language; of mnli the premises."""


@dataclass(frozen=True)
class Target:
    """Labelled sentences of a language: to train (e) on, and to test on."""

    name: str
    language: str
    train: str
    test: str


TARGETS = (
    Target("qu", "qu", "panx/qu.train.jsonl.xz", "panx/qu.validation.jsonl.xz"),
    Target("sw", "sw", "panx/sw.train.jsonl.xz", "panx/sw.validation.jsonl.xz"),
    Target("masakhaner-swa", "sw", "masakhaner/swa.train.jsonl.xz", "masakhaner/swa.test.jsonl.xz"),
)


def run(setup: Setup) -> str:
    """Train what is missing, tag the targets' sentences in every way; return the page."""
    found = ledger.alike(ledger.read(setup.out), "base", "recipe") if setup.redraw else ledger.run(_cells(setup), setup)
    return write_page(_page(found), setup.out, setup.command)


def _cells(setup: Setup) -> list[Cell]:
    """Return the cells: the head, then of each way its languages, English tasks and answers; (e) last.

    A language is trained once, tasks with each seed.
    """
    targets = select(setup.tasks, TARGETS)
    rows, seeds = setup.out / "rows", range(setup.seeds or SEEDS)
    recipe = {"sentences": SENTENCES, "steps": LANGUAGE_STEPS, "task_steps": TASK_STEPS, "few": FEW}
    trainer = Trainer.of(setup, BATCH, MAX_LENGTH, **recipe)
    texts = {name: _text(setup.data / path, rows / name) for name, path in TEXTS.items()}
    english = _labelled(setup.data / "panx/en.train.jsonl.xz", SENTENCES, rows / "ner")
    said = {"tests": {name: file_digest(files["test"]) for name, files in texts.items()}}
    look = partial(_perplexities, texts=texts)
    head = _learn(trainer, HEAD, ENGLISH, texts[ENGLISH], "head", then=look, about=said)
    found: list[Cell] = [head]
    tested = {
        target.name: _labelled(setup.data / target.test, None, rows / f"{target.name}-test") for target in targets
    }
    for way in WAYS:
        spoken: dict[str, Training] = {}
        if way.language is not None:
            for name in dict.fromkeys([ENGLISH, *(target.language for target in targets)]):
                spoken[name] = _learn(
                    trainer, LANGUAGE, name, texts[name], way.language, head=head, about={"way": way.key}, **way.options
                )
        found += spoken.values()
        for seed in seeds:
            epochs = trainer.epochs(english, TASK_STEPS)
            task = trainer.cell(
                TASK, "ner", english, way.task, epochs, seed, on=spoken.get(ENGLISH), kind="tag",
                about={"way": way.key}, **way.options,
            )  # fmt: skip
            found.append(task)
            for target in targets:
                tag = partial(_answers, trainer, target.name, tested[target.name]["train"], seed)
                if target.language in spoken:
                    found.append(tag(way.what, task, spoken[target.language]))
                    found.append(tag(f"{way.what}: {LEFT}", task))
                else:
                    found.append(tag(way.what, task))
    for target, seed in itertools.product(targets, seeds):
        few = _labelled(setup.data / target.train, FEW, rows / f"{target.name}-few")
        epochs = trainer.epochs(few, FEW_STEPS)
        task = trainer.cell(FEW_TASK, target.name, few, "pfeiffer:48", epochs, seed, kind="tag")
        found += [task, _answers(trainer, target.name, tested[target.name]["train"], seed, CEILING, task)]
    return found


def _learn(trainer: Trainer, what: str, name: str, files: Mapping[str, Path], method: str, **more: Any) -> Training:
    """Return the cell that learns a language from its plain text."""
    return trainer.cell(what, name, files, method, trainer.epochs(files, LANGUAGE_STEPS), kind="mlm", **more)


def _perplexities(bound: Bound, texts: Mapping[str, Mapping[str, Path]]) -> dict[str, Any]:
    """Return the perplexity of each language's held-out lines before it is learned: of the base with the head."""
    scores = {name: evaluate(bound, files["test"])["metrics"]["test"] for name, files in texts.items()}
    return {"before": {name: score["perplexity"] for name, score in scores.items()}}


def _text(source: Path, out: Path) -> dict[str, Path]:
    """Write all lines of a plain text, in an order of seed 0, as files to train, validate and test on; return them."""
    lines = read_lines(source)
    if ".jsonl" in source.suffixes:
        lines = list(dict.fromkeys(json.loads(line)["text_a"] for line in lines))
    lines = [" ".join(line.split()) for line in random.Random(0).sample(lines, len(lines))]
    held = min(HELD, len(lines) // 5)
    parts = {"test": lines[:held], "validation": lines[held : 2 * held], "train": lines[2 * held :]}
    return {part: write_lines(out.with_name(f"{out.name}-{part}.txt"), some) for part, some in parts.items()}


def _labelled(source: Path, most: int | None, out: Path) -> dict[str, Path]:
    """Write labelled sentences, at most `most`, as files: all to train on, or with `most` a fifth to validate on."""
    rows = [json.loads(line) for line in read_lines(source)]
    lines = [
        json.dumps({"tokens": row["tokens"], "tags": ["O" if tag.endswith(DATE) else tag for tag in row["tags"]]})
        for row in rows
    ]
    lines = sample(lines, most)
    held = len(lines) // 5 if most else 0
    parts = {"train": lines[held:], **({"validation": lines[:held]} if held else {})}
    return {part: write_lines(out.with_name(f"{out.name}-{part}.jsonl"), some) for part, some in parts.items()}


def _answers(
    trainer: Trainer, target: str, test: Path, seed: int, what: str, task: Training, below: Training | None = None
) -> Cell:
    """Return the cell that tags a target's sentences with a task, on another language if one is given.

    It has the numbers of right, predicted and true entities of each sentence.
    """
    needs = (task,) if below is None else (task, below)
    asked = trainer.asked(
        what=ANSWERS, task=target, row=what, seed=seed, of=[cell.name for cell in needs],
        rows=file_digest(test),
    )  # fmt: skip

    def tag() -> dict[str, Any]:
        began = time.process_time()
        rows = [json.loads(line) for line in test.read_text().splitlines()]
        names = [cell.task().record.name for cell in needs]
        expression = f"stack({names[1]}, {names[0]})" if below is not None else names[0]
        bound = trainer.base.bind(expression, tasks=Store(trainer.store))
        predictions = bound.decode([{"tokens": row["tokens"]} for row in rows])
        sums = iob.statistics([row["tags"] for row in rows], predictions)
        return {
            "pieces": _pieces(trainer.base, [row["tokens"] for row in rows]), "sums": sums.astype(int).tolist(),
            "cpu_seconds": round(time.process_time() - began, 2),
        }  # fmt: skip

    return Cell(asked, tag, test.stat().st_size // 20, ANSWERS, needs)


def _pieces(base: Base, sentences: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return how many pieces the base's tokenizer makes of a word, and how many of them are unknown."""
    words = [word for sentence in sentences for word in sentence]
    cut = [pieces.ids for pieces in base.encoder.pieces(words)]
    unknown = base.encoder.unknown_id
    total = sum(map(len, cut))
    return {
        "pieces_per_word": total / max(1, len(words)),
        "unknown_percent": 100 * sum(int((ids == unknown).sum()) for ids in cut) / max(1, total),
        "words": len(words),
    }


def _together(seeds: Sequence[Sequence[Sequence[float]]]) -> Any:
    """Return the numbers of all seeds beside each other, so that a sentence is drawn with all its answers."""
    return np.concatenate([np.asarray(sums, dtype=float) for sums in seeds], axis=1)


def _mean_ratios(sums: Any, width: int = 5) -> dict[str, Any]:
    """Return the means over seeds of F1, precision and recall."""
    each = [iob.ratios(sums[:, start : start + width]) for start in range(0, sums.shape[1], width)]
    return {name: np.mean([ratios[name] for ratios in each], axis=0) for name in ("f1", "precision", "recall")}


def paired(
    first: Sequence[Sequence[Sequence[float]]], second: Sequence[Sequence[Sequence[float]]]
) -> tuple[float, float, float]:
    """Return how far the second's F1 is above the first's on the same sentences, with its 95 % interval.

    Both have the same seeds; F1 is their mean.
    """
    both = _together([*first, *second])

    def difference(sums: Any) -> dict[str, Any]:
        half = sums.shape[1] // 2
        return {"f1": _mean_ratios(sums[:, half:])["f1"] - _mean_ratios(sums[:, :half])["f1"]}

    low, high = bootstrap.intervals(both, difference)["f1"]
    return float(difference(both.sum(0, keepdims=True))["f1"][0]), low, high


def _page(cells: Sequence[Found]) -> list[str]:
    """Return the lines of the page: what was learned of the languages, and a table for each target that is done."""
    done = [cell for cell in cells if "found" in cell]
    recipe = done[0]["asked"]["recipe"] if done else {"sentences": SENTENCES, "steps": LANGUAGE_STEPS}
    batch = done[0]["asked"]["batch_size"] if done else BATCH
    lines = [
        "# Entities in a language that nobody labelled",
        "",
        f"Entity F1 in points, trained on {recipe['sentences']:,} English sentences of panx; a language on "
        + (f"{recipe['words']:,} words" if "words" in recipe else "all")
        + f" of its plain text, {trainings.length(recipe, batch)}. Mean ± standard deviation over the seeds of the "
        "task (their number). Intervals: 95 %, bootstrap over sentences; against (a): paired, on the same sentences.",
        "",
        *_learned(done),
    ]
    for target in TARGETS:
        own = [cell for cell in done if cell["asked"]["what"] == ANSWERS and cell["asked"]["task"] == target.name]
        lines += _part(target, own) if own else []
    return lines


def _learned(cells: Sequence[Found]) -> list[str]:
    """Return the table of each language's perplexity on held-out lines, before it was learned and after."""
    before: dict[str, float] = next((c["found"]["before"] for c in cells if "before" in c["found"]), {})
    ways = {way.key: way.what for way in WAYS}
    body = []
    for cell in (cell for cell in cells if cell["asked"]["what"] == LANGUAGE):
        name, way = cell["asked"]["task"], cell["asked"]["way"]
        first = f"{before[name]:.0f}" if name in before else "-"
        got = cell["found"]
        after = (got.get("test") or got["validation"])["perplexity"]
        body.append([name, ways[way], f"{got['train_rows']:,}" if "train_rows" in got else "-", first, f"{after:.0f}"])
    if not body:
        return []
    said = "Perplexity of held-out lines, with the base and the shared head alone, and with the language:"
    if not before:
        said = (
            "Perplexity of held-out lines, each language with a head of its own; that of the base alone is not known:"
        )
    return [said, "", table(("language", "way", "lines", "before", "after"), sorted(body)), ""]


def _part(target: Target, cells: Sequence[Found]) -> list[str]:
    pieces = cells[0]["found"]["pieces"]
    by: dict[str, dict[int, list[list[int]]]] = {}
    for cell in cells:
        by.setdefault(cell["asked"]["row"], {})[cell["asked"]["seed"]] = cell["found"]["sums"]
    lines = [
        f"## {target.name}, {len(cells[0]['found']['sums']):,} sentences",
        "",
        f"The base's tokenizer makes {pieces['pieces_per_word']:.2f} pieces of a word; "
        f"{pieces['unknown_percent']:.2f} % of the pieces are unknown.",
        "",
        "| | F1 | interval | precision | recall | against (a) |",
        "|---|---|---|---|---|---|",
    ]
    first = by.get(WAYS[0].what, {})
    for what in sorted(by):
        seeds = by[what]
        scores = [_ratios(sums) for sums in seeds.values()]
        mean = {name: statistics.fmean(score[name] for score in scores) for name in scores[0]}
        spread = f" ± {statistics.stdev(score['f1'] for score in scores):.1f}" if len(scores) > 1 else ""
        low, high = (100 * end for end in bootstrap.intervals(_together(list(seeds.values())), _mean_ratios)["f1"])
        shared = [seed for seed in seeds if seed in first]
        against = ""
        if what != WAYS[0].what and shared:
            gain, least, most = (100 * v for v in paired([first[s] for s in shared], [seeds[s] for s in shared]))
            against = f"{gain:+.1f} ({least:+.1f} to {most:+.1f})"
        rest = f"{low:.1f}-{high:.1f} | {mean['precision']:.1f} | {mean['recall']:.1f} | {against}"
        lines.append(f"| {what} | {mean['f1']:.1f}{spread} ({len(scores)}) | {rest} |")
    return [*lines, ""]


def _ratios(sums: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return F1, precision and recall over all sentences, in points."""
    totals = np.asarray(sums, dtype=float).sum(0, keepdims=True)
    return {name: 100 * float(value[0]) for name, value in iob.ratios(totals).items()}
