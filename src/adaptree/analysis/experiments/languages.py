"""Entities in a language that nobody labelled: tasks trained on English, languages swapped below them (MAD-X).

(a) the English task alone; (b) on language adapters, which are swapped; (c) on swapped invertible adapters; (d) sums
of sparse δs; (e) trained on the few sentences that are labelled in the target language, as the ceiling.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adaptree.analysis.compare.files import read
from adaptree.analysis.compare.files import write as write_json
from adaptree.analysis.experiments import commands
from adaptree.analysis.experiments.corpora import read_lines, sample, write_lines
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.kinds import bootstrap, iob

WORDS = 40_000
"""Words of plain text for each language."""
SENTENCES = 3000
"""Labelled English sentences."""
FEW = 100
"""Labelled sentences of the target language."""
LANGUAGE_EPOCHS, TASK_EPOCHS, FEW_EPOCHS = 4, 4, 20
COMMON = ("--precision", "bf16", "--max-length", "96")


@dataclass(frozen=True)
class Way:
    """A way to combine a language and a task."""

    key: str
    what: str
    language: str | None
    """The method that is trained on plain text; None: no language is learned."""
    task: str


WAYS = (
    Way("bare", "(a) the English task alone", None, "pfeiffer:48"),
    Way("madx", "(b) on swapped language adapters", "pfeiffer:192", "pfeiffer:48"),
    Way("inverse", "(c) the same with invertible adapters", "pfeiffer(size=192, invertible=true)", "pfeiffer:48"),
    Way("sparse", "(d) the sum of sparse δs", "lt_sft(density=0.05)", "lt_sft(density=0.05)"),
)
CEILING = "(e) trained on 100 labelled sentences of the target"


@dataclass(frozen=True)
class Language:
    """A target language, and the file of its plain text."""

    name: str
    text: str


TARGETS = (
    Language("qu", "quechua_text/quy_open.txt.xz"),
    Language("sw", "swahili_text/all.txt.xz"),
)


def run(setup: Setup) -> str:
    """Train what is missing, tag the target's sentences in every way; return the page."""
    for target in select(setup.tasks, TARGETS):
        for way in WAYS:
            _prepare(way, target, setup)
        labelled = read_lines(setup.data / f"panx/{target.name}.train.jsonl.xz")
        few = _write(labelled, FEW, setup.out / "rows" / f"{target.name}.jsonl")
        _train(f"few/{target.name}", few, "pfeiffer:48", FEW_EPOCHS, setup)
        _tag(target, setup)
    return table(setup.out, setup.command)


def _prepare(way: Way, target: Language, setup: Setup) -> None:
    """Train the English task, and below it the two languages if the way has languages."""
    rows = setup.out / "rows"
    labelled = _write(read_lines(setup.data / "panx/en.train.jsonl.xz"), SENTENCES, rows / "en.jsonl")
    on: list[str] = []
    if way.language is not None:
        english = [json.loads(line)["text_a"] for line in read_lines(setup.data / "mnli/train.jsonl.xz")]
        for name, lines in (("en", english), (target.name, read_lines(setup.data / target.text))):
            text = _write(_words(lines, WORDS), None, rows / f"{name}.txt")
            _train(f"{way.key}/{name}", text, way.language, LANGUAGE_EPOCHS, setup, "--kind", "mlm")
        on = ["--on", f"{way.key}/en"]
    _train(f"{way.key}/ner", labelled, way.task, TASK_EPOCHS, setup, *on)


def _words(lines: Sequence[str], most: int) -> list[str]:
    """Return lines in an order of seed 0, as many as have at most `most` words."""
    shuffled = random.Random(0).sample(list(lines), len(lines))
    ends = itertools.accumulate(len(line.split()) for line in shuffled)
    return [line for line, end in zip(shuffled, ends, strict=True) if end <= most]


def _write(lines: Sequence[str], most: int | None, path: Path) -> Path:
    """Write at most `most` of some lines, with single spaces, to a file; return its path."""
    return write_lines(path, (" ".join(line.split()) for line in sample(lines, most)))


