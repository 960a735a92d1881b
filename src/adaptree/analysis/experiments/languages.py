"""Entities in a language that nobody labelled: tasks trained on English, languages swapped below them (MAD-X).

(a) the English task alone; (b) on language adapters, which are swapped; (c) the same with invertible adapters; (d) sums
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
from adaptree.analysis.experiments.commands import trained
from adaptree.analysis.experiments.tasks import Asked, kept_page, lines_of, named
from adaptree.kinds import bootstrap, iob

WORDS = 40_000
"""Of plain text for each language."""
SENTENCES = 3000
"""Labelled, English."""
FEW = 100
"""Labelled, of the target language."""
LANGUAGE_EPOCHS, TASK_EPOCHS, FEW_EPOCHS = 4, 4, 20
COMMON = ("--precision", "bf16", "--max-length", "96")


@dataclass(frozen=True)
class Way:
    """How a language and a task are put together."""

    key: str
    what: str
    language: str | None
    """The method of what is trained on plain text; none: nothing is."""
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
    """A target: its plain text, and its labelled sentences."""

    name: str
    text: str


TARGETS = (
    Language("qu", "quechua_text/quy_open.txt.xz"),
    Language("sw", "swahili_text/all.txt.xz"),
)


def run(asked: Asked) -> str:
    """Train what is missing, answer the target's sentences in every way, and write the table."""
    out = asked.out
    for target in named(asked.tasks, TARGETS):
        for way in WAYS:
            _prepare(way, target, asked)
        labelled = lines_of(asked.data / f"panx/{target.name}.train.jsonl.xz")
        few = _lines(labelled, FEW, out / "rows" / f"{target.name}.jsonl")
        _trained(f"few/{target.name}", few, "pfeiffer:48", FEW_EPOCHS, asked)
        _answer(target, asked)
    return kept_page(table(out, asked.command), out)


def _prepare(way: Way, target: Language, asked: Asked) -> None:
    """The English task, and the two languages below it where the way has some."""
    rows = asked.out / "rows"
    labelled = _lines(lines_of(asked.data / "panx/en.train.jsonl.xz"), SENTENCES, rows / "en.jsonl")
    on: list[str] = []
    if way.language is not None:
        english = [json.loads(line)["text_a"] for line in lines_of(asked.data / "mnli/train.jsonl.xz")]
        for name, lines in (("en", english), (target.name, lines_of(asked.data / target.text))):
            text = _lines(_words(lines, WORDS), len(lines), rows / f"{name}.txt")
            _trained(f"{way.key}/{name}", text, way.language, LANGUAGE_EPOCHS, asked, "--kind", "mlm")
        on = ["--on", f"{way.key}/en"]
    _trained(f"{way.key}/ner", labelled, way.task, TASK_EPOCHS, asked, *on)


def _words(lines: Sequence[str], most: int) -> list[str]:
    """Lines drawn with seed 0, until there are so many words."""
    shuffled = random.Random(0).sample(list(lines), len(lines))
    ends = itertools.accumulate(len(line.split()) for line in shuffled)
    return [line for line, end in zip(shuffled, ends, strict=True) if end <= most]


def _lines(lines: Sequence[str], most: int, path: Path) -> Path:
    """A file with at most so many of some lines, drawn with seed 0."""
    some = random.Random(0).sample(list(lines), most) if len(lines) > most else lines
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{' '.join(line.split())}\n" for line in some))
    return path


def _trained(name: str, data: Path, method: str, epochs: int, asked: Asked, *more: str) -> dict[str, Any]:
    path = asked.out / "cells" / f"{name.replace('/', '-')}.json"
    options = ["--method", method, "--epochs", str(epochs), *COMMON, *more]
    return trained(path, data, name, asked.out / "store", options, asked)


def _answer(target: Language, asked: Asked) -> None:
    """Entities right, predicted and gold of every sentence, in every way; kept."""
    path = asked.out / "cells" / f"answers-{target.name}.json"
    if path.is_file():
        return
    from adaptree.models.opening import base_of
    from adaptree.tasks.store import Store

    rows = [json.loads(line) for line in lines_of(asked.data / f"panx/{target.name}.validation.jsonl.xz")]
    store = Store(asked.out / "store")
    base = base_of(asked.base, "cpu", asked.threads)
    targets = [row["tags"] for row in rows]
    found: dict[str, Any] = {"rows": len(rows), "pieces": _pieces(base, [row["tokens"] for row in rows]), "sums": {}}
    for what, expression in expressions(target).items():
        bound = base.bind(expression, tasks=store)
        answers = bound.decode([{"tokens": row["tokens"]} for row in rows])
        found["sums"][what] = iob.statistics(targets, answers).tolist()
    write_json(path, found)


def expressions(target: Language) -> dict[str, str]:
    """What is run on the target's sentences, by what it is called."""
    found = {}
    for way in WAYS:
        found[way.what] = f"stack({way.key}/{target.name}, {way.key}/ner)" if way.language else f"{way.key}/ner"
        if way.language:
            found[f"{way.what}: English left below"] = f"{way.key}/ner"
    return {**found, CEILING: f"few/{target.name}"}


def _pieces(base: Any, sentences: Sequence[Sequence[str]]) -> dict[str, float]:
    """How the base's tokenizer copes with a language."""
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
    """By how much the second's F1 is above the first's on the same sentences, and the 95 % interval of that."""
    both = np.concatenate([np.asarray(first), np.asarray(second)], axis=1)

    def difference(sums: Any) -> dict[str, Any]:
        half = sums.shape[1] // 2
        return {"f1": iob.ratios(sums[:, half:])["f1"] - iob.ratios(sums[:, :half])["f1"]}

    low, high = bootstrap.intervals(both, difference)["f1"]
    return float(difference(both.sum(0, keepdims=True))["f1"][0]), low, high


def table(out: Path, command: str) -> str:
    """What is there, a table for each language."""
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
    return "\n".join([*lines, *([f"Made by `{command}`."] if command else [])]) + "\n"


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
