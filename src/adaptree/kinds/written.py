"""How texts that were written are scored against references: exact match, BLEU, chrF and ROUGE-L.

Rows with the same input are one: their targets are its references. BLEU and chrF are sacrebleu's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from adaptree.errors import UsageError
from adaptree.kinds import bootstrap

METRICS = ("exact_match", "rouge_l", "chrf", "bleu")
RESAMPLES = 300
_WORD = re.compile(r"\w+|[^\w\s]")


def grouped(keys: Sequence[str], texts: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return one text for each different input, and all its references."""
    found: dict[str, tuple[str, list[str]]] = {}
    for key, text, target in zip(keys, texts, targets, strict=True):
        found.setdefault(key, (text, []))[1].append(target)
    return [text for text, _ in found.values()], [list(dict.fromkeys(of)) for _, of in found.values()]


def score(texts: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return every metric of some texts, from 0 to 1, and their 95 % intervals."""
    if not texts:
        return {}, {}
    rows = np.array(
        [
            (max(float(_words(text) == _words(each)) for each in of), max(rouge_l(text, each) for each in of), 1.0)
            for text, of in zip(texts, references, strict=True)
        ]
    )

    def ratios(sums: Any) -> dict[str, Any]:
        return {"exact_match": sums[:, 0] / sums[:, 2], "rouge_l": sums[:, 1] / sums[:, 2]}

    found = bootstrap.score(rows, ratios)
    intervals = {name: list(pair) for name, pair in bootstrap.intervals(rows, ratios).items()}
    for name, value, interval in _sacrebleu(texts, references):
        found[name] = value
        if interval is not None:
            intervals[name] = interval
    return found, intervals


def rouge_l(text: str, reference: str) -> float:
    """Return the F1 of the longest common subsequence of words (Lin 2004), in small letters."""
    a, b = _words(text.lower()), _words(reference.lower())
    if not a or not b:
        return float(a == b)
    row = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for j, other in enumerate(b):
            before, row[j + 1] = row[j + 1], before + 1 if word == other else max(row[j + 1], row[j])
    return 2 * row[-1] / (len(a) + len(b))


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _sacrebleu(
    texts: Sequence[str], references: Sequence[Sequence[str]]
) -> list[tuple[str, float, list[float] | None]]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise UsageError(
            "BLEU and chrF need the package sacrebleu.", hint="pip install 'adaptree[generate]'"
        ) from error
    most = max(map(len, references))
    streams: Any = [[of[i] if i < len(of) else None for of in references] for i in range(most)]
    found: list[tuple[str, float, list[float] | None]] = []
    for name, metric in (("chrf", CHRF()), ("bleu", BLEU())):
        score = metric.corpus_score(list(texts), streams)
        interval = None
        with suppress(TypeError):  # of a few rows, whose resamples score 0, it cannot take the mean
            drawn = metric.corpus_score(list(texts), streams, n_bootstrap=RESAMPLES)
            low, high = float(drawn._mean - drawn._ci), float(drawn._mean + drawn._ci)
            interval = [max(0.0, low) / 100, min(100.0, high) / 100]
        found.append((name, float(score.score) / 100, interval))
    return found
