"""The part of a context that answers a question: the head says of every token how well an answer starts and ends there.

A long context is read in windows that overlap, each beside the question. The first position of a row stands for "there
is no answer in this window" (Devlin et al. 2019, §4.3).
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from adaptree.data.cells import as_flag, as_list, as_text, is_absent, is_empty
from adaptree.data.columns import find_column, must_have
from adaptree.data.encode import Encoder, Layout, spans_of
from adaptree.data.form import Form, Row
from adaptree.errors import DataError, UsageError
from adaptree.kinds import findings, squad
from adaptree.kinds.findings import Evaluated, Section, Table
from adaptree.kinds.kind import Aim, Example, Kind, Out, by_example, log_odds

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]

NAMES: Mapping[str, tuple[str, ...]] = {
    "question": ("question",),
    "context": ("context", "passage", "paragraph", "document"),
    "answers": ("answers", "answer", "answer_text"),
    "start": ("answer_start", "start"),
    "impossible": ("is_impossible",),
    "id": ("id",),
}
NAMED = {"question": "text", "context": "pair", "answers": "label"}
"""Which of --text, --text-pair and --label names a part."""
VERDICTS = frozenset({"yes", "no", "true", "false", "maybe", "0", "1"})
"""What a file of yes/no questions holds, and what may stand in a passage by chance."""
NEARBY = 32
"""How many characters a start may be off; SQuAD's are by one or two, those counted in bytes by more."""
MOST = 0.8
"""The share of a sample's answers that must stand in their contexts for a file to be of this kind."""


@dataclass(frozen=True)
class AnswerForm(Form):
    """Inputs are {"question", "context"}, targets {"answers": [{"text", "start"}], "id"}; [] where there is none."""

    needs: ClassVar[str] = "A question, a context, and an answer that stands in it."
    input_columns: ClassVar[tuple[str, ...]] = ("question", "context")

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        must_have(names, columns.values())
        parts = {part: columns.get(NAMED.get(part, "")) or find_column(NAMES[part], names) for part in NAMES}
        if not (parts["question"] and parts["context"] and parts["answers"]) or not cls(parts, "")._fits(sample):
            return None
        of = f"'{parts['question']}' and '{parts['context']}'"
        return cls(parts, f"beside {of} there are answers in '{parts['answers']}' that stand in the contexts")

    def input(self, row: Row, number: int, name: str) -> dict[str, str] | None:
        names = {part: self.columns.get(part) or part for part in ("question", "context")}
        given = {part: as_text(row.get(column), number, column, name) for part, column in names.items()}
        return None if all(map(is_empty, given.values())) else given

    def target(self, row: Row, given: Any, number: int, name: str) -> dict[str, Any] | None:
        where = f"row {number} of '{name}'"
        stated = self._stated(row, where)
        if stated is None:
            return None
        answers = []
        for text, start in stated:
            at = place(given["context"], text, start)
            if at is None:
                off = f" at or near character {start:,}" if start is not None else ""
                raise DataError(
                    f"{where}: the answer '{_short(text)}' is not in the context{off}.",
                    hint="An answer is a part of its context, letter for letter: correct or remove the row.",
                )
            answers.append({"text": text, "start": at})
        return {"answers": answers, "id": self._id(row)}

    def blank_columns(self, given: Any) -> list[str]:
        return [self.columns.get(part) or part for part in self.input_columns if is_empty(given[part])]

    def text(self, given: Any) -> str:
        return "\0".join(" ".join(given[part].split()) for part in ("question", "context"))

    def _id(self, row: Row) -> str | None:
        value = row.get(self.columns.get("id") or "")
        return None if is_absent(value) else str(value)

    def _stated(self, row: Row, where: str) -> list[tuple[str, int | None]] | None:
        """Return the row's answers that are not empty, with their starts if it has any; None without such a column."""
        column = self.columns.get("answers") or ""
        if as_flag(row.get(self.columns.get("impossible") or "")):
            return []
        if column not in row:
            return None
        pairs = _pairs(row[column], row.get(self.columns.get("start") or ""))
        if pairs is None:
            raise DataError(
                f"{where}: column '{column}' holds no answers: {_short(str(row[column]))}",
                hint='Give a text, or {"text": ["…"], "answer_start": [0]}.',
            )
        found = []
        for text, start in pairs:
            if text.strip():
                at = _whole(start, where)
                blank = len(text) - len(text.lstrip())
                found.append((text.strip(), None if at is None else at + blank))
        return found

    def _fits(self, sample: Sequence[Row]) -> bool:
        """Return whether the answers of most rows stand in their contexts, and not by chance as yes and no may."""
        there = []
        words, starts = set(), False
        for row in sample:
            try:
                given, stated = self.input(row, 0, ""), self._stated(row, "")
            except DataError:
                there.append(False)
                continue
            if given is not None and stated:
                there.append(all(_stands(given["context"], *answer) for answer in stated))
                words |= {text.casefold() for text, _ in stated}
                starts = starts or any(start is not None for _, start in stated)
        if not there:
            return self.columns["impossible"] is not None
        return sum(there) >= MOST * len(there) and (starts or not words <= VERDICTS)


