"""Which words a prediction rests on: a score for each word of an input, positive where it speaks for the prediction.

A prediction is measured by one number, its evidence: the log-odds of a label, or the value of a number. A hidden word
has the base's mask token in the place of its own tokens, or padding where the base has no mask.

* gradients: integrated gradients over the input embeddings (Sundararajan et al. 2017), from the text with every word
  hidden to the text itself. The scores of all words sum to the difference of the evidence.
* leave-one-out: what the evidence loses when one word is hidden.
* weights: of a linear model such as tfidf, what each word adds; as exact as arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from adaptree.data.batch import group
from adaptree.data.encode import Encoding, Layout
from adaptree.errors import BaseError, CompositionError, UsageError, near
from adaptree.kinds.kind import Aim, Example, Kind, Out
from adaptree.kinds.tag import words_of
from adaptree.reports import highlight

if TYPE_CHECKING:
    from adaptree.data.encode import Encoder
    from adaptree.models.bound import Bound

Array = np.ndarray[Any, Any]
GRADIENTS, LEAVE_ONE_OUT, WEIGHTS = "gradients", "leave-one-out", "weights"
BY = (GRADIENTS, LEAVE_ONE_OUT)
"""Ways that a user can ask for; the first is the default."""
STEPS = (16, 32, 64, 128, 256)
"""Points of the path at which gradients are taken: more of them until the scores sum up."""
TOLERANCE = 0.02
"""How far the sum of the scores may be off, as a share of the sum of their sizes."""
ROWS = 32
"""Rows that are computed at once, with gradients."""


@dataclass(frozen=True)
class Word:
    """A word of a text, its characters from `start` to before `end`, and its score."""

    text: str
    start: int
    end: int
    score: float | None
    """What it adds to the evidence; None for a word that the task did not read, because the text was truncated."""
    part: int = 0
    """The number of its text: 1 for the second of a pair, the context of a question, or the first choice."""


@dataclass(frozen=True)
class Explanation:
    """The words of one input with their scores for one prediction; a notebook shows the text with them highlighted."""

    task: str
    by: str
    """gradients, leave-one-out or weights."""
    target: str
    """What is explained: a label, a number, an entity or an answer."""
    probability: float | None
    measure: str
    """What is measured: log-odds, or value."""
    evidence: float
    """The measure for the input."""
    baseline: float | None
    """The measure with every word hidden; None for leave-one-out."""
    error: float | None
    """By how much the words' scores do not sum to `evidence - baseline`; None for leave-one-out."""
    converged: bool
    """Whether that is within TOLERANCE of the sum of the scores' sizes."""
    texts: tuple[str, ...]
    words: tuple[Word, ...]
    start: int | None = None
    """The target's characters in its text, where it is a part of it."""
    end: int | None = None

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The characters of each word, from and to, in its text."""
        return [(word.start, word.end) for word in self.words]

    @property
    def scores(self) -> list[float | None]:
        return [word.score for word in self.words]

    def to_dict(self) -> dict[str, Any]:
        """Return what `explain --format jsonl` prints."""
        span = {} if self.start is None else {"start": self.start, "end": self.end}
        return {
            "task": self.task,
            "by": self.by,
            "target": highlight.harmless(self.target),
            **span,
            "probability": self.probability,
            "measure": self.measure,
            "evidence": self.evidence,
            "baseline": self.baseline,
            "error": self.error,
            "converged": self.converged,
            "texts": [highlight.harmless(text) for text in self.texts],
            "words": [{**vars(word), "text": highlight.harmless(word.text)} for word in self.words],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per word, as `explain --format csv` prints them."""
        target = highlight.harmless(self.target)
        return [{"target": target, **vars(word), "text": highlight.harmless(word.text)} for word in self.words]

    def _repr_html_(self) -> str:
        return highlight.piece(self)


class Explanations(list[Explanation]):
    """Several explanations, which a notebook shows one below the other."""

    def _repr_html_(self) -> str:
        return "".join(map(highlight.piece, self))


def explain_words(bound: Bound, inputs: Any, *, by: str | None = None, target: str | None = None) -> Explanations:
    """Return the explanations of a task's predictions for some inputs, in order.

    An input has one, or of several labels, numbers or entities one for each; `target` names one of these, or another
    label than the predicted one.
    """
    check_way(bound, by)
    given = bound.kind.inputs(inputs, bound.task.record)
    return Explanations(each for one in given for each in explain_input(bound, one, by=by, target=target))


