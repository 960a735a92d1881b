"""Tasks that write texts, as cells of an experiment: trained for a number of steps, or not at all, then scored."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.experiments.setup import Setup
from adaptree.data.decoding import Decoding
from adaptree.data.writer import CHAT, PLAIN
from adaptree.kinds import written
from adaptree.kinds.generate import Generate
from adaptree.models.forward import infer
from adaptree.models.generation import write
from adaptree.training.pipeline import train
from adaptree.training.run import Run

if TYPE_CHECKING:
    from adaptree.models.base import Base

Pairs = Sequence[Mapping[str, str]]
"""Rows with a prompt and a completion."""
METRICS = ("bleu", "chrf", "rouge_l")


@dataclass(frozen=True)
class Recipe:
    """How a task is trained, and how it writes."""

    template: str
    batch_size: int
    max_length: int
    max_new_tokens: int
    precision: str = "bf16"


def lines(rows: Pairs) -> list[str]:
    """Return rows as lines of a file that `train` reads."""
    return [json.dumps({key: row[key] for key in ("prompt", "completion")}, ensure_ascii=False) for row in rows]


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def train_and_score(
    base: Base, files: Mapping[str, Path], method: str, steps: int, seed: int, recipe: Recipe, example: str
) -> dict[str, Any]:
    """Train a task for some steps; return the scores of what it writes for the test rows, and the price."""
    rows = len(read(files["train"]))
    run = Run.of(
        files["train"], validation=files["validation"], base=base, method=method, kind="generate", seed=seed,
        max_steps=steps, epochs=-(-steps * recipe.batch_size // rows), batch_size=recipe.batch_size,
        max_length=recipe.max_length, template=recipe.template, precision=recipe.precision, baselines=False,
    )  # fmt: skip
    began = time.process_time()
    bound = train(run)[0]
    trained, record = time.process_time() - began, bound.task.record

    def say(prompts: Sequence[str]) -> list[str]:
        asked = bound.predict(list(prompts), max_new_tokens=recipe.max_new_tokens)
        return [each.text for each in asked]

    test = read(files["test"])
    some = _first_of_each(test)
    sums = bound.run([{"prompt": row["prompt"]} for row in some], targets=[row["completion"] for row in some])
    return {
        **scored(test, say), "perplexity": _perplexity(bound.kind, sums), "example": say([example])[0],
        "train_cpu_seconds": round(trained, 1), "trained": record.parameters["trained"],
        "base": record.parameters["base"],
    }  # fmt: skip


def score_base(base: Base, files: Mapping[str, Path], recipe: Recipe, example: str, instruction: str) -> dict[str, Any]:
    """Return the scores of what the base itself writes, without training, asked in the words of an instruction."""
    before = instruction if recipe.template == CHAT else ""  # another template has it already
    kind = Generate._of(base.encoder, {"template": recipe.template})
    longest = min(recipe.max_length, base.limit)

    def say(prompts: Sequence[str]) -> list[str]:
        asked = [{"prompt": before + each} for each in prompts]
        rows = [row for (row,) in kind.examples(base.encoder, asked, longest)]
        decoding = Decoding(max_new_tokens=recipe.max_new_tokens)
        return [each.text for each in write(base, rows, decoding, plan={})]

    test = read(files["test"])
    some = _first_of_each(test)
    asked, wanted = [{"prompt": before + row["prompt"]} for row in some], [row["completion"] for row in some]
    examples = kind.taught(base.encoder, asked, wanted, longest)
    out = infer(base, examples, kind, {}, {}, "")
    return {
        **scored(test, say), "perplexity": _perplexity(kind, (examples, out)), "example": say([example])[0],
        "trained": 0,
    }  # fmt: skip


def base_for(setup: Setup) -> str | Path:
    """Return the base of an experiment whose tasks write: smollm in the place of the default, which only reads."""
    return "smollm" if setup.base == Setup.base else setup.base


def asking(base: Base, instruction: str) -> str:
    """Return the template with which a base is asked: its own of chats, else the instruction before the prompt."""
    return CHAT if base.encoder.writer is not None and base.encoder.writer.chat else f"{instruction}{PLAIN}"


def with_span(found: Mapping[str, Any], metric: str) -> str:
    """Return a score in points, with its interval."""
    value, span = found["scores"][metric], found["intervals"].get(metric)
    return f"{100 * value:.1f}" + (f" ({100 * span[0]:.1f}-{100 * span[1]:.1f})" if span else "")


def scored(test: Pairs, say: Any) -> dict[str, Any]:
    """Return the scores, with intervals, of what a function writes for each different prompt of some rows."""
    prompts = list(dict.fromkeys(row["prompt"] for row in test))
    said = dict(zip(prompts, say(prompts), strict=True))
    texts, references = written.grouped(
        [row["prompt"] for row in test], [said[row["prompt"]] for row in test], [row["completion"] for row in test]
    )
    scores, intervals = written.score(texts, references)
    return {"scores": scores, "intervals": intervals, "prompts": len(prompts)}


def _first_of_each(rows: Pairs) -> list[Mapping[str, str]]:
    """Return one row of each prompt: the perplexity of all references would cost more than the writing."""
    return list({row["prompt"]: row for row in reversed(rows)}.values())


def _perplexity(kind: Any, run: tuple[Any, Any]) -> float:
    examples, out = run
    return float(kind.score(None, kind.decode(out, examples))["perplexity"])