def place(context: str, text: str, start: int | None) -> int | None:
    """Return where an answer begins: at its start or nearest to that; without a start, where it first occurs."""
    if start is None:
        at = context.find(text)
        return None if at < 0 else at
    if context.startswith(text, start):
        return start
    low = max(0, start - NEARBY)
    found = []
    at = context.find(text, low, start + NEARBY + len(text))
    while at >= 0:
        found.append(at)
        at = context.find(text, at + 1, start + NEARBY + len(text))
    return min(found, key=lambda at: abs(at - start), default=None)


def _pairs(value: Any, start: Any) -> list[tuple[str, Any]] | None:
    """Return answers as (text, start or None), from any of the shapes that files have; None for another value."""
    if isinstance(value, str):
        parsed = _parsed(value)
        return [(value, start)] if parsed is None else _pairs(parsed, start)
    if is_absent(value):
        return []
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [(str(value), start)]
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start", value.get("start"))
        if isinstance(texts, str):
            texts, starts = [texts], starts if isinstance(starts, list) else [starts]
        texts = as_list(texts)
        starts = [None] * len(texts) if starts is None and texts is not None else as_list(starts)
        if texts is None or starts is None or len(texts) != len(starts) or not all(isinstance(t, str) for t in texts):
            return None
        return list(zip(texts, starts, strict=True))
    several = as_list(value)
    if several is None:
        return None
    if len(several) == 1 and isinstance(several[0], str):
        return [(several[0], start)]
    found = [_pairs(each, None) if isinstance(each, str | Mapping) else None for each in several]
    return None if None in found else [pair for part in found if part for pair in part]


def _parsed(text: str) -> Any:
    """Return the answers that a csv cell spells out in JSON or Python; None where it is only a text."""
    if not text.lstrip().startswith(("{", "[")) or "text" not in text:
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value if isinstance(value, dict | list) else None
    return None


def _whole(start: Any, where: str) -> int | None:
    """Return a start as an int; None where it is absent or below zero."""
    start = start.item() if hasattr(start, "item") else start
    if is_absent(start) or start == "":
        return None
    try:
        number = float(start)
        if isinstance(start, bool) or not number.is_integer():
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise DataError(
            f"{where}: an answer's start is {_short(str(start))!r}, not a whole number.", hint="Leave it out."
        ) from None
    return int(number) if number >= 0 else None


def _stands(context: str, text: str, start: int | None) -> bool:
    """Return whether an answer is at or near its start; without one, whether the context has it as words."""
    if start is not None:
        return place(context, text, start) is not None
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context) is not None


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


MOST_WINDOWS = 4096
"""The most windows of one context; text behind them (some half a million words, at 256 tokens a row) is cut."""
TRAINED_WINDOWS = 4
"""The most windows of one context in a training step."""
ENCODED_TOGETHER = 256
FIRST_WORDS = 12
"""How many first words of questions have a row in a card."""
CANDIDATES = 200
"""How many answers with the lowest F1 are predicted again, to show the surest of them."""


class Passage(NamedTuple):
    """A context with the characters that each of its pieces stands for, white space at their ends left out."""

    text: str
    spans: Array
    """(pieces, 2), from and to; empty for a piece of white space."""

    def pieces(self, target: Mapping[str, Any]) -> tuple[int, int] | None:
        """Return the first and the last piece of the first answer; None where there is no answer, or no piece of it."""
        if not target["answers"]:
            return None
        start = target["answers"][0]["start"]
        end = start + len(target["answers"][0]["text"])
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
        """Return how much of the passage is around answers, as BERT weighs it; -1 where one is not in this window."""
        around = np.minimum(start - self.begin, self.end - 1 - end)
        return np.where(around < 0, -1, 100 * around + self.end - self.begin)


class Span(NamedTuple):
    """An answer, its probability among the best ones, and its characters in the context; an empty one has none."""

    answer: str
    score: float
    start: int | None
    end: int | None


