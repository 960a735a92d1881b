"""Find stored tasks: by words, ranked by BM25 over what their records say, or by meaning, with a base's own vectors."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import UsageError
from adaptree.tasks.summary import Row, Summary, fields

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

WEIGHTS = {"name": 3.0, "tags": 3.0, "labels": 2.0, "notes": 2.0}
"""How much a word counts in a field; in the others, 1."""
K1, B = 1.2, 0.75
"""BM25's constants, as usual: how soon a repeated word counts no more, and how much a long text is held against it."""
PART = 0.5
"""What a longer word counts that begins as the wanted one does: 'reviews' for 'review'."""
LONGEST = 1000
"""Characters of a task's text that become its vector."""
WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, kw_only=True)
class Hit:
    """A task that was found, how well it matches and why, and what `list` shows of it."""

    match: float
    """BM25's score, or the cosine of two vectors: only to compare the hits of one search."""
    why: str
    summary: Summary

    def to_dict(self) -> dict[str, Any]:
        return {"match": self.match, "why": self.why, **asdict(self.summary)}


def search(
    words: str, store: Store, *, meaning: bool = False, limit: int = 10, base: Base | str | Path = "minilm"
) -> list[Hit]:
    """Return the stored tasks that match some words, the best first; with `meaning`, those nearest in meaning.

    Names, labels, kinds, methods, bases, data, notes, tags and examples are searched. For the meaning, `base` makes a
    vector of each task's name, labels, notes and examples; the index keeps them, so that only new tasks need one.
    """
    if not WORD.search(words):
        raise UsageError("there is nothing to search for.", hint="adaptree search WORDS")
    rows = [row for row in store.rows(text=True) if row.text]
    if not rows:
        return []
    return _by_meaning(words, rows, store, base, limit) if meaning else by_words(words, rows)[:limit]


def tokens(text: str) -> list[str]:
    """Return the words of a text as they are compared: without case, punctuation, and variants of letters."""
    return WORD.findall(unicodedata.normalize("NFKC", text).casefold())


# by words


def by_words(words: str, rows: Sequence[Row]) -> list[Hit]:
    """Rank rows by BM25 with weighted fields (BM25F)."""
    texts = [row.text.casefold() for row in rows]
    mean = sum(map(len, texts)) / len(texts)
    scores: dict[int, float] = {}
    whys: dict[int, dict[str, list[str]]] = {}
    for word in dict.fromkeys(tokens(words)):
        found = {i: _occurrences(word, rows[i]) for i, text in enumerate(texts) if word in text}
        found = {i: where for i, where in found.items() if where}
        rarity = math.log(1 + (len(rows) - len(found) + 0.5) / (len(found) + 0.5))
        for i, where in found.items():
            count = sum(times for _, times in where.values())
            length = 1 - B + B * len(texts[i]) / mean
            scores[i] = scores.get(i, 0.0) + rarity * count * (K1 + 1) / (count + K1 * length)
            for field, (match, _) in where.items():
                whys.setdefault(i, {}).setdefault(field, []).append(match)
    order = sorted(scores, key=lambda i: (-scores[i], rows[i].summary.name))
    return [Hit(match=scores[i], why=_why(whys[i]), summary=rows[i].summary) for i in order]


def _occurrences(word: str, row: Row) -> dict[str, tuple[str, float]]:
    """Return by field the word as it is there, and how often: weighted, and less where it is only a part of another."""
    found: dict[str, tuple[str, float]] = {}
    for field, text in fields(row.text).items():
        match, count = "", 0.0
        for token in tokens(text):
            if token == word:
                match, count = word, count + 1
            elif token.startswith(word) or (word in token and not word.isascii()):  # not all scripts space words
                match, count = match or token, count + PART
        if count:
            found[field] = match, WEIGHTS.get(field, 1.0) * count
    return found


def _why(where: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{field}: {' '.join(matches)}" for field, matches in where.items())


# by meaning


def _by_meaning(words: str, rows: Sequence[Row], store: Store, base: Base | str | Path, limit: int) -> list[Hit]:
    """Rank rows by the cosine of their vectors with the words' own; why is the part of a task that is nearest."""
    from adaptree.models.opening import base_of

    opened = base_of(base, "cpu", None)
    query = _directions(opened, [words])[0]
    cosines = (_vectors(opened, rows, store) @ query).tolist()
    best = sorted(range(len(rows)), key=lambda i: (-cosines[i], rows[i].summary.name))[:limit]
    parts = [_parts(rows[i]) for i in best]
    near = iter((_directions(opened, [text for each in parts for _, text in each]) @ query).tolist())
    hits = []
    for i, each in zip(best, parts, strict=True):
        _, (field, text) = max(((next(near), part) for part in each), key=lambda pair: pair[0])
        hits.append(Hit(match=cosines[i], why=f"{field}: {text}", summary=rows[i].summary))
    return hits


def _vectors(base: Base, rows: Sequence[Row], store: Store) -> Tensor:
    """Return each row's vector of length 1, (n, width), from the index where it has it."""
    import torch

    texts = [". ".join(text for _, text in _parts(row))[:LONGEST] for row in rows]
    keys = [f"{base.fingerprint}-{hashlib.sha256(text.encode()).hexdigest()}" for text in texts]
    kept = store.index.vectors(base.fingerprint)
    missing = {key: text for key, text in zip(keys, texts, strict=True) if len(kept.get(key, b"")) != 4 * base.width}
    new: dict[str, bytes] = {}
    if missing:
        made = _directions(base, list(missing.values())).numpy()
        new = {key: vector.tobytes() for key, vector in zip(missing, made, strict=True)}
    gone = kept.keys() - set(keys)
    if new or gone:
        store.index.keep_vectors(new, gone)
    found = kept | new
    return torch.frombuffer(bytearray(b"".join(found[key] for key in keys)), dtype=torch.float32).view(len(rows), -1)


def _parts(row: Row) -> list[tuple[str, str]]:
    """Return the parts of a task that say what it is about, each with its field."""
    texts = fields(row.text)
    parts = [("name", re.sub(r"[-_/]+", " ", texts["name"]))]
    parts += [(field, texts[field]) for field in ("labels", "notes") if field in texts]
    return parts + [("examples", text) for text in texts.get("examples", "").split(" · ") if text.strip()]


def _directions(base: Base, texts: Sequence[str]) -> Tensor:
    """Return the base's vectors of texts, each of length 1."""
    import torch.nn.functional as F

    return F.normalize(base.features(list(texts)), dim=-1)
