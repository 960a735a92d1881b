"""Tag schemes, and the scores of entities by conlleval's rule: one is right when its label and both ends are."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from adaptree.errors import DataError, UsageError, near
from adaptree.kinds.metrics import ratio

Floats = NDArray[np.float64]
Tags = Sequence[str]
Entity = tuple[str, int, int]
"""A label, the first word and the first one behind."""

PLAIN = "plain"
SCHEMES: Mapping[str, str] = {"IOB1": "BI", "IOB2": "BI", "IOBES": "BIES", "BILOU": "BILU", PLAIN: ""}
"""Ways of writing which words belong together, with their prefixes; plain tags stand for one word each."""
PREFIXED = re.compile(r"([BIESLU])(?:-(.+))?", re.DOTALL)

RIGHT, PREDICTED, GOLD, RIGHT_TOKENS, TOKENS = range(5)


def scheme_of(sequences: Iterable[Sequence[str]]) -> str:
    """Return the scheme of some sentences' tags; IOB2 also where all are 'O', or mistakes hide which IOB it is."""
    sequences = list(sequences)
    tags = {tag for tags in sequences for tag in tags} - {"O"}
    found = {tag: match for tag in tags if (match := PREFIXED.fullmatch(tag))}
    named = {match[2] is not None for match in found.values()}  # 'B' and 'I' alone are tags too, of things of one sort
    if len(found) < len(tags) or len(named) > 1 or (named == {False} and not {"B", "I"} & tags):
        return PLAIN
    prefixes = {match[1] for match in found.values()}
    if prefixes <= {"B", "I"}:
        return "IOB1" if _is_iob1(sequences) else "IOB2"
    return next((name for name in ("IOBES", "BILOU") if prefixes <= set(SCHEMES[name])), PLAIN)


def _is_iob1(sequences: Iterable[Sequence[str]]) -> bool:
    """Return whether some entity begins with I, and none with B but where it must: right behind one of its label."""
    begins = False
    for tags in sequences:
        before = None
        for tag in tags:
            prefix, label = _split(tag, "IOB1")
            if prefix == "B" and label != before:
                return False
            begins |= prefix == "I" and label != before
            before = None if prefix == "O" else label
    return begins


def to_iob2(tags: Sequence[str], scheme: str) -> list[str]:
    """Return tags of any scheme in IOB2; as in conlleval, an entity without a beginning begins."""
    _prefixes(scheme)
    if scheme == PLAIN:
        return list(tags)
    found: list[str] = []
    open_label: str | None = None
    for tag in tags:
        prefix, label = _split(tag, scheme)
        if prefix == "O":
            found.append("O")
        else:
            found.append(_join("I" if prefix in "IEL" and label == open_label else "B", label))
        open_label = None if prefix in "OESLU" else label
    return found


def entities(tags_iob2: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return each entity's label, its first word and the first one behind it."""
    found: list[tuple[str, int, int]] = []
    start, open_label = 0, None
    for i, tag in enumerate([*tags_iob2, "O"]):
        prefix, label = _split(tag, "IOB2")
        if prefix == "I" and label == open_label:
            continue
        if open_label is not None:
            found.append((open_label, start, i))
        start, open_label = i, None if prefix == "O" else label
    return found


@lru_cache(4096)
def _split(tag: str, scheme: str) -> tuple[str, str]:
    """Return a tag's prefix and label."""
    if tag == "O":
        return "O", ""
    match = PREFIXED.fullmatch(tag)
    if match is None or match[1] not in _prefixes(scheme):
        raise DataError(
            f"the tag '{tag[:60]}' does not fit the others, which are in {scheme}.",
            hint=f"Its tags are O, and those that begin with {', '.join(f'{p}-' for p in SCHEMES[scheme])}.",
        )
    return match[1], match[2] or ""


def _join(prefix: str, label: str) -> str:
    return f"{prefix}-{label}" if label else prefix


def _prefixes(scheme: str) -> str:
    if scheme not in SCHEMES:
        raise UsageError(f"no tag scheme '{scheme}'; there are {', '.join(SCHEMES)}.", hint=near(scheme, SCHEMES))
    return SCHEMES[scheme]


def statistics(targets: Sequence[Tags], answers: Sequence[Tags], *, plain: bool = False) -> Floats:
    """Return by sentence the numbers of right, predicted and gold entities, right tokens and tokens, (n, 5).

    Plain tags have no prefixes: every word whose tag is not 'O' counts as an entity.
    """
    _must_match(len(targets), len(answers), "sentences")
    sums = np.zeros((len(targets), 5))
    for row, gold, answer in zip(sums, targets, answers, strict=True):
        right, predicted = set(entities_of(gold, plain)), set(entities_of(answer, plain))
        row[:3] = len(right & predicted), len(predicted), len(right)
        _must_match(len(gold), len(answer), "tags")
        row[3:] = sum(map(str.__eq__, gold, answer)), len(gold)
    return sums


def ratios(sums: Floats) -> dict[str, Floats]:
    """Return the metrics of totals (R, 5); 0 where nothing is counted."""
    right, predicted, gold = sums[:, RIGHT], sums[:, PREDICTED], sums[:, GOLD]
    return {
        "f1": ratio(2 * right, predicted + gold),
        "precision": ratio(right, predicted),
        "recall": ratio(right, gold),
        "accuracy": ratio(sums[:, RIGHT_TOKENS], sums[:, TOKENS]),
    }


def by_label(targets: Sequence[Tags], answers: Sequence[Tags], *, plain: bool = False) -> dict[str, list[int]]:
    """Return how many entities of each label are right, predicted and gold."""
    _must_match(len(targets), len(answers), "sentences")
    counts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for gold, answer in zip(targets, answers, strict=True):
        wanted, predicted = set(entities_of(gold, plain)), set(entities_of(answer, plain))
        for which, entities in ((RIGHT, wanted & predicted), (PREDICTED, predicted), (GOLD, wanted)):
            for label, _, _ in entities:
                counts[label][which] += 1
    return dict(sorted(counts.items()))


def entities_of(tags: Tags, plain: bool) -> list[Entity]:
    """Return the entities that tags spell; every plain tag but 'O' is one of one word."""
    return [(tag, i, i + 1) for i, tag in enumerate(tags) if tag != "O"] if plain else entities(tags)


def _must_match(gold: int, answers: int, what: str) -> None:
    if gold != answers:
        raise DataError(f"{gold} gold {what} but {answers} predicted.", hint="Give one for each.")
