"""The part of a context that answers a question: the head says of every token how well an answer starts and ends there.

A long context is read in windows that overlap, each beside the question. The first position of a row stands for "there
is no answer in this window" (Devlin et al. 2019, §4.3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree.data.encode import Encoder
from adaptree.errors import UsageError
from adaptree.kinds import squad
from adaptree.kinds.kind import Example, Kind, Out

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]

MOST_WINDOWS = 4096
"""Of one context; what lies behind them, some half a million words at 256 tokens a row, is cut."""
TRAINED_WINDOWS = 4
"""Of one context in a training step."""
ENCODED_TOGETHER = 256


class Passage(NamedTuple):
    """A context with the characters that each of its pieces stands for, white space at their ends left out."""

    text: str
    spans: Array
    """(pieces, 2), from and to; empty for a piece of white space."""

    def pieces(self, gold: Mapping[str, Any]) -> tuple[int, int] | None:
        """The first and the last piece of the first answer; None where there is no answer, or no piece of it."""
        if not gold["answers"]:
            return None
        start = gold["answers"][0]["start"]
        end = start + len(gold["answers"][0]["text"])
        touched = np.flatnonzero((self.spans[:, 1] > start) & (self.spans[:, 0] < end))
        return (int(touched[0]), int(touched[-1])) if len(touched) else None


class Window(NamedTuple):
    """Which pieces of a passage a row holds, and where in the row."""

    passage: Passage
    begin: int
    end: int
    first: int
    """The position of the piece `begin` in the row."""

    def holds(self, pieces: tuple[int, int] | None) -> bool:
        return pieces is not None and self.begin <= pieces[0] and pieces[1] < self.end

    def context(self, start: Array, end: Array) -> Array:
        """How much of the passage is around answers, as BERT weighs it; below zero where one is not in this window."""
        around = np.minimum(start - self.begin, self.end - 1 - end)
        return np.where(around < 0, -1, 100 * around + self.end - self.begin)


class Span(NamedTuple):
    """An answer, its probability among the best ones, and its characters in the context; an empty one has none."""

    answer: str
    score: float
    start: int | None
    end: int | None


@dataclass(frozen=True)
class Answered:
    """The answer to a question, "" where there is none or the task abstains, and what else it might be."""

    answer: str
    score: float
    start: int | None
    end: int | None
    n_best: tuple[Span, ...]

    def to_dict(self) -> dict[str, Any]:
        """As `predict --format jsonl` prints it."""
        best = Span(self.answer, self.score, self.start, self.end)
        return best._asdict() | {"n_best": [span._asdict() for span in self.n_best]}

    def columns(self) -> dict[str, Any]:
        """As columns beside the input's."""
        return {"prediction": self.answer, "score": self.score}


