"""What a person wants to know of a task beyond its scores: where it goes wrong, how sure it is, what it says.

Every kind has a function of its own. What they give is plain JSON, small enough to be kept in a task's record.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from adaptree.data.forms.tag import entities
from adaptree.kinds import Classify, Example, Kind, Out, Regress, squad, windows
from adaptree.kinds import entities as entity_scores
from adaptree.kinds.answer import Answer
from adaptree.kinds.choose import Choose
from adaptree.kinds.labels import Labels
from adaptree.kinds.mlm import Mlm
from adaptree.kinds.numbers import Numbers
from adaptree.kinds.tag import Tag

Array = np.ndarray[Any, Any]
Found = dict[str, Any]

CUT = 200
"""Characters of a text."""
CUT_LABEL = 60
MOST_LABELS = 50
MOST_WRONG = 10
MOST_RIGHT = 5
MOST_POINTS = 500
MOST_TARGETS = 6
BINS = 10
FIRST_WORDS = 12
DIGITS = 6
"""Of a number that is kept."""
CANDIDATES = 200
"""Answers that are worst by F1, of which the surest are shown."""


@dataclass(frozen=True)
class Judged:
    """Inputs that a task has answered: what is right, what the head gave, and the answers."""

    kind: Any
    inputs: Sequence[Any]
    targets: Any
    out: Any
    examples: Sequence[Example]
    answers: Any


def insight(
    kind: Kind, inputs: Sequence[Any], targets: Any, out: Out, examples: Sequence[Example], answers: Any = None
) -> Found:
    """What is to be said of a task's answers, as JSON values; nothing for a kind that is not known here.

    `answers` where they are known already. A `single` kind needs no examples.
    """
    look = LOOKS.get(type(kind))
    if look is None or not len(inputs):
        return {}
    answers = kind.decode(out, examples) if answers is None else answers
    found: Found = _json({"rows": len(inputs), **look(Judged(kind, inputs, targets, out, examples, answers))})
    return found


def classify(on: Judged) -> Found:
    labels = [_label(label) for label in on.kind.labels]
    votes = windows.votes(on.out, on.examples) if on.kind.windows else on.out
    shares = votes.double().softmax(-1).numpy()
    gold, said = np.asarray(on.targets, dtype=np.int64), np.asarray(on.answers, dtype=np.int64)
    sure = shares[np.arange(len(said)), said]
    matrix = np.zeros((len(labels), len(labels)), dtype=np.int64)
    np.add.at(matrix, (gold, said), 1)
    shown = _most(matrix.sum(1))
    wrong = np.flatnonzero(gold != said)
    wrong = wrong[np.argsort(-sure[wrong], kind="stable")]
    first = _firsts(gold, said)

    def told(i: int) -> Found:
        return _texts(on.inputs[i]) | {
            "gold": labels[gold[i]],
            "predicted": labels[said[i]],
            "probability": sure[i],
        }

    return {
        "labels": len(labels),
        "confusion": {"labels": [labels[i] for i in shown], "counts": matrix[np.ix_(shown, shown)].tolist()},
        "by_label": _by_label([labels[i] for i in shown], matrix.diagonal()[shown], matrix.sum(0)[shown],
                              matrix.sum(1)[shown]),
        "calibration": calibration(sure, gold == said),
        "wrong": len(wrong),
        "mistakes": [told(i) for i in wrong[:MOST_WRONG].tolist()],
        "right": [told(i) for i in first],
    }  # fmt: skip


def several_labels(on: Judged) -> Found:
    labels, said = list(on.kind.labels), np.asarray(on.answers, dtype=bool)
    place = {label: i for i, label in enumerate(labels)}
    gold = np.zeros_like(said)
    for row, names in zip(gold, on.targets, strict=True):
        row[[place[name] for name in names if name in place]] = True
    shown = _most(gold.sum(0))
    losses = on.kind.loss(on.out, on.examples, on.targets).double().numpy()
    unknown = np.array([any(name not in place for name in names) for names in on.targets], dtype=bool)
    wrong = np.flatnonzero((gold != said).any(1) | unknown)
    wrong = wrong[np.argsort(-losses[wrong], kind="stable")]
    return {
        "labels": len(labels),
        "by_label": _by_label([labels[i] for i in shown], (gold & said).sum(0)[shown], said.sum(0)[shown],
                              gold.sum(0)[shown]),
        "wrong": len(wrong),
        "mistakes": [
            _texts(on.inputs[i])
            | {
                "gold": _listed(on.targets[i]),
                "predicted": _listed(labels[j] for j in np.flatnonzero(said[i])),
                "loss": losses[i],
            }
            for i in wrong[:MOST_WRONG].tolist()
        ],
    }  # fmt: skip


def one_number(on: Judged) -> Found:
    gold, said = np.asarray(on.targets, dtype=np.float64), np.asarray(on.answers, dtype=np.float64)
    misses = _largest(np.abs(said - gold))
    return {
        "targets": [_target("", gold, said, MOST_POINTS)],
        "mistakes": [_texts(on.inputs[i]) | {"gold": gold[i], "predicted": said[i]} for i in misses],
    }


def several_numbers(on: Judged) -> Found:
    names = list(on.kind.targets)
    gold, said = (np.asarray(x, dtype=np.float64).reshape(-1, len(names)) for x in (on.targets, on.answers))
    misses = _largest((((said - gold) / np.array(on.kind.stds)) ** 2).mean(1))
    few = names[:MOST_TARGETS]

    def told(row: Array) -> str:
        return "; ".join(f"{_label(name)} {value:.4g}" for name, value in zip(few, row.tolist(), strict=False))

    return {
        "targets": [_target(name, gold[:, j], said[:, j], MOST_POINTS // len(few)) for j, name in enumerate(few)],
        "mistakes": [_texts(on.inputs[i]) | {"gold": told(gold[i]), "predicted": told(said[i])} for i in misses],
    }


def tags(on: Judged) -> Found:
    plain = on.kind.plain
    counted = entity_scores.by_label(on.targets, on.answers, plain=plain)
    most = sorted(counted, key=lambda label: (-counted[label]["gold"], label))[:MOST_LABELS]
    missed, wrong = [], []
    for gold, said in zip(on.targets, on.answers, strict=True):
        right, found = _entities(gold, plain), _entities(said, plain)
        missed.append([each for each in right if each not in found])
        wrong.append([each for each in found if each not in right])
    errors = np.array([len(a) + len(b) for a, b in zip(missed, wrong, strict=True)], dtype=np.int64)

    def told(i: int) -> Found:
        words = on.inputs[i]["tokens"]
        return {
            "text": _cut(" ".join(words[: 2 * CUT])),
            "missed": _spelled(missed[i], words),
            "wrong": _spelled(wrong[i], words),
        }

    order = np.argsort(-errors, kind="stable")[:MOST_WRONG].tolist()
    return {
        "labels": len(counted),
        "by_label": [{"label": _label(label), **counted[label]} for label in sorted(most)],
        "wrong": int((errors > 0).sum()),
        "mistakes": [told(i) for i in order if errors[i]],
    }


def question_answers(on: Judged) -> Found:
    scores = squad.statistics(on.targets, on.answers)
    first = [_first_word(given["question"]) for given in on.inputs]
    kept = [word for word, _ in sorted(Counter(first).items(), key=lambda item: (-item[1], item[0]))[:FIRST_WORDS]]
    groups: dict[str, list[int]] = defaultdict(list)
    for i, word in enumerate(first):
        groups[word if word in kept else ""].append(i)
    wrong = np.flatnonzero(scores[:, 0] == 0)
    wrong = wrong[np.argsort(scores[wrong, 1], kind="stable")][:CANDIDATES]
    out, examples = _some(on, wrong.tolist())
    said = on.kind.predictions(out, examples, [on.inputs[i] for i in wrong.tolist()], None)
    worst = sorted(zip(wrong.tolist(), said, strict=True), key=lambda pair: (scores[pair[0], 1], -pair[1].score))
    return {
        "by_word": [
            {"word": word, "rows": len(at), "exact_match": scores[at, 0].mean(), "f1": scores[at, 1].mean()}
            for word, at in sorted(groups.items(), key=lambda item: (not item[0], -len(item[1]), item[0]))
        ],
        "wrong": int((scores[:, 0] == 0).sum()),
        "mistakes": [
            {
                "text": _cut(on.inputs[i]["question"]),
                "gold": _cut(on.targets[i]["answers"][0]["text"] if on.targets[i]["answers"] else ""),
                "predicted": _cut(answer.answer),
                "f1": scores[i, 1],
                "probability": answer.score,
            }
            for i, answer in worst[:MOST_WRONG]
        ],
    }


def choices(on: Judged) -> Found:
    count = np.array([len(example) for example in on.examples], dtype=np.int64)
    gold, said = np.asarray(on.targets, dtype=np.int64), np.asarray(on.answers, dtype=np.int64)
    logits = np.split(on.out[:, 0].double().numpy(), np.cumsum(count)[:-1])
    sure = np.array([1 / np.exp(part - part.max()).sum() for part in logits])  # the probability of the highest
    wrong = np.flatnonzero(gold != said)
    wrong = wrong[np.argsort(-sure[wrong], kind="stable")]

    def told(i: int) -> Found:
        given = on.inputs[i]
        chosen = {"gold": _cut(given["choices"][gold[i]]), "predicted": _cut(given["choices"][said[i]])}
        return {"text": _cut(given["text"]), **chosen, "probability": sure[i]}

    return {
        "by_choices": [
            {"choices": n, "rows": int((count == n).sum()), "accuracy": (gold == said)[count == n].mean()}
            for n in np.unique(count).tolist()
        ],
        "wrong": len(wrong),
        "mistakes": [told(i) for i in wrong[:MOST_WRONG].tolist()],
    }


def hidden_words(on: Judged) -> Found:
    lengths = np.array([sum(len(row.ids) for row in example) for example in on.examples], dtype=np.int64)
    thirds = np.searchsorted(np.quantile(lengths, [1 / 3, 2 / 3]), lengths)
    sums = np.asarray(on.answers, dtype=np.float64).reshape(-1, 3)
    found = []
    for third in np.unique(thirds):
        at = thirds == third
        loss, _, pieces = sums[at].sum(0)
        span = {"from": int(lengths[at].min()), "to": int(lengths[at].max())}
        found.append({**span, "rows": int(at.sum()), "perplexity": math.exp(min(loss / max(pieces, 1), 700))})
    return {"by_length": found, "words": _hardest(on)}


def _hardest(on: Judged) -> list[Found]:
    """Words that the base says worst when they are hidden, of those that were hidden more than twice if there are."""
    losses: dict[int, list[float]] = defaultdict(list)
    instead: dict[int, Counter[int]] = defaultdict(Counter)
    for row, part in zip((row for example in on.examples for row in example), on.out, strict=True):
        for piece, (loss, _, likeliest, *_) in zip(row.at.pieces.tolist(), part.tolist(), strict=True):
            losses[piece].append(loss)
            instead[piece][int(likeliest)] += 1
    often = {piece: found for piece, found in losses.items() if len(found) > 2} or losses
    worst = sorted(often, key=lambda piece: (-float(np.mean(often[piece])), piece))[:MOST_WRONG]

    def word(piece: int) -> str:
        return _label(on.kind.words[piece]) if piece < len(on.kind.words) else str(piece)

    return [
        {
            "word": word(piece),
            "rows": len(often[piece]),
            "loss": float(np.mean(often[piece])),
            "said": word(min(instead[piece].items(), key=lambda item: (-item[1], item[0]))[0]),
        }
        for piece in worst
    ]


LOOKS: Mapping[type[Kind], Callable[[Judged], Found]] = {
    Classify: classify,
    Labels: several_labels,
    Regress: one_number,
    Numbers: several_numbers,
    Tag: tags,
    Answer: question_answers,
    Choose: choices,
    Mlm: hidden_words,
}


def calibration(sure: Array, right: Array) -> Found:
    """How often answers are right by how sure the task is of them (Guo et al. 2017, §2), in bins of equal width."""
    sure = np.nan_to_num(sure)
    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    bins, error = [], 0.0
    for number in range(BINS):
        here = place == number
        count = int(here.sum())
        confidence, accuracy = (float(x[here].mean()) if count else None for x in (sure, right))
        bins.append({"count": count, "confidence": confidence, "accuracy": accuracy})
        error += count / max(len(sure), 1) * abs((accuracy or 0.0) - (confidence or 0.0))
    return {"bins": bins, "error": error}


def _by_label(labels: Sequence[str], right: Array, said: Array, gold: Array) -> list[Found]:
    rows = []
    for label, *counts in zip(labels, right.tolist(), said.tolist(), gold.tolist(), strict=True):
        hits, predicted, there = counts
        scores = {
            "precision": hits / predicted if predicted else 0.0,
            "recall": hits / there if there else 0.0,
            "f1": 2 * hits / (predicted + there) if predicted + there else 0.0,
        }
        rows.append({"label": _label(label), **scores, "gold": there, "predicted": predicted, "right": hits})
    return rows


def _target(name: str, gold: Array, said: Array, most: int) -> Found:
    """How far one number is off, and a sample of points, evenly spread over the rows."""
    off = said - gold
    at = np.unique(np.linspace(0, len(gold) - 1, min(most, len(gold))).round().astype(np.int64))
    points = {"gold": gold[at].tolist(), "predicted": said[at].tolist()}
    return {"name": _label(name), "mean": off.mean(), "spread": off.std(), **points}


def _most(counts: Array) -> Array:
    """The labels with the most rows, in their own order."""
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_LABELS])


def _largest(misses: Array) -> list[int]:
    """The rows that are missed most, what is no number first."""
    sized = np.nan_to_num(misses, nan=np.inf, posinf=np.inf)
    return [i for i in np.argsort(-sized, kind="stable")[:MOST_WRONG].tolist() if sized[i]]


def _firsts(gold: Array, said: Array) -> list[int]:
    """The first right answers, of as many labels as possible."""
    right = np.flatnonzero(gold == said)
    _, first = np.unique(gold[right], return_index=True)
    return [int(i) for i in np.sort(right[first])[:MOST_RIGHT]]


def _some(on: Judged, at: Sequence[int]) -> tuple[list[Tensor], list[Example]]:
    """What the head gave for some of the inputs."""
    ends = np.cumsum([0] + [len(example) for example in on.examples]).tolist()
    return [row for i in at for row in on.out[ends[i] : ends[i + 1]]], [on.examples[i] for i in at]


def _entities(tags: Sequence[str], plain: bool) -> list[tuple[str, int, int]]:
    return [(tag, i, i + 1) for i, tag in enumerate(tags) if tag != "O"] if plain else list(entities(tags))


def _spelled(found: Iterable[tuple[str, int, int]], words: Sequence[str]) -> str:
    return _cut("; ".join(f"{label}: {' '.join(words[first:behind])}" for label, first, behind in found))


def _first_word(question: str) -> str:
    words = question[:CUT].split(maxsplit=1)
    return _label(words[0].strip("¿¡\"'«(,.:;?!").casefold()) if words else ""


def _texts(given: Any) -> Found:
    """A text, or both of a pair."""
    if isinstance(given, str):
        return {"text": _cut(given)}
    return {"text": _cut(given[0]), "pair": _cut(given[1])}


def _listed(labels: Iterable[Any]) -> str:
    return _cut(", ".join(map(str, labels)))


def _label(text: object) -> str:
    return _cut(text, CUT_LABEL)


def _cut(text: object, most: int = CUT) -> str:
    line = str(text)
    return line if len(line) <= most else line[: most - 1] + "…"


def _json(value: Any) -> Any:
    """With numbers of few digits, and none where one is not finite."""
    if isinstance(value, Mapping):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value