def _train(name: str, data: Path, method: str, epochs: int, setup: Setup, *more: str) -> None:
    path = setup.out / "cells" / f"{name.replace('/', '-')}.json"
    options = ["--method", method, "--epochs", str(epochs), *COMMON, *more]
    commands.train(path, data, name, setup.out / "store", options, setup)


def _tag(target: Language, setup: Setup) -> None:
    """Tag the target's sentences in every way; keep the numbers of right, predicted and true entities of each."""
    path = setup.out / "cells" / f"answers-{target.name}.json"
    if path.is_file():
        return
    from adaptree.models.opening import base_of
    from adaptree.tasks.store import Store

    rows = [json.loads(line) for line in read_lines(setup.data / f"panx/{target.name}.validation.jsonl.xz")]
    store = Store(setup.out / "store")
    base = base_of(setup.base, "cpu", setup.threads)
    targets = [row["tags"] for row in rows]
    found: dict[str, Any] = {"rows": len(rows), "pieces": _pieces(base, [row["tokens"] for row in rows]), "sums": {}}
    for what, expression in expressions(target).items():
        predictions = base.bind(expression, tasks=store).decode([{"tokens": row["tokens"]} for row in rows])
        found["sums"][what] = iob.statistics(targets, predictions).tolist()
    write_json(path, found)


def expressions(target: Language) -> dict[str, str]:
    """Return the compositions that tag the target's sentences, by their row in the table."""
    found = {}
    for way in WAYS:
        found[way.what] = f"stack({way.key}/{target.name}, {way.key}/ner)" if way.language else f"{way.key}/ner"
        if way.language:
            found[f"{way.what}: English left below"] = f"{way.key}/ner"
    return {**found, CEILING: f"few/{target.name}"}


def _pieces(base: Any, sentences: Sequence[Sequence[str]]) -> dict[str, float]:
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


def paired(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """Return how far the second's F1 is above the first's on the same sentences, with its 95 % interval."""
    both = np.concatenate([np.asarray(first), np.asarray(second)], axis=1)

    def difference(sums: Any) -> dict[str, Any]:
        half = sums.shape[1] // 2
        return {"f1": iob.ratios(sums[:, half:])["f1"] - iob.ratios(sums[:, :half])["f1"]}

    low, high = bootstrap.intervals(both, difference)["f1"]
    return float(difference(both.sum(0, keepdims=True))["f1"][0]), low, high


def table(out: Path, command: str) -> str:
    """Write the page, with a table for each language that is done; return it."""
    lines = [
        "# Entities in a language that nobody labelled",
        "",
        f"Entity F1 in points on panx, trained on {SENTENCES:,} English sentences of it; languages on {WORDS:,} words "
        f"of plain text each, {LANGUAGE_EPOCHS} epochs. Intervals: 95 %, bootstrap over sentences; against (a): "
        "paired, on the same sentences.",
        "",
    ]
    for target in TARGETS:
        if found := read(out / "cells" / f"answers-{target.name}.json"):
            lines += _part(target, found)
    return write_page(lines, out, command)


def _part(target: Language, found: Mapping[str, Any]) -> list[str]:
    pieces, first = found["pieces"], found["sums"][WAYS[0].what]
    lines = [
        f"## {target.name}, {found['rows']:,} sentences",
        "",
        f"The base's tokenizer makes {pieces['pieces_per_word']:.2f} pieces of a word; "
        f"{pieces['unknown_percent']:.2f} % of the pieces are unknown.",
        "",
        "| | F1 | precision | recall | against (a) |",
        "|---|---|---|---|---|",
    ]
    for what, sums in found["sums"].items():
        every = np.asarray(sums)
        score = {name: 100 * float(value[0]) for name, value in iob.ratios(every.sum(0, keepdims=True)).items()}
        low, high = (100 * end for end in bootstrap.intervals(every, iob.ratios)["f1"])
        gain, least, most = (100 * value for value in paired(first, sums))
        against = "" if what == WAYS[0].what else f"{gain:+.1f} ({least:+.1f} to {most:+.1f})"
        rest = f"{score['precision']:.1f} | {score['recall']:.1f} | {against}"
        lines.append(f"| {what} | {score['f1']:.1f} ({low:.1f}-{high:.1f}) | {rest} |")
    return [*lines, ""]