def explain_input(bound: Bound, given: Any, *, by: str | None = None, target: str | None = None) -> list[Explanation]:
    """Return the explanations of the predictions for one input, as the task's kind reads it."""
    check_way(bound, by)
    own = _Standalone if bound.method.standalone else _InBase
    return own(bound.exact, given).explain(by or BY[0], target)


def check_way(bound: Any, by: str | None) -> None:
    """Raise UsageError for several tasks, of which one must be named, or for a way that there is not."""
    from adaptree.models.bound import Bound

    if not isinstance(bound, Bound):
        raise CompositionError("several tasks predict here, and only one can be explained.", hint="Name one of them.")
    if by is not None and by not in BY:
        raise UsageError(f"there is no way to explain by '{by}'.", hint=near(by, BY) or f"There are: {', '.join(BY)}.")


class _Scored(NamedTuple):
    """The scores of some words for one aim, before they are put beside the words."""

    by: str
    words: Array
    evidence: float
    baseline: float | None = None


class _Input:
    """One input of a task, with what was predicted for it and the words that it has."""

    kind: Kind
    example: Example
    out: Out
    words: Words

    def __init__(self, bound: Bound, given: Any) -> None:
        self.bound, self.given, self.kind = bound, given, bound.kind

    def explain(self, by: str, target: str | None) -> list[Explanation]:
        aims = self.kind.aims(self.out, self.example, self.given, target)
        score = self.by_parts if by == GRADIENTS else self.left_out()
        return [self._told(aim, score(aim)) for aim in aims]

    def by_parts(self, aim: Aim) -> _Scored:
        """Return scores that sum to the evidence."""
        raise NotImplementedError

    def left_out(self) -> Callable[[Aim], _Scored]:
        """Return a function from an aim to what its evidence loses without each word."""
        outs = list(self.without_each())

        def score(aim: Aim) -> _Scored:
            whole = self.evidence(self.out, aim)
            return _Scored(LEAVE_ONE_OUT, np.array([whole - self.evidence(out, aim) for out in outs]), whole)

        return score

    def without_each(self) -> Iterable[Out]:
        """Return the head's output with each word hidden in turn."""
        raise NotImplementedError

    def evidence(self, out: Out, aim: Aim) -> float:
        return float(self.kind.evidence(out, self.example, aim.key))

    def _told(self, aim: Aim, found: _Scored) -> Explanation:
        error, close = None, True
        if found.baseline is not None:
            error = float(found.words.sum() - (found.evidence - found.baseline))
            close = abs(error) <= TOLERANCE * float(np.abs(found.words).sum())
        texts = self.words.texts
        words = tuple(
            Word(texts[part][start:end], start, end, float(score) if read else None, part)
            for (part, start, end), score, read in zip(self.words.spans, found.words, self.words.read, strict=True)
        )
        return Explanation(
            self.bound.task.record.reference, found.by, aim.name, aim.probability, self.kind.measure, found.evidence,
            found.baseline, error, close, tuple(texts), words, aim.start, aim.end,
        )  # fmt: skip


