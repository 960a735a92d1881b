"""Small data in every form that adaptree reads, for the compatibility tests.

The rows and the questions depend on the arguments alone, so the same call gives the same data on every machine. The
store and the digests that were made from them are committed beside this file: a change here means to make both anew.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

FILLER = ["the", "a", "old", "new", "very", "big", "small", "near", "under", "with", "and", "or", "seen", "today"]
WORDS = {
    "fruit": ["apple", "pear", "plum"],
    "tool": ["hammer", "saw", "drill"],
    "beast": ["lion", "wolf", "bear"],
}
FORMS = ["single", "pair", "windows", "labels", "regress", "numbers", "tag", "spans", "answer", "choose", "mlm"]
OPTIONS: dict[str, dict[str, Any]] = {
    "pair": {"text": "text_a", "text_pair": "text_b", "label": "label"},
    "windows": {"windows": True},
    "numbers": {"label": "joy,fear"},
    "mlm": {"kind": "mlm"},
}
"""What `adaptree.train` is told about the data of a form; of the others it guesses all."""


def _sentence(rng: random.Random, label: str, longest: int = 8) -> list[str]:
    """Words in any order, some of which tell the label."""
    words = rng.choices(FILLER, k=rng.randint(2, longest)) + rng.choices(WORDS[label], k=rng.randint(1, 3))
    rng.shuffle(words)
    return words


def _row(form: str, i: int, rng: random.Random) -> dict[str, Any]:
    label = list(WORDS)[i % 3]
    words = _sentence(rng, label)
    text = " ".join(words)
    beasts = [i for i, word in enumerate(words) if word in WORDS["beast"]]
    if form == "single":
        return {"text": text, "label": label}
    if form == "pair":
        other = list(WORDS)[rng.randrange(3)]
        return {"text_a": text, "text_b": " ".join(_sentence(rng, other)), "label": "same" if other == label else "not"}
    if form == "windows":  # longer than the base takes at once
        return {
            "text": " ".join(word for _ in range(rng.randint(5, 12)) for word in _sentence(rng, label)),
            "label": label,
        }
    if form == "labels":
        chosen = rng.sample(list(WORDS), rng.randint(0, 3))
        return {"text": " ".join(words + [rng.choice(WORDS[each]) for each in chosen]), "labels": sorted(chosen)}
    if form == "regress":
        return {"text": text, "score": len(beasts) + round(rng.random(), 3)}
    if form == "numbers":
        return {"text": text, "joy": len(beasts) + round(rng.random(), 3), "fear": round(-len(words) / 7, 3)}
    if form == "tag":
        tags = ["O"] * len(words)
        for at in beasts:
            tags[at] = "I-BEAST" if at and tags[at - 1] != "O" else "B-BEAST"
        return {"tokens": words, "tags": tags}
    if form == "spans":
        starts = [len(" ".join(words[:at])) + (at > 0) for at in beasts]
        ends = [start + len(words[at]) for start, at in zip(starts, beasts, strict=True)]
        return {
            "text": text,
            "spans": [{"start": s, "end": e, "label": "BEAST"} for s, e in zip(starts, ends, strict=True)],
        }
    if form == "answer":  # every fourth question has no answer in its context
        at = rng.randrange(len(words))
        found = {"text": [words[at]], "answer_start": [len(" ".join(words[:at])) + (at > 0)]}
        none: dict[str, list[Any]] = {"text": [], "answer_start": []}
        return {"question": f"the {label} {i}", "context": text, "answers": none if i % 4 == 3 else found}
    if form == "choose":
        choices = [rng.choice(of) for of in WORDS.values()]
        return {"question": text, "choices": choices, "label": i % 3}
    assert form == "mlm", form
    return {"text": text}


def rows(form: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Labelled rows of a form, as a file would hold them."""
    rng = random.Random(f"{form} {seed}")
    return [_row(form, i, rng) for i in range(count)]


def write(path: Path, form: str, count: int, seed: int = 0) -> Path:
    """The same rows in a file of json lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(form, count, seed)))
    return path


def questions(form: str) -> list[Any]:
    """What is asked of a task of a form, as JSON can hold it: `asked` makes inputs of it."""
    made = rows(form, 4, seed=99)
    if form == "pair":
        return [[row["text_a"], row["text_b"]] for row in made]
    if form == "answer":
        return [[row["question"], row["context"]] for row in made]
    if form == "choose":
        return [{"text": row["question"], "choices": row["choices"]} for row in made]
    if form == "tag":
        return [made[0]["tokens"], made[1]["tokens"], " ".join(made[2]["tokens"]), "the lion , seen today"]
    if form == "mlm":
        return [made[0]["text"], "the [MASK] wolf", "a [MASK] and a [MASK]", made[1]["text"]]
    return [*(row["text"] for row in made), "zebra", ""]


def asked(form: str, given: list[Any]) -> list[Any]:
    """Questions as `predict` takes them: JSON has no tuples."""
    return [tuple(each) for each in given] if form in ("pair", "answer") else given
