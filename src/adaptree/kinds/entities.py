"""Precision, recall and F1 of entities by conlleval's rule: an entity is right when its label and both ends are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from adaptree.data.forms.tag import entities
from adaptree.errors import DataError
from adaptree.kinds import bootstrap

Floats = NDArray[np.float64]
Tags = Sequence[str]
Entity = tuple[str, int, int]

RIGHT, PREDICTED, GOLD, RIGHT_TOKENS, TOKENS = range(5)


def statistics(targets: Sequence[Tags], answers: Sequence[Tags], *, plain: bool = False) -> Floats:
    """For each sentence its right, predicted and gold entities, right tokens and tokens, (n, 5).

    Plain tags have no prefixes: every word whose tag is not 'O' counts as an entity.
    """
    _must_match(len(targets), len(answers), "sentences")
    sums = np.zeros((len(targets), 5))
    for row, gold, answer in zip(sums, targets, answers, strict=True):
        right, predicted = _found(gold, plain), _found(answer, plain)
        row[:3] = len(right & predicted), len(predicted), len(right)
        _must_match(len(gold), len(answer), "tags")
        row[3:] = sum(map(str.__eq__, gold, answer)), len(gold)
    return sums


def ratios(sums: Floats) -> dict[str, Floats]:
    """The metrics of totals (R, 5); 0 where nothing is counted."""
    right, predicted, gold = sums[:, RIGHT], sums[:, PREDICTED], sums[:, GOLD]
    return {
        "f1": _ratio(2 * right, predicted + gold),
        "precision": _ratio(right, predicted),
        "recall": _ratio(right, gold),
        "accuracy": _ratio(sums[:, RIGHT_TOKENS], sums[:, TOKENS]),
    }


def score(targets: Sequence[Tags], answers: Sequence[Tags], *, plain: bool = False) -> dict[str, float]:
    """F1, precision and recall of entities over all sentences, and the share of tokens that are right."""
    totals = statistics(targets, answers, plain=plain).sum(axis=0, keepdims=True)
    return {name: float(values[0]) for name, values in ratios(totals).items()}


def intervals(
    targets: Sequence[Tags], answers: Sequence[Tags], *, plain: bool = False
) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each, by the bootstrap over sentences."""
    return bootstrap.intervals(statistics(targets, answers, plain=plain), ratios)


def by_label(targets: Sequence[Tags], answers: Sequence[Tags], *, plain: bool = False) -> dict[str, dict[str, float]]:
    """Precision, recall and F1 of each label, with how many of its entities are gold, predicted and right."""
    _must_match(len(targets), len(answers), "sentences")
    counts: Counter[tuple[str, int]] = Counter()
    for gold, answer in zip(targets, answers, strict=True):
        wanted, predicted = _found(gold, plain), _found(answer, plain)
        for which, some in ((GOLD, wanted), (PREDICTED, predicted), (RIGHT, wanted & predicted)):
            counts.update((label, which) for label, _, _ in some)
    found: dict[str, dict[str, float]] = {}
    for label in sorted({label for label, _ in counts}):
        totals = np.array([[counts[label, which] for which in range(5)]], dtype=np.float64)
        metrics = ratios(totals)
        found[label] = {name: float(metrics[name][0]) for name in ("f1", "precision", "recall")}
        found[label] |= {"gold": counts[label, GOLD], "predicted": counts[label, PREDICTED]}
        found[label]["right"] = counts[label, RIGHT]
    return found


def _found(tags: Tags, plain: bool) -> set[Entity]:
    if plain:
        return {(tag, i, i + 1) for i, tag in enumerate(tags) if tag != "O"}
    return set(entities(tags))


def _ratio(a: Floats, b: Floats) -> Floats:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def _must_match(gold: int, answers: int, what: str) -> None:
    if gold != answers:
        raise DataError(f"{gold} gold {what} but {answers} predicted.", hint="Give one for each.")