@dataclass(frozen=True)
class Answer(Kind):
    """Its targets are {"answers": [{"text", "start"}, …]} and its answers texts, "" where there is none."""

    name: ClassVar[str] = "answer"
    reads_tokens: ClassVar[bool] = True
    impossible: bool = False
    """Whether some questions have no answer."""
    threshold: float = 0.0
    """By how much "no answer" must be better than the best answer to be given."""
    longest: int = 30
    """The longest answer, in pieces."""
    n_best: int = 20
    overlap: float = 1 / 3
    """The share of a window that is also in the next one."""

    @property
    def width(self) -> int:
        return 2

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """Each question with every window of its context."""
        reach = 64 * max_length + 1024  # as far as the encoder looks for what is cut anyway
        questions = encoder.pieces([given["question"][:reach] for given in inputs])
        texts = list(dict.fromkeys(given["context"] for given in inputs))
        read: dict[str, tuple[Passage, Array]] = {}
        for at in range(0, len(texts), ENCODED_TOGETHER):
            some = texts[at : at + ENCODED_TOGETHER]
            for text, pieces in zip(some, encoder.pieces(some), strict=True):
                read[text] = Passage(text, _trimmed(text, pieces.spans)), pieces.ids
        return [
            self._windows(encoder, question.ids, *read[given["context"]], max_length)
            for question, given in zip(questions, inputs, strict=True)
        ]

    def _windows(self, encoder: Encoder, question: Array, passage: Passage, ids: Array, max_length: int) -> Example:
        frame, room = encoder.frame(pair=True), encoder.room(max_length, pair=True)
        asked = question[: max(room // 2, 0)]
        if not len(asked) and not frame.before and not frame.between:
            asked = np.array([encoder.pad_id])  # "no answer" needs a position of its own
        size = room - len(asked)
        if size < 1:
            raise UsageError(
                f"{max_length} tokens have no room for a question and a context.", hint="--max-length 256, or more."
            )
        first = len(frame.before) + len(asked) + len(frame.between)
        shared = min(max(int(self.overlap * size), self.longest - 1), size - max(1, size // 3))
        begins = range(0, max(1, len(ids) - shared), size - shared)
        cut = len(asked) < len(question) or len(begins) > MOST_WINDOWS
        example = []
        for begin in begins[:MOST_WINDOWS]:
            window = Window(passage, begin, min(begin + size, len(ids)), first)
            example.append(encoder.row(asked, ids[begin : window.end], at=window)._replace(truncated=cut))
        return example

    def for_training(self, example: Example, gold: Any) -> Example:
        """The windows with the answer, and some without, evenly spread."""
        if len(example) <= TRAINED_WINDOWS:
            return example
        pieces = example[0].at.passage.pieces(gold)
        kept = [i for i, row in enumerate(example) if row.at.holds(pieces)][:TRAINED_WINDOWS]
        others = [i for i in range(len(example)) if i not in kept]
        spread = np.linspace(0, len(others) - 1, TRAINED_WINDOWS - len(kept)).round().astype(int)
        return [example[i] for i in sorted({*kept, *(others[j] for j in spread)})]

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Any) -> Answer:
        return replace(self, threshold=choose_threshold(self, out, examples, targets)) if self.impossible else self

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        """The mean over windows of the cross entropies of start and end, over the context and "no answer"."""
        losses = []
        for example, rows, gold in zip(examples, _by_unit(out, examples), targets, strict=True):
            pieces = example[0].at.passage.pieces(gold)
            losses.append(torch.stack([_loss(x, row.at, pieces) for x, row in zip(rows, example, strict=True)]).mean())
        return torch.stack(losses) if losses else torch.zeros(0)

    def decode(self, out: Out, examples: Sequence[Example]) -> list[str]:
        return [self._choose(*found).answer for found in self._read(out, examples, 1)]

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Answered]:
        given = []
        for spans, none in self._read(out, examples, self.n_best):
            logits = np.array([span.score for span in (*spans, none)])
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
            chosen = self._choose(spans, none)
            ranked = [span._replace(score=share) for span, share in zip((*spans, none), shares.tolist(), strict=True)]
            answer = ranked[(*spans, none).index(chosen)]
            if min_score is not None and answer.score < min_score:
                answer = Span("", answer.score, None, None)
            given.append(Answered(*answer, tuple(sorted(ranked, key=lambda span: -span.score))))
        return given

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        return sum(a != b for a, b in zip(self.decode(exact, examples), self.decode(out, examples), strict=True))

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return squad.score(targets, answers)

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return squad.intervals(targets, answers)

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        """{"question", "context"} or (question, context), one or several."""
        one = isinstance(inputs, Mapping) or (
            isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(part, str) for part in inputs)
        )
        return [_given(item, record) for item in ([inputs] if one or isinstance(inputs, str) else inputs)]

    def line(self, line: str, record: Record) -> Any:
        question, tab, context = line.partition("\t")
        if not tab:
            raise UsageError(f"the task '{record.name}' takes a question and a context: separate them with a tab.")
        return {"question": question, "context": context}

    def extra(self) -> dict[str, Any]:
        return asdict(self)

    def _choose(self, spans: Sequence[Span], none: Span) -> Span:
        """The best answer, or none where there is none or, where there may be none, that is better by the threshold."""
        if not spans or (self.impossible and none.score - spans[0].score > self.threshold):
            return none
        return spans[0]

    def _read(self, out: Out, examples: Sequence[Example], count: int) -> Iterator[tuple[list[Span], Span]]:
        """For each input its best answers and none at all, with the sums of their logits as scores."""
        for example, rows in zip(examples, _by_unit(out, examples), strict=True):
            found: list[tuple[float, int, int]] = []
            logits = [x.detach().double().cpu().numpy() for x in rows]
            for i, x in enumerate(logits):
                found += self._best(x, example, i, count)
            none = min(float(x[0].sum()) for x in logits)  # of the window that is least sure that it holds none
            passage = example[0].at.passage
            spans: dict[str, Span] = {}
            for score, start, end in sorted(found, key=lambda each: (-each[0], *each[1:])):
                begin, stop = int(passage.spans[start, 0]), int(passage.spans[end, 1])
                spans.setdefault(passage.text[begin:stop], Span(passage.text[begin:stop], score, begin, stop))
                if len(spans) == count:
                    break
            yield list(spans.values()), Span("", none, None, None)

    def _best(self, x: Array, example: Example, i: int, count: int) -> list[tuple[float, int, int]]:
        """The best answers in a window, as (score, first piece, last piece), that have most context in this one."""
        window: Window = example[i].at
        size = window.end - window.begin
        if not size:
            return []
        k = min(self.longest, size)
        spans = window.passage.spans[window.begin : window.end]
        here = np.where((spans[:, 0] < spans[:, 1])[:, None], x[window.first : window.first + size], -np.inf)
        ends = np.concatenate([here[:, 1], np.full(k - 1, -np.inf)])
        scores = here[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, k)  # (first piece, pieces - 1)
        if len(example) > 1:
            scores = np.where(_most_context(example, i, k), scores, -np.inf)
        flat = scores.ravel()
        least = np.partition(flat, -count)[-count] if count < len(flat) else -np.inf
        places = np.flatnonzero((flat >= least) & (flat > -np.inf))
        places = places[np.argsort(-flat[places], kind="stable")][:count]
        starts = window.begin + places // k
        return list(zip(flat[places].tolist(), starts.tolist(), (starts + places % k).tolist(), strict=True))


def choose_threshold(kind: Answer, out: Out, examples: Sequence[Example], targets: Sequence[Any]) -> float:
    """The threshold with the best F1 on these inputs, the one nearest to zero among equals."""
    margins, gains = [], []
    for (spans, none), gold in zip(kind._read(out, examples, 1), targets, strict=True):
        if spans:
            margins.append(none.score - spans[0].score)
            gains.append(squad.best(gold, spans[0].answer)[1] - squad.best(gold, "")[1])
    if not margins:
        return kind.threshold
    order = np.argsort(margins, kind="stable")
    sorted_margins = np.array(margins)[order]
    # With a threshold at a margin all up to it are answered: the sum of what each gains by being answered.
    totals = np.concatenate([[0.0], np.cumsum(np.array(gains)[order])])
    cuts = np.concatenate([[sorted_margins[0] - 1], sorted_margins])
    cuts[1:-1] = (sorted_margins[1:] + sorted_margins[:-1]) / 2
    cuts[-1] += 1
    apart = np.concatenate([[True], sorted_margins[1:] > sorted_margins[:-1], [True]])
    best = np.flatnonzero(apart & (totals >= totals[apart].max() - 1e-9))
    return float(cuts[best[np.argmin(np.abs(cuts[best]))]])


def _by_unit(out: Out, examples: Sequence[Example]) -> Iterator[Sequence[Tensor]]:
    at = 0
    for example in examples:
        yield [out[i] for i in range(at, at + len(example))]
        at += len(example)


def _loss(x: Tensor, window: Window, pieces: tuple[int, int] | None) -> Tensor:
    """Of one window: x (tokens, 2), of which the question's tokens do not count."""
    seen = torch.cat([x[:1], x[window.first : window.first + window.end - window.begin]])
    right = [piece - window.begin + 1 for piece in pieces] if pieces and window.holds(pieces) else [0, 0]
    return F.cross_entropy(seen.t(), torch.tensor(right, device=x.device))


def _most_context(example: Example, i: int, k: int) -> Array:
    """(pieces, k): which answers have more context in the i-th window than in any other that holds them.

    BERT's rule, of the whole answer where BERT asks it of the first piece: no answer that fits into a window is lost.
    """
    window: Window = example[i].at
    start = np.arange(window.begin, window.end)[:, None]
    end = start + np.arange(k)
    mine = window.context(start, end)
    most = mine >= 0
    for j in range(i - 1, -1, -1):
        if example[j].at.end <= window.begin:
            break
        most &= mine > example[j].at.context(start, end)  # among equals the first
    for j in range(i + 1, len(example)):
        if example[j].at.begin >= window.end:
            break
        most &= mine >= example[j].at.context(start, end)
    return most


def _trimmed(text: str, spans: Array) -> Array:
    """The spans without the white space at their ends, which some tokenizers count to a piece."""
    found = []
    for begin, end in spans.tolist():
        part = text[begin:end]
        left = end - len(part.lstrip())
        found.append((left, max(left, begin + len(part.rstrip()))))
    return np.array(found, dtype=np.int32).reshape(-1, 2)


def _given(item: Any, record: Record) -> dict[str, str]:
    """One question with its context; in a dict also by the names of the columns that the task was trained on."""
    parts: Sequence[Any] = ()
    if isinstance(item, Mapping):
        parts = [item.get(part, item.get(record.columns.get(part) or part)) for part in ("question", "context")]
    elif isinstance(item, tuple | list):
        parts = item
    if len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        raise UsageError(
            f"the task '{record.name}' takes a question and a context for each answer, not {item!r:.60}.",
            hint='Give {"question": "…", "context": "…"} or ("the question", "the context").',
        )
    return {"question": parts[0], "context": parts[1]}
