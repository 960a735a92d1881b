"""Restaurants described from their facts (E2E): adapters, LoRA and full fine-tuning of a language model, same steps.

The official dev set is trained on, the official test set is written for; each set of facts has several references.
Beside the trained ones: a template filled in by rule, the sentence of the training row with the likest facts, and the
base without training, which is asked in its own template of chats.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.cells import full_spelling
from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import figures, ledger, texts
from adaptree.analysis.experiments.corpora import read_lines, write_lines
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, write_page
from adaptree.methods import parse
from adaptree.models.opening import base_of
from adaptree.reports.markdown import plain, table

METHODS = ("lora:16", "houlsby:32", "full")
TEMPLATE, NEAREST, BASE = "template", "nearest row", "base, untrained"
STEPS, TESTED, VALIDATION = 150, 120, 60
"""Training steps, and how many sets of facts of the test file are written for; how many rows are for validation."""
RECIPE = texts.Recipe(template="{input}\n", batch_size=8, max_length=128, max_new_tokens=64)
INSTRUCTION = "Describe this restaurant in one or two sentences, with all of these facts and no others: "
"""What the base is asked where it is not trained."""
EXAMPLE = "name[The Lantern], eatType[pub], food[Thai], priceRange[cheap], area[riverside], near[Old Mill]"
"""Facts of no restaurant in the data, for which the page shows what each way writes."""
FACT = re.compile(r"(\w[\w ]*)\[([^\]]*)\]")
TOKENS_PER_ROW = 75


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page over all that are done."""
    found = ledger.alike(ledger.read(setup.out), "base", "rows") if setup.redraw else _run(setup)
    return write_page(_page([cell for cell in found if "found" in cell], setup.out), setup.out, setup.command)


def _run(setup: Setup) -> list[Found]:
    base = base_of(texts.base_for(setup), "auto", setup.threads)
    files = write_rows(setup.data, setup.out / "rows")
    same = {
        "base": base.name, "fingerprint": base.fingerprint,
        "rows": {part: file_digest(path) for part, path in files.items()},
    }  # fmt: skip
    asked = replace(RECIPE, template=texts.asking(base, INSTRUCTION), max_length=256)
    untrained = {**same, "way": BASE, "recipe": asdict(asked), "instruction": INSTRUCTION}
    cells = [
        Cell({**same, "way": TEMPLATE, "phrases": PHRASES}, partial(_by_rule, files, fill), 5000, TEMPLATE),
        Cell({**same, "way": NEAREST}, partial(_by_rule, files, nearest(texts.read(files["train"]))), 5000, NEAREST),
        Cell(untrained, partial(texts.score_base, base, files, asked, EXAMPLE, INSTRUCTION), 20_000, BASE),
    ]
    for seed in range(setup.seeds or 1):
        for method in METHODS:
            asks = {
                **same, "way": method, "method": full_spelling(method), "seed": seed, "steps": STEPS,
                "lr": parse(method).lr, "recipe": asdict(RECIPE),
            }  # fmt: skip
            learn = partial(texts.train_and_score, base, files, method, STEPS, seed, RECIPE, EXAMPLE)
            cells.append(Cell(asks, learn, STEPS * RECIPE.batch_size * TOKENS_PER_ROW, method))
    return ledger.run(cells, setup)