class _InBase(_Input):
    """An input of a task that runs in the base."""

    def __init__(self, bound: Bound, given: Any) -> None:
        super().__init__(bound, given)
        (self.example,) = bound.read([given])
        self.out = bound.compute([self.example])
        encoder = bound.base.encoder
        self.words = words_in(self.kind.layout(encoder, given, self.example, bound.task.record.max_length))
        self.hidden_id = hidden_token(encoder)

    def without_each(self) -> Iterable[Out]:
        """Return outputs in which only the rows that have the word are computed again."""
        owners = self.words.owners
        places = sorted((int(word), row) for row, of in enumerate(owners) for word in np.unique(of[of >= 0]))
        again = [[self._hide(row, owners[row] == word)] for word, row in places]
        new = list(self.bound.compute(again)) if again else []
        outs = [list(self.out) for _ in self.words.spans]
        for (word, row), out in zip(places, new, strict=True):
            outs[word][row] = out
        return map(self._joined, outs)

    def by_parts(self, aim: Aim) -> _Scored:
        """Return integrated gradients, with as many points as the sum needs."""
        whole = self.evidence(self.out, aim)
        bare = [self._hide(row, of >= 0) for row, of in enumerate(self.words.owners)]
        baseline = self.evidence(self.bound.compute([bare]), aim)
        for steps in STEPS:
            found = self._integrated(aim, steps)
            if abs(found.sum() - (whole - baseline)) <= TOLERANCE * np.abs(found).sum():
                break
        return _Scored(GRADIENTS, found, whole, baseline)

    def _integrated(self, aim: Aim, steps: int) -> Array:
        """Return ∫ dF/dg_w along the path on which all gates g rise from 0 to 1, by Gauss and Legendre's rule."""
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        found = np.zeros(len(self.words.spans) + 1)  # the last is of tokens that belong to no word
        n = len(self.example)
        together = max(1, ROWS // n)
        for start in range(0, steps, together):
            alphas = (nodes[start : start + together] + 1) / 2
            rows = self.example * len(alphas)
            gates = [
                torch.from_numpy(np.where(of >= 0, alpha, 1.0)).float().to(self.bound.base.device).requires_grad_()
                for alpha in alphas
                for of in self.words.owners
            ]
            slopes = self._slopes(aim, rows, gates)
            for i, slope in enumerate(slopes):
                np.add.at(found, self.words.owners[i % n], slope * weights[start + i // n] / 2)
        return found[:-1]

    @torch.enable_grad()
    def _slopes(self, aim: Aim, rows: Example, gates: list[Tensor]) -> list[Array]:
        """Return the gradient of the summed evidence with respect to each row's gates."""
        batches = group([len(row.ids) for row in rows], ROWS)
        outs: list[Any] = [None] * len(rows)
        slopes: list[Any] = [None] * len(rows)
        for at in batches:
            with torch.set_grad_enabled(len(batches) == 1):
                for i, out in zip(at, self._gated(rows, gates, at), strict=True):
                    outs[i] = out
        if len(batches) == 1:
            slopes = list(torch.autograd.grad(self._summed(outs, aim), gates))
        else:  # too many for one graph: first what each row's output is worth, then its gates, some rows at a time
            leaves = [out.detach().requires_grad_() for out in outs]
            worth = torch.autograd.grad(self._summed(leaves, aim), leaves, allow_unused=True, materialize_grads=True)
            for at in batches:
                some = list(self._gated(rows, gates, at))
                found = torch.autograd.grad(some, [gates[i] for i in at], [worth[i] for i in at])
                for i, slope in zip(at, found, strict=True):
                    slopes[i] = slope
        return [slope.double().cpu().numpy() for slope in slopes]

    def _gated(self, rows: Example, gates: list[Tensor], at: Array) -> Out:
        padded = torch.nn.utils.rnn.pad_sequence([gates[i] for i in at], batch_first=True, padding_value=1.0)
        return self.bound.gated([rows[i] for i in at], padded, self.hidden_id)

    def _summed(self, outs: Sequence[Tensor], aim: Aim) -> Tensor:
        """Return the sum of the evidence of the input at several points of the path."""
        n = len(self.example)
        parts = [self._joined(outs[start : start + n]) for start in range(0, len(outs), n)]
        return torch.stack([self.kind.evidence(part, self.example, aim.key) for part in parts]).sum()

    def _joined(self, outs: Sequence[Tensor]) -> Out:
        return list(outs) if self.kind.reads_tokens else torch.stack(list(outs))

    def _hide(self, row: int, at: Array) -> Encoding:
        """Return a row of the example with some of its tokens hidden."""
        old = self.example[row]
        return old._replace(ids=np.where(at, self.hidden_id, old.ids).astype(old.ids.dtype))


class _Standalone(_Input):
    """An input of a task that does not use the base, and is linear in its words."""

    def __init__(self, bound: Bound, given: Any) -> None:
        super().__init__(bound, given)
        self.example, self.out = [], bound.run([given])[1]
        self.v = bound.composition.v
        self.texts = [given] if isinstance(given, str) else list(given)
        self.found = bound.method.contributions(self.v, given)
        places = np.array([place[:3] for place in self.found], dtype=np.int64).reshape(-1, 3)
        self.words = words_in(Layout(self.texts, [places]), read_all=True)

    def by_parts(self, aim: Aim) -> _Scored:
        """Return the integral over the linear model's scores, from no word to all: with two labels, its own weights."""
        added = torch.from_numpy(np.stack([each[3] for each in self.found]) if self.found else np.zeros((0, 1)))
        whole = self.out.double()
        bare = whole - added.sum(0)
        nodes, weights = np.polynomial.legendre.leggauss(STEPS[-1])
        points = [(bare + (node + 1) / 2 * (whole - bare)).requires_grad_() for node in nodes]
        slopes = [torch.autograd.grad(self.kind.evidence(z, self.example, aim.key), z)[0] for z in points]
        slope = torch.stack([slope[0] * weight / 2 for slope, weight in zip(slopes, weights, strict=True)]).sum(0)
        scores = np.zeros(len(self.words.spans) + 1)
        np.add.at(scores, self.words.owners[0], (added * slope).sum(1).numpy() if len(added) else [])
        return _Scored(WEIGHTS, scores[:-1], self.evidence(whole, aim), self.evidence(bare, aim))

    def without_each(self) -> Iterable[Out]:
        texts = []
        for part, start, end in self.words.spans:
            cut = [text[:start] + text[end:] if i == part else text for i, text in enumerate(self.texts)]
            texts.append(cut[0] if isinstance(self.given, str) else tuple(cut))
        return self.bound.method.logits(self.v, texts).split(1) if texts else []  # type: ignore[no-untyped-call]


class Words(NamedTuple):
    """The words of an input's texts, and to which of them each token of its rows belongs."""

    texts: list[str]
    spans: list[tuple[int, int, int]]
    """The number of the text, and the characters from and to."""
    owners: list[Array]
    """For each row (tokens,): the number of the word; -1 for special tokens and white space."""
    read: list[bool]
    """Whether some token is the word's."""


def words_in(layout: Layout, *, read_all: bool = False) -> Words:
    """Return the words of a layout; words that share a token are one. `read_all`: words without a token count too."""
    spans: list[tuple[int, int, int]] = []
    owner: list[Array] = []
    for part, text in enumerate(layout.texts):
        mine = np.full(len(text), -1, dtype=np.int64)
        for start, end in layout.words[part] if layout.words is not None else split(text):
            mine[start:end] = len(spans)
            spans.append((part, start, end))
        owner.append(mine)
    goes_on = np.zeros(len(spans), dtype=bool)  # whether a word shares a token with the one before it
    owners = [np.full(len(row), -1, dtype=np.int64) for row in layout.rows]
    for row, owns in zip(layout.rows, owners, strict=True):
        for i, (part, start, end) in enumerate(row.tolist()):
            touched = owner[part][start:end] if part >= 0 else owner[0][:0]
            touched = touched[touched >= 0]
            if len(touched):
                owns[i] = touched[0]
                goes_on[touched[0] + 1 : touched[-1] + 1] = True
    number = np.concatenate([np.cumsum(~goes_on) - 1, [-1]])  # of each word among those that are left, -1 for none
    joined = [(*spans[run[0]][:2], spans[run[-1]][2]) for run in _runs(number[:-1])]
    owners = [number[owns] for owns in owners]
    seen = {int(i) for owns in owners for i in owns}
    return Words(layout.texts, joined, owners, [read_all or i in seen for i in range(len(joined))])


def _runs(numbers: Array) -> list[Array]:
    """Return the places of each number, in a list where numbers rise by one at most."""
    return np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(numbers)) + 1) if len(numbers) else []


def split(text: str) -> list[tuple[int, int]]:
    """Return the characters of each word of a text; a sign inside a word, as in don't and 3.5, belongs to it."""
    found: list[tuple[int, int]] = []
    spans = words_of(text)["offsets"]
    i = 0
    while i < len(spans):
        start, end = spans[i]
        while i + 2 < len(spans) and _joins(text, spans[i : i + 3]):
            i += 2
            end = spans[i][1]
        found.append((start, end))
        i += 1
    return found


def _joins(text: str, three: Sequence[Sequence[int]]) -> bool:
    """Return whether the middle one of three pieces of a text is a sign that joins the other two to one word."""
    (_, before), (start, end), (behind, _) = three
    left, sign, right = text[before - 1], text[start:end], text[behind]
    if before != start or end != behind or not left.isalnum() or not right.isalnum():
        return False
    return sign in "'\u2019-" or (sign in ".,:" and left.isdigit() and right.isdigit())


def hidden_token(encoder: Encoder) -> int:
    """Return the token that stands for a hidden word: the mask, or padding where the tokenizer has no mask."""
    try:
        return encoder.mask_id()
    except BaseError:
        return encoder.pad_id
