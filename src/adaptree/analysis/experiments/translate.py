"""Captions translated from English (Multi30k): what a language model learns with LoRA and adapters, against steps.

Each point is a training of its own, with its own schedule of the learning rate; at 0 steps the base is asked in its
own template of chats. The base was pretrained on English: the scores are low, and the question is whether they rise.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.cells import full_spelling
from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import figures, ledger, texts
from adaptree.analysis.experiments.corpora import read_lines, sample, write_lines
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.methods import parse
from adaptree.models.opening import base_of
from adaptree.reports.markdown import plain, table


@dataclass(frozen=True)
class Language:
    """A language to translate into, and its column in the files."""

    name: str
    column: str


TASKS = (Language("german", "de"), Language("french", "fr"))
METHODS = ("lora:32", "houlsby:64")
STEPS = (25, 50, 100, 200)
TESTED, VALIDATION = 60, 30
RECIPE = texts.Recipe(template="English: {input}\n", batch_size=8, max_length=96, max_new_tokens=48)
EXAMPLE = "A small dog is running across the beach."
TOKENS_PER_ROW = 45
UNTRAINED = "untrained"


def run(setup: Setup) -> str:
    """Run the cells that are missing, by default into German; return the page over all that are done."""
    found = ledger.read(setup.out) if setup.redraw else _run(setup)
    return write_page(_page([cell for cell in found if "found" in cell], setup.out), setup.out, setup.command)


def _run(setup: Setup) -> list[Found]:
    base = base_of(texts.base_for(setup), "auto", setup.threads)
    cells = []
    for language in select(setup.tasks or (TASKS[0].name,), TASKS):
        files = write_rows(setup.data, setup.out / "rows", language)
        same = {
            "task": language.name, "base": base.name, "fingerprint": base.fingerprint,
            "rows": {part: file_digest(path) for part, path in files.items()},
        }  # fmt: skip
        ask = f"Translate into {language.name.capitalize()}: "
        recipe = replace(RECIPE, template=texts.asking(base, ask))
        untrained = {**same, "method": UNTRAINED, "steps": 0, "recipe": asdict(recipe), "instruction": ask}
        cells.append(Cell(untrained, partial(texts.score_base, base, files, recipe, EXAMPLE, ask), 5000, UNTRAINED))
        for seed in range(setup.seeds or 1):
            for steps in STEPS:
                for method in METHODS:
                    asked = {
                        **same, "method": full_spelling(method), "seed": seed, "steps": steps, "lr": parse(method).lr,
                        "recipe": asdict(RECIPE),
                    }  # fmt: skip
                    learn = partial(texts.train_and_score, base, files, method, steps, seed, RECIPE, EXAMPLE)
                    cells.append(Cell(asked, learn, steps * RECIPE.batch_size * TOKENS_PER_ROW, method))
    return ledger.run(cells, setup)


def write_rows(data: Path, out: Path, language: Language) -> dict[str, Path]:
    """Write the captions to train, to validate and to test on, samples with seed 0; return the files by part."""
    found = {}
    for part, most in (("train", None), ("validation", VALIDATION), ("test", TESTED)):
        rows = map(json.loads, read_lines(data / "multi30k" / f"{part}.jsonl.xz"))
        pairs = [{"prompt": row["en"], "completion": row[language.column]} for row in rows]
        lines = sample(texts.lines(pairs), most)
        random.Random(0).shuffle(lines)
        found[part] = write_lines(out / f"{language.name}-{part}.jsonl", lines)
    return found


def curves(cells: Sequence[Found], metric: str = "chrf") -> dict[str, dict[float, list[float]]]:
    """Return the scores in points by language and method, and steps, of those that were trained."""
    found: dict[str, dict[float, list[float]]] = {}
    for cell in cells:
        asked = cell["asked"]
        if asked["method"] != UNTRAINED:
            curve = found.setdefault(f"{asked['task']}, {asked['method']}", {})
            curve.setdefault(asked["steps"], []).append(100 * cell["found"]["scores"][metric])
    return found


def _page(cells: Sequence[Found], out: Path) -> list[str]:
    cells = sorted(cells, key=lambda cell: (cell["asked"]["task"], cell["asked"]["steps"], cell["asked"]["method"]))
    lines = [
        "# Translation: Multi30k",
        "",
        f"Base: {cells[0]['asked']['base'] if cells else ''}, from English. chrF and BLEU of sacrebleu, times 100, "
        f"with 95 % intervals, of greedily written translations of at most {TESTED} test captions; perplexity of the "
        f"references. A step has {RECIPE.batch_size} captions. Seconds are of a processor, for the training.",
        "",
        table(
            ["language", "steps", "method", "chrF", "BLEU", "perplexity", "trained", "seconds"], map(_line, cells)
        ),
        "",
        f"What each writes for “{EXAMPLE}”:",
        "",
        table(
            ["language", "steps", "method", "text"],
            [[*_names(cell["asked"]), plain(cell["found"]["example"], 200)] for cell in cells],
        ),
        "",
    ]  # fmt: skip
    if found := curves(cells):
        figures.spreads(found, out / "figure.png", title="chrF against training steps", xlabel="steps")
        lines += ["![chrF against steps](figure.png)", ""]
    return lines


def _line(cell: Mapping[str, Any]) -> list[str]:
    found = cell["found"]
    return [
        *_names(cell["asked"]), texts.with_span(found, "chrf"), texts.with_span(found, "bleu"),
        f"{found['perplexity']:.1f}", f"{found['trained']:,}",
        f"{found['train_cpu_seconds']:.0f}" if "train_cpu_seconds" in found else "",
    ]  # fmt: skip


def _names(asked: Mapping[str, Any]) -> list[str]:
    return [asked["task"], str(asked["steps"]), f"`{asked['method']}`"]