@dataclass(frozen=True)
class AnswerPrediction:
    """The answer to a question, "" where there is none or the task abstains, and the n best candidates.

    Without a question or a context there is no score.
    """

    answer: str
    score: float | None
    start: int | None
    end: int | None
    n_best: tuple[Span, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as `predict --format jsonl` prints it."""
        best = {"answer": self.answer, "score": self.score, "start": self.start, "end": self.end}
        return best | {"n_best": [span._asdict() for span in self.n_best]}

    def columns(self) -> dict[str, Any]:
        """Return the prediction as columns beside the input's."""
        return {"prediction": self.answer, "score": self.score}


@dataclass(frozen=True)
class Answer(Kind):
    """Its targets are {"answers": [{"text", "start"}, …]} and its answers texts, "" where there is none."""

    name: ClassVar[str] = "answer"
    form: ClassVar[type[Form]] = AnswerForm
    metrics: ClassVar[tuple[str, ...]] = ("f1", "exact_match")
    priority: ClassVar[int | None] = 20
    chosen: ClassVar[tuple[str, ...]] = ("threshold",)
    reads_tokens: ClassVar[bool] = True
    reads_whole: ClassVar[bool] = True
    impossible: bool = False
    """Whether some questions have no answer."""
    threshold: float = 0.0
    """By how much "no answer" must be better than the best answer to be given."""
    longest: int = 30
    """The longest answer, in pieces."""
    n_best: int = 20
    overlap: float = 1 / 3
    """The share of a window that is also in the next one."""

    @classmethod
    def from_data(cls, dataset: Dataset, rows: Array, encoder: Encoder, **options: Any) -> Self:
        return cls(impossible=any(not target["answers"] for target in dataset.targets(rows)), **options)

    @property
    def width(self) -> int:
        return 2

    def problem(self) -> str:
        if self.longest < 1 or self.n_best < 1:
            return f"an answer of {self.longest} pieces, the best of {self.n_best}, is none"
        return "" if 0 <= self.overlap < 1 else f"windows cannot share {self.overlap:g} of their length"

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """Return each question with every window of its context."""
        questions = encoder.pieces([given["question"][: _reach(max_length)] for given in inputs])
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
        question_ids = question[: max(room // 2, 0)]
        if not len(question_ids) and not frame.before and not frame.between:
            question_ids = np.array([encoder.pad_id])  # "no answer" needs a position of its own
        size = room - len(question_ids)
        if size < 1:
            raise UsageError(
                f"{max_length} tokens have no room for a question and a context.", hint="--max-length 256, or more."
            )
        first = len(frame.before) + len(question_ids) + len(frame.between)
        shared = min(max(int(self.overlap * size), self.longest - 1), size - max(1, size // 3))
        begins = range(0, max(1, len(ids) - shared), size - shared)
        cut = len(question_ids) < len(question) or len(begins) > MOST_WINDOWS
        example = []
        for begin in begins[:MOST_WINDOWS]:
            window = Window(passage, begin, min(begin + size, len(ids)), first)
            example.append(encoder.row(question_ids, ids[begin : window.end], at=window)._replace(truncated=cut))
        return example

    def for_training(self, example: Example, target: Any) -> Example:
        """Return the windows with the answer, and some without, evenly spread."""
        if len(example) <= TRAINED_WINDOWS:
            return example
        pieces = example[0].at.passage.pieces(target)
        kept = [i for i, row in enumerate(example) if row.at.holds(pieces)][:TRAINED_WINDOWS]
        others = [i for i in range(len(example)) if i not in kept]
        spread = np.linspace(0, len(others) - 1, TRAINED_WINDOWS - len(kept)).round().astype(int)
        return [example[i] for i in sorted({*kept, *(others[j] for j in spread)})]

    def calibrated(self, out: Out, examples: Sequence[Example], targets: Any) -> Self:
        return replace(self, threshold=choose_threshold(self, out, examples, targets)) if self.impossible else self

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        """Return the mean over windows of the cross entropies of start and end, over the context and "no answer"."""
        import torch

        losses = []
        for example, rows, target in zip(examples, by_example(out, examples), targets, strict=True):
            pieces = example[0].at.passage.pieces(target)
            losses.append(torch.stack([_loss(x, row.at, pieces) for x, row in zip(rows, example, strict=True)]).mean())
        return torch.stack(losses) if losses else torch.zeros(0)

    def decode(self, out: Out, examples: Sequence[Example]) -> list[str]:
        return [self._choose(*found).answer for found in self._read(out, examples, 1)]

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[AnswerPrediction]:
        found = []
        for spans, none in self._read(out, examples, self.n_best):
            logits = np.array([span.score for span in (*spans, none)])
            shares = np.exp(logits - logits.max())
            shares /= shares.sum()
            chosen = self._choose(spans, none)
            ranked = [span._replace(score=share) for span, share in zip((*spans, none), shares.tolist(), strict=True)]
            answer = ranked[(*spans, none).index(chosen)]
            if min_score is not None and answer.score < min_score:
                answer = Span("", answer.score, None, None)
            found.append(AnswerPrediction(*answer, tuple(sorted(ranked, key=lambda span: -span.score))))
        return found

    def no_prediction(self) -> AnswerPrediction:
        return AnswerPrediction("", None, None, None, ())

    def is_blank(self, given: Any) -> bool:
        return is_empty(given["question"]) or is_empty(given["context"])

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        if target is not None:
            raise UsageError("an answer has no label to choose.", hint="Leave out --target.")
        (found,) = self.predictions(out, [example], [given], None)
        if found.start is None or found.end is None:
            return [Aim("no answer", None, found.score)]
        pieces = example[0].at.passage.pieces({"answers": [{"start": found.start, "text": found.answer}]})
        assert pieces is not None
        seen = [int(row.at.context(np.array(pieces[0]), np.array(pieces[1]))) for row in example]
        return [Aim(found.answer, (int(np.argmax(seen)), pieces), found.score, found.start, found.end)]

    def evidence(self, out: Out, example: Example, key: Any) -> Tensor:
        """Return the mean log-odds of the answer's start and end; of "no answer", the mean over windows."""
        import torch

        if key is None:
            return torch.stack([_log_odds(x, row.at, None) for x, row in zip(out, example, strict=True)]).mean()
        return _log_odds(out[key[0]], example[key[0]].at, key[1])

    def layout(self, encoder: Encoder, given: Any, example: Example, max_length: int) -> Layout:
        """Return the question and the context as texts 0 and 1."""
        (question,) = encoder.pieces([given["question"][: _reach(max_length)]])
        frame = encoder.frame(pair=True)
        asked = np.full((example[0].at.first - len(frame.before) - len(frame.between), 3), -1, dtype=np.int64)
        some = spans_of(0, question.spans[: len(asked)])
        asked[: len(some)] = some
        rows = [
            encoder.row_places(asked, spans_of(1, row.at.passage.spans[row.at.begin : row.at.end])) for row in example
        ]
        return Layout([given["question"], given["context"]], rows)

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return squad.score(targets, answers)

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return squad.intervals(targets, answers)

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        """Return each input as {"question", "context"}; a user may also give (question, context)."""
        one = isinstance(inputs, Mapping) or (
            isinstance(inputs, tuple) and len(inputs) == 2 and all(isinstance(part, str) for part in inputs)
        )
        return [_given(item, record) for item in ([inputs] if one or isinstance(inputs, str) else inputs)]

    def line(self, line: str, record: Record) -> Any:
        question, tab, context = line.partition("\t")
        if not tab:
            raise UsageError(f"the task '{record.name}' takes a question and a context: separate them with a tab.")
        return {"question": question, "context": context}

    @classmethod
    def describe(cls, record: Record) -> str:
        return "Finds the part of a text that answers a question."

    @classmethod
    def usage(cls, record: Record) -> tuple[str, str]:
        return '("a question?", "the text with the answer")', "--file questions.jsonl"

    @classmethod
    def show(cls, given: Any, target: Any) -> tuple[Sequence[str], str]:
        answers = target["answers"]
        return [given["question"], given["context"]], answers[0]["text"] if answers else "no answer"

    def findings(self, on: Evaluated) -> dict[str, Any]:
        scores = squad.statistics(on.targets, on.answers)
        first = [_first_word(given["question"]) for given in on.inputs]
        kept = [word for word, _ in sorted(Counter(first).items(), key=lambda item: (-item[1], item[0]))[:FIRST_WORDS]]
        groups: dict[str, list[int]] = defaultdict(list)
        for i, word in enumerate(first):
            groups[word if word in kept else ""].append(i)
        wrong = np.flatnonzero(scores[:, 0] == 0)
        wrong = wrong[np.argsort(scores[wrong, 1], kind="stable")][:CANDIDATES]
        predicted = self._predict_again(on, wrong.tolist())
        worst = sorted(
            zip(wrong.tolist(), predicted, strict=True), key=lambda pair: (scores[pair[0], 1], -(pair[1].score or 0))
        )
        return {
            "by_word": [
                {"word": word, "rows": len(at), "exact_match": scores[at, 0].mean(), "f1": scores[at, 1].mean()}
                for word, at in sorted(groups.items(), key=lambda item: (not item[0], -len(item[1]), item[0]))
            ],
            "wrong": int((scores[:, 0] == 0).sum()),
            "mistakes": [
                {
                    "text": findings.cut(on.inputs[i]["question"]),
                    "gold": findings.cut(on.targets[i]["answers"][0]["text"] if on.targets[i]["answers"] else ""),
                    "predicted": findings.cut(prediction.answer),
                    "f1": scores[i, 1],
                    "probability": prediction.score,
                }
                for i, prediction in worst[: findings.MOST_WRONG]
            ],
        }

    def _predict_again(self, on: Evaluated, at: Sequence[int]) -> list[AnswerPrediction]:
        """Return the predictions for some of the evaluated inputs."""
        ends = np.cumsum([0] + [len(example) for example in on.examples]).tolist()
        out = [row for i in at for row in on.out[ends[i] : ends[i + 1]]]
        return self.predictions(out, [on.examples[i] for i in at], [on.inputs[i] for i in at], None)

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        rows = [
            (row["word"] or "others", row["rows"], row["exact_match"], row["f1"]) for row in found.get("by_word") or []
        ]
        table = Table(("first word", "questions", "exact match", "f1"), rows, ("exact match", "f1"))
        columns = {name: name for name in ("gold", "predicted", "f1", "probability")}
        return [
            Section("By question", [table]),
            findings.mistakes(
                found, record, "Those that are farthest off, the surest first", columns, ("f1", "probability")
            ),
        ]

    def _choose(self, spans: Sequence[Span], none: Span) -> Span:
        """Return the best span, or `none` where there is no span, or where its score is higher by the threshold."""
        if not spans or (self.impossible and none.score - spans[0].score > self.threshold):
            return none
        return spans[0]

    def _read(self, out: Out, examples: Sequence[Example], count: int) -> Iterator[tuple[list[Span], Span]]:
        """Yield for each input its best spans and the empty one ("no answer"), scored by the sum of their logits."""
        for example, rows in zip(examples, by_example(out, examples), strict=True):
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
        """Return the best answers in a window as (score, first piece, last piece), if they have most context in it."""
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
    """Return the threshold with the best F1 on these inputs, the one nearest to zero among equals."""
    margins, gains = [], []
    for (spans, none), target in zip(kind._read(out, examples, 1), targets, strict=True):
        if spans:
            margins.append(none.score - spans[0].score)
            gains.append(squad.best(target, spans[0].answer)[1] - squad.best(target, "")[1])
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


def _loss(x: Tensor, window: Window, pieces: tuple[int, int] | None) -> Tensor:
    """Return the loss of one window: x is (tokens, 2), of which the question's tokens do not count."""
    import torch
    import torch.nn.functional as F

    seen, right = _seen(x, window, pieces)
    return F.cross_entropy(seen.t(), torch.tensor(right, device=x.device))


def _log_odds(x: Tensor, window: Window, pieces: tuple[int, int] | None) -> Tensor:
    """Return the mean log-odds of an answer's start and end in one window."""
    seen, (start, end) = _seen(x, window, pieces)
    return (log_odds(seen[:, 0], start) + log_odds(seen[:, 1], end)) / 2


def _seen(x: Tensor, window: Window, pieces: tuple[int, int] | None) -> tuple[Tensor, list[int]]:
    """Return the logits of "no answer" and of a window's context, and which of them are the answer's start and end."""
    import torch

    seen = torch.cat([x[:1], x[window.first : window.first + window.end - window.begin]])
    return seen, [piece - window.begin + 1 for piece in pieces] if pieces and window.holds(pieces) else [0, 0]


def _reach(max_length: int) -> int:
    """Return how many characters of a text are looked at, as far as the encoder looks for what is cut anyway."""
    return 64 * max_length + 1024


def _most_context(example: Example, i: int, k: int) -> Array:
    """Return (pieces, k): which answers have more context in the i-th window than in any other that holds them.

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
    """Return the spans without the white space at their ends, which some tokenizers count to a piece."""
    found = []
    for begin, end in spans.tolist():
        part = text[begin:end]
        left = end - len(part.lstrip())
        found.append((left, max(left, begin + len(part.rstrip()))))
    return np.array(found, dtype=np.int32).reshape(-1, 2)


def _given(item: Any, record: Record) -> dict[str, str]:
    """Return one question with its context; in a dict also by the columns that the task was trained on."""
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


def _first_word(question: str) -> str:
    words = question[: findings.CUT].split(maxsplit=1)
    return findings.name(words[0].strip("¿¡\"'«(,.:;?!").casefold()) if words else ""