def write_rows(data: Path, out: Path) -> dict[str, Path]:
    """Write the rows to train, to validate and to test on, samples with seed 0; return the files by part."""
    rows, test = (
        [{"prompt": row["input"], "completion": row["output"]} for row in map(json.loads, read_lines(path))]
        for path in (data / "e2e" / "train_from_dev.jsonl.xz", data / "e2e" / "test.jsonl.xz")
    )
    random.Random(0).shuffle(rows)
    held = min(VALIDATION, len(rows) // 5)
    facts = sorted({row["prompt"] for row in test})
    chosen = set(random.Random(0).sample(facts, min(TESTED, len(facts))))
    of = {"train": rows[held:], "validation": rows[:held], "test": [row for row in test if row["prompt"] in chosen]}
    return {part: write_lines(out / f"{part}.jsonl", texts.lines(some)) for part, some in of.items()}


def facts_of(prompt: str) -> dict[str, str]:
    """Return the facts in a prompt, by their names."""
    return dict(FACT.findall(prompt))


PHRASES = {
    "eatType": "is a {}",
    "food": "serves {} food",
    "priceRange": "has a {} price range",
    "customer rating": "is rated {}",
    "area": "is in the {} area",
    "near": "is near {}",
}
FAMILIES = {"yes": "is family friendly", "no": "is not family friendly"}


def fill(prompt: str) -> str:
    """Return the facts as a sentence that is made by rule: one phrase for each, in a fixed order."""
    facts = facts_of(prompt)
    said = [phrase.format(facts[name]) for name, phrase in PHRASES.items() if name in facts]
    said += [FAMILIES[facts["familyFriendly"]]] if facts.get("familyFriendly") in FAMILIES else []
    listed = ", ".join(said[:-1]) + f" and {said[-1]}" if len(said) > 1 else "".join(said)
    return f"{facts.get('name', 'It')} {listed}."


def nearest(rows: texts.Pairs) -> Any:
    """Return a function from facts to the sentence of the row with the likest ones, with the names exchanged."""
    known = [(facts_of(row["prompt"]), row["completion"]) for row in rows]

    def say(prompt: str) -> str:
        own = facts_of(prompt)

        def alike(of: Mapping[str, str]) -> float:
            a, b = ({(k, v) for k, v in facts.items() if k not in ("name", "near")} for facts in (own, of))
            return len(a & b) / max(len(a | b), 1) + 0.5 * (("near" in own) == ("near" in of))

        facts, sentence = max(known, key=lambda each: alike(each[0]))
        for name in ("name", "near"):
            if name in own and name in facts:
                sentence = sentence.replace(facts[name], own[name])
        return sentence

    return say


def _by_rule(files: Mapping[str, Path], say: Any) -> dict[str, Any]:
    found = texts.scored(texts.read(files["test"]), lambda prompts: list(map(say, prompts)))
    return {**found, "example": say(EXAMPLE), "trained": 0}


def _page(cells: Sequence[Found], out: Path) -> list[str]:
    order = (TEMPLATE, NEAREST, BASE, *METHODS)
    cells = sorted(cells, key=lambda cell: (order.index(cell["asked"]["way"]), cell["asked"].get("seed", 0)))
    body = []
    for cell in cells:
        found = cell["found"]
        body.append([
            f"`{cell['asked']['way']}`", *(texts.with_span(found, name) for name in texts.METRICS),
            f"{found['perplexity']:.2f}" if "perplexity" in found else "", f"{found['trained']:,}",
            f"{found['train_cpu_seconds']:.0f}" if "train_cpu_seconds" in found else "",
        ])  # fmt: skip
    lines = [
        "# Facts to sentences: E2E",
        "",
        f"Base: {cells[0]['asked']['base'] if cells else ''}. BLEU and chrF of sacrebleu and ROUGE-L, times 100, with "
        f"95 % intervals, of greedily written texts for {cells[0]['found']['prompts'] if cells else 0} sets of facts "
        f"of the official test set, all references of each; perplexity of one reference each. Trained ones have "
        f"{STEPS} steps of {RECIPE.batch_size} rows of the official dev set, each at its method's own learning rate, "
        "and the prompt alone as template; the base without training is asked in words. Seconds are of a processor, "
        "for the training.",
        "",
        table(["way", "BLEU", "chrF", "ROUGE-L", "perplexity", "trained", "seconds"], body),
        "",
        f"What each writes for `{EXAMPLE}`:",
        "",
        table(["way", "text"], [[f"`{c['asked']['way']}`", plain(c["found"]["example"], 300)] for c in cells]),
        "",
    ]
    if cells:
        named = {cell["asked"]["way"]: cell["found"]["scores"] for cell in cells}
        figures.written(named, texts.METRICS, out / "figure.png")
        lines += ["![BLEU, chrF and ROUGE-L of each way](figure.png)", ""]
    return lines
