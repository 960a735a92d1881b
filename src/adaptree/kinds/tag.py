"""A tag for every word: entities, parts of speech."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from adaptree.core import acquisition
from adaptree.data.cells import as_list, is_absent
from adaptree.data.columns import TEXTS, find_column, must_have, plain_name
from adaptree.data.encode import Encoder, Layout, spans_of
from adaptree.data.form import Form, Row
from adaptree.errors import DataError, UsageError
from adaptree.kinds import bootstrap, findings, iob
from adaptree.kinds.findings import Evaluated, Section
from adaptree.kinds.iob import PLAIN, entities_of, scheme_of, to_iob2
from adaptree.kinds.kind import MOST_ROWS, Aim, Example, Kind, Out, find_label, log_odds

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]

TOKENS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "labels", "ner", "pos", "pos_tags", "label")
SPANS = ("spans", "entities", "ents", "annotations", "labels", "label")
STARTS, ENDS = ("start", "start_offset"), ("end", "end_offset")
NAMES = ("label", "type", "tag", "entity")

# Scripts that are written without spaces between words: each sign is a word, so that a span can begin at any.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)


@dataclass(frozen=True)
class TagForm(Form):
    """Inputs are words, with their offsets where they come from a text; targets are tags in IOB2, or plain ones."""

    needs: ClassVar[str] = "A word and a tag each: lists in tokens and tags, CoNLL columns, or a text with spans."
    empty: ClassVar[Any] = {"tokens": [], "text": "", "offsets": []}  # nobody writes to it
    labels_of: ClassVar[str] = "words"
    scheme: str = "IOB2"
    """How the file writes its tags."""

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        if columns.get("pair") is not None:
            return None
        text, label = columns.get("text"), columns.get("label")
        must_have(names, (text, label))
        lists = [name for name in names if _holds(sample, name, _are_words)]
        tokens = _pick(text, TOKENS, lists)
        tags = _pick(label, TAGS, [name for name in lists if name != tokens])
        if tokens and tags and _as_long(sample, tokens, tags):
            scheme = scheme_of([list(map(str, as_list(row.get(tags)) or ())) for row in sample])
            written = "without prefixes" if scheme == PLAIN else f"in {scheme}"
            why = f"'{tokens}' holds lists of words and '{tags}' a tag for each, {written}"
            return cls({"text": tokens, "label": tags}, why, scheme)
        texts = [name for name in names if _holds(sample, name, _is_text)]
        words = _pick(text, (*TEXTS, *map(plain_name, texts)), texts)
        spans = _pick(label, SPANS, [name for name in names if _holds(sample, name, _are_spans)])
        if words and spans:
            return cls({"text": words, "label": spans}, f"'{spans}' holds spans of the characters of '{words}'")
        return None

    def input(self, row: Row, number: int, name: str) -> Any | None:
        column = str(self.columns["text"])
        value = row.get(column)
        if isinstance(value, str):
            given = words_of(value)
            return given if given["tokens"] else None
        tokens = as_list(value)
        if not is_absent(value) and (tokens is None or not _are_words(tokens)):
            raise DataError(
                f"row {number} of '{name}': column '{column}' holds neither a text nor a list of words.",
                hint="Choose another column with --text COL.",
            )
        return {"tokens": list(map(str, tokens)), "text": None, "offsets": None} if tokens else None

    def target(self, row: Row, given: Any, number: int, name: str) -> list[str] | None:
        column = str(self.columns["label"])
        if is_absent(row.get(column)):
            return None
        where = f"row {number} of '{name}'"
        found = as_list(row[column])
        if found is None:
            raise DataError(
                f"{where}: column '{column}' holds a {type(row[column]).__name__}, not a list.",
                hint="Choose another column with --label COL.",
            )
        if given["text"] is not None:
            return _from_spans(found, given, where)
        if len(found) != len(given["tokens"]):
            raise DataError(
                f"{where} has {len(given['tokens'])} words but {len(found)} tags.", hint="Give one tag for each word."
            )
        for tag in found:
            if not isinstance(tag, str) or not tag.strip():
                raise DataError(
                    f"{where}: the tag {tag!r:.60} is not a name.", hint="Write tags by name, such as 'B-PER' and 'O'."
                )
        try:
            return to_iob2([tag.strip() for tag in found], self.scheme)
        except DataError as error:
            raise DataError(f"{where}: {error.what}", hint=error.hint) from None

    def text(self, given: Any) -> str:
        return " ".join(given["tokens"])

    def labels(self, target: Any) -> Iterable[str]:
        return list(target)


def words_of(text: str) -> dict[str, Any]:
    """Return a text as an input: its words, and the characters of each, from and to."""
    offsets = [[*match.span()] for match in _pattern().finditer(text)]
    return {"tokens": [text[start:end] for start, end in offsets], "text": text, "offsets": offsets}


@cache
def _pattern() -> re.Pattern[str]:
    """Return a pattern of words: runs of letters and digits, every other sign by itself, marks with their letter."""
    marks = [
        chr(c) for c in (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)) if unicodedata.category(chr(c))[0] == "M"
    ]
    on = "[" + re.escape("".join(marks)) + "\u200c\u200d]"
    letters = rf"[^\W{UNSPACED}]"
    # Possessive: a line of ten million letters must not leave a trace of each.
    return re.compile(rf"{letters}++(?:{on}++{letters}*+)*+|\S{on}*+")


def _from_spans(spans: Sequence[Any], given: Any, where: str) -> list[str]:
    """Return the tags of a text's words; a span that begins or ends inside a word is widened to the word."""
    text, tags = given["text"], ["O"] * len(given["tokens"])
    offsets = np.asarray(given["offsets"], dtype=np.int64).reshape(-1, 2)
    last = 0
    for start, end, label in sorted(_span(span, where) for span in spans):
        what = f"{where}: the span {start}–{end} ({label})"
        if not 0 <= start < end <= len(text):
            raise DataError(
                f"{what} is not inside the text, which has {len(text)} characters.",
                hint="Count characters from 0; the end is the first one behind the span.",
            )
        if start < last:
            raise DataError(f"{what} overlaps the one before it.", hint="A word has one tag: keep one of the two.")
        first = int(np.searchsorted(offsets[:, 1], start, side="right"))
        behind = int(np.searchsorted(offsets[:, 0], end, side="left"))
        if first == behind:
            raise DataError(f"{what} holds no word.", hint="Correct or remove it.")
        if tags[first] != "O":
            raise DataError(
                f"{what} and the one before it share the word '{given['tokens'][first][:60]}'.",
                hint="Join the two spans, or give the row as lists of words and tags.",
            )
        tags[first:behind] = [f"B-{label}"] + [f"I-{label}"] * (behind - first - 1)
        last = end
    return tags


def _span(span: Any, where: str) -> tuple[int, int, str]:
    values = _parts(span)
    if values is None:
        raise DataError(
            f"{where}: {span!r:.80} is not a span.",
            hint='Write {"start": 0, "end": 3, "label": "PER"} or [0, 3, "PER"].',
        )
    return values


def _parts(span: Any) -> tuple[int, int, str] | None:
    """Return a span's start, end and label; None when it is none."""
    values: list[Any]
    if isinstance(span, Mapping):
        values = [next((span[key] for key in keys if key in span), None) for keys in (STARTS, ENDS, NAMES)]
    else:
        values = list(as_list(span) or ())
    if len(values) != 3 or any(not isinstance(v, int | np.integer) or isinstance(v, bool) for v in values[:2]):
        return None
    start, end, label = values
    return (int(start), int(end), label.strip()) if isinstance(label, str) and label.strip() else None


def _pick(named: str | None, order: Iterable[str], names: Sequence[str]) -> str | None:
    """Return, of the columns that fit, the one that the user named; else the one that comes first in the order."""
    if named is not None:
        return named if named in names else None
    return find_column(order, names)


def _as_long(sample: Sequence[Row], tokens: str, tags: str) -> bool:
    """Return whether most rows have a tag for each word."""
    both = [(as_list(row.get(tokens)), as_list(row.get(tags))) for row in sample]
    same = [len(a) == len(b) for a, b in both if a is not None and b is not None]
    return 2 * sum(same) > len(same)


def _holds(sample: Sequence[Row], column: str, fits: Callable[[Any], bool]) -> bool:
    """Return whether most values of a column fit; a row that does not is refused when it is read."""
    values = [row[column] for row in sample if not is_absent(row.get(column))]
    found = [fits(value) for value in values if as_list(value) != []]
    return 2 * sum(found) > len(found)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_words(value: Any) -> bool:
    words = as_list(value)
    return words is not None and all(isinstance(word, str | int | float) for word in words)


def _are_spans(value: Any) -> bool:
    spans = as_list(value)
    return spans is not None and all(_parts(span) is not None for span in spans)


OVERLAP = 4
"""Windows share one part in this many with the next one."""
UNSEEN = -100
"""Stands for a tag that the task does not know: such words are not learned from."""
STRANGE = "\U00012000"  # a cuneiform sign, for which a tokenizer has nothing better than its unknown token
CHUNK = 10_000


class Owned(NamedTuple):
    """The words that a row predicts: the number of the first, and where in the row the first piece of each is."""

    first: int
    places: Array


@dataclass(frozen=True)
class Entity:
    """A labelled run of words, `first` to `last`, and its characters in a text, from `start` to before `end`."""

    label: str
    text: str
    start: int | None
    end: int | None
    score: float
    """The probability of its least sure word's tag."""
    first: int
    last: int


@dataclass(frozen=True)
class TagPrediction:
    """The tags of an input's words, and the entities that the tags describe."""

    tags: list[str | None]
    tokens: list[str]
    entities: list[Entity]

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as `predict --format jsonl` prints it."""
        return {"tags": self.tags, "tokens": self.tokens, "entities": [asdict(entity) for entity in self.entities]}

    def columns(self) -> dict[str, Any]:
        """Return the prediction as a column, such as 'PER: Ann Lee; LOC: Bern'."""
        parts = [f"{e.label}: {' '.join(e.text.split())}".removeprefix(": ") for e in self.entities]
        return {"prediction": "; ".join(parts)}


@dataclass(frozen=True)
class Tag(Kind):
    """Its targets and answers are lists of tags: IOB2, or plain ones where the training file's have no prefixes."""

    name: ClassVar[str] = "tag"
    form: ClassVar[type[Form]] = TagForm
    metrics: ClassVar[tuple[str, ...]] = ("f1", "precision", "recall", "accuracy")
    priority: ClassVar[int | None] = 10
    target_name: ClassVar[str] = "tags"
    reads_tokens: ClassVar[bool] = True
    reads_whole: ClassVar[bool] = True
    labels: tuple[str, ...]
    scheme: str = "IOB2"
    """How the training file writes its tags."""

    @classmethod
    def of(cls, labels: Iterable[Any], scheme: str) -> Self:
        """Return the kind with its labels in order: 'O', then by what they stand for, its beginning first."""
        order = sorted(set(map(str, labels)), key=lambda tag: (tag != "O", tag if scheme == PLAIN else tag[1:], tag))
        return cls(tuple(order), scheme)

    @classmethod
    def from_data(cls, dataset: Dataset, rows: Array, encoder: Encoder, **options: Any) -> Self:
        assert isinstance(dataset.form, TagForm)
        return cls.of(dataset.labels, dataset.form.scheme)

    @classmethod
    def from_record(cls, record: Record, encoder: Encoder) -> Self:
        return cls.of(record.labels, record.extra.get("scheme", "IOB2"))

    @property
    def width(self) -> int:
        return len(self.labels)

    @property
    def plain(self) -> bool:
        return self.scheme == PLAIN

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """Return windows of an input's words, each word predicted by the window that shows most around it."""
        room = max(1, encoder.room(max_length, pair=False))
        written = [_written(given, _spaced(encoder)) for given in inputs]
        pieces = _pieces(encoder, written, room)
        return [self._windows(encoder, [pieces[word] for word in words], room) for words in written]

    def _windows(self, encoder: Encoder, words: Sequence[tuple[Array, bool]], room: int) -> Example:
        ends = np.cumsum([0] + [len(ids) for ids, _ in words])  # where each word's pieces begin, and the last one's end
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *(ids for ids, _ in words)])
        cut = np.array([cut for _, cut in words], dtype=bool)
        spans = windows(ends, room)
        before = len(encoder.frame(pair=False).before)
        example: Example = []
        for (start, end), (first, behind) in zip(spans, owned(ends, spans), strict=True):
            at = Owned(first, before + ends[first:behind] - ends[start])
            row = encoder.row(ids[ends[start] : ends[end]], at=at)
            example.append(row._replace(truncated=bool(cut[start:end].any())))
        return example

    def for_training(self, example: Example, target: Any) -> Example:
        """Return all rows, for `resampled` to choose from."""
        return example

    def resampled(self, examples: Sequence[Example], seed: int | None) -> Sequence[Example]:
        """Return in training some windows of a long input, others in each step, so that all of it is learned."""
        if seed is None:
            return examples
        rng = np.random.default_rng(seed)
        return [_some(example, rng) if len(example) > MOST_ROWS else example for example in examples]

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        """Return the mean over the words that the rows predict, in training not always all of an input's."""
        import torch
        import torch.nn.functional as F

        logits = self._logits(out, examples)
        position = {label: i for i, label in enumerate(self.labels)}
        wanted: list[int] = []
        for example, tags in zip(examples, targets, strict=True):
            for first, places in (row.at for row in example):
                wanted += [position.get(tag, UNSEEN) for tag in tags[first : first + len(places)]]
        target = torch.tensor(wanted, dtype=torch.long, device=logits.device)
        of = torch.repeat_interleave(torch.tensor([_words(example) for example in examples], dtype=torch.long)).to(
            logits.device
        )
        each = F.cross_entropy(logits, target, ignore_index=UNSEEN, reduction="none")
        total = each.new_zeros(len(examples)).index_add(0, of, each)
        count = each.new_zeros(len(examples)).index_add(0, of, (target != UNSEEN).to(each.dtype))
        return total / count.clamp(min=1)

    def decode(self, out: Out, examples: Sequence[Example]) -> list[list[str]]:
        return [[self.labels[i] for i in path.tolist()] for path, _ in self._paths(out, examples)]

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[TagPrediction]:
        """Return tags and entities; with `min_score`, less sure entities are left out."""
        found = []
        for given, (path, scores) in zip(inputs, self._paths(out, examples), strict=True):
            tags: list[str] = [self.labels[i] for i in path.tolist()]
            shown: list[str | None] = list(tags)
            spans = entities_of(tags, self.plain)
            some = []
            for label, first, behind in spans:
                score = float(scores[first:behind].min())
                if min_score is None or score >= min_score:
                    some.append(_entity(given, label, first, behind, score))
                else:
                    shown[first:behind] = ["O" if "O" in self.labels else None] * (behind - first)
            found.append(TagPrediction(shown, given["tokens"], some))
        return found

    def is_blank(self, given: Any) -> bool:
        return not given["tokens"]

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        """Return every entity, or those of the label that is named; of plain tags, one must be named."""
        if target is not None:
            known = self.labels if self.plain else [label[2:] or label for label in self.labels if label != "O"]
            find_label(target, list(dict.fromkeys(known)), "tag")
        elif self.plain:
            raise UsageError("every word has a tag: name the one to explain.", hint=f"--target {self.labels[-1]}")
        (found,) = self.predictions(out, [example], [given], None)
        aims = []
        for entity in found.entities:
            if target is None or target in (entity.label, found.tags[entity.first]):
                words = range(entity.first, entity.last + 1)
                key = [(word, self.labels.index(str(found.tags[word]))) for word in words]
                name = f"{entity.label}: {entity.text}".removeprefix(": ")
                aims.append(Aim(name, key, entity.score, entity.start, entity.end))
        return aims

    def doubts(self, out: Out, examples: Sequence[Example]) -> Array:
        """Return the doubt of each input's least sure word."""
        each = acquisition.doubts(self._logits(out, examples).double().softmax(-1).numpy())
        ends = np.cumsum([_words(example) for example in examples])
        parts = np.split(each, ends[:-1])
        return np.array([part.max(initial=0.0) for part in parts])

    def evidence(self, out: Out, example: Example, key: Any) -> Tensor:
        """Return the mean log-odds of an entity's tags over its words."""
        import torch

        logits = self._logits(out, [example])
        return torch.stack([log_odds(logits[word], at) for word, at in key]).mean()

    def layout(self, encoder: Encoder, given: Any, example: Example, max_length: int) -> Layout:
        """Return the input's own words, each the whole of its pieces."""
        offsets, text = given["offsets"], given["text"]
        if text is None:
            text = " ".join(given["tokens"])
            ends = np.cumsum([len(word) + 1 for word in given["tokens"]]).tolist()
            offsets = [(end - len(word) - 1, end - 1) for word, end in zip(given["tokens"], ends, strict=True)]
        room = max(1, encoder.room(max_length, pair=False))
        written = _written(given, _spaced(encoder))
        pieces = _pieces(encoder, [written], room)
        ends = np.cumsum([0] + [len(pieces[word][0]) for word in written])
        places = spans_of(0, np.repeat(np.asarray(offsets, dtype=np.int64).reshape(-1, 2), np.diff(ends), axis=0))
        rows = [encoder.row_places(places[ends[start] : ends[end]]) for start, end in windows(ends, room)]
        return Layout([text], rows, [[(start, end) for start, end in offsets]])

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return bootstrap.score(iob.statistics(targets, answers, plain=self.plain), iob.ratios)

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return bootstrap.intervals(iob.statistics(targets, answers, plain=self.plain), iob.ratios)

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        """Return each input as words; it is a text or a list of words."""
        return [_given(item, record) for item in ([inputs] if isinstance(inputs, str | Mapping) else inputs)]

    @classmethod
    def describe(cls, record: Record) -> str:
        return f"Gives every word of a text one of {len(record.labels)} tags."

    @classmethod
    def show(cls, given: Any, target: Any) -> tuple[Sequence[str], str]:
        return [given.get("text") or " ".join(given["tokens"])], ", ".join(target) or "none"

    def findings(self, on: Evaluated) -> dict[str, Any]:
        counted = iob.by_label(on.targets, on.answers, plain=self.plain)
        most = sorted(counted, key=lambda label: (-counted[label][iob.GOLD], label))[: findings.MOST_LABELS]
        counts = np.array([counted[label] for label in sorted(most)], dtype=np.int64).reshape(-1, 3)
        missed, wrong = [], []
        for target, answer in zip(on.targets, on.answers, strict=True):
            right, found = entities_of(target, self.plain), entities_of(answer, self.plain)
            missed.append([each for each in right if each not in found])
            wrong.append([each for each in found if each not in right])
        errors = np.array([len(a) + len(b) for a, b in zip(missed, wrong, strict=True)], dtype=np.int64)

        def row(i: int) -> dict[str, Any]:
            words = on.inputs[i]["tokens"]
            text = findings.cut(" ".join(words[: 2 * findings.CUT]))
            return {"text": text, "missed": _in_words(missed[i], words), "wrong": _in_words(wrong[i], words)}

        bad = findings.worst(errors > 0, errors)
        return {
            "labels": len(counted),
            "by_label": findings.by_label(sorted(most), *counts.T),
            "wrong": len(bad),
            "mistakes": [row(i) for i in bad[: findings.MOST_WRONG]],
        }

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        columns = {"missed": "not found", "wrong": "found, but wrong"}
        return [
            Section("Label by label", findings.by_label_blocks(found)),
            findings.mistakes(found, record, "Those with the most wrong entities", columns),
        ]

    def _logits(self, out: Out, examples: Sequence[Example]) -> Tensor:
        """Return the logits of each word, (words, labels), at its first piece in the window that owns it."""
        import torch

        if not out:
            return torch.zeros(0, self.width)
        rows = [row for example in examples for row in example]
        starts = np.cumsum([0] + [len(part) for part in out[:-1]])
        at = np.concatenate([start + row.at.places for start, row in zip(starts, rows, strict=True)])
        return torch.cat(list(out))[torch.from_numpy(at).to(out[0].device)]

    def _paths(self, out: Out, examples: Sequence[Example]) -> Iterator[tuple[Array, Array]]:
        """Yield the best tags of each input's words, as positions in the labels, and their probabilities."""
        logp = self._logits(out, examples).double().log_softmax(-1).numpy()
        start = 0
        for example in examples:
            mine = logp[start : start + _words(example)]
            path = mine.argmax(1) if self.plain else decode(mine, self.labels)
            yield path, np.exp(mine[np.arange(len(mine)), path])
            start += len(mine)


def windows(ends: Array, room: int) -> list[tuple[int, int]]:
    """Return the words of each window, from and to: as many as fit, a quarter of them shared with the window before.

    `ends` says where each word's pieces begin, and where the last one's end; no word has more than `room`.
    """
    count = len(ends) - 1
    start, end = 0, int(np.searchsorted(ends, room, side="right")) - 1
    found = [(start, end)]
    while end < count:
        # The next word must fit beside what is shared.
        least = max(ends[end] - room // OVERLAP, ends[end + 1] - room)
        start = int(np.searchsorted(ends, least))
        end = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        found.append((start, end))
    return found


def owned(ends: Array, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the words that each window predicts, from and to: those that see most on their poorer side there."""
    best = np.full(len(ends) - 1, -1)
    owner = np.zeros(len(ends) - 1, dtype=np.int64)
    for i, (start, end) in enumerate(spans):
        sees = np.minimum(ends[start:end] - ends[start], ends[end] - ends[start + 1 : end + 1])
        more = np.flatnonzero(sees > best[start:end]) + start
        best[more] = sees[more - start]
        owner[more] = i
    # Later windows own later words, so that owners are in order.
    borders = np.searchsorted(owner, np.arange(len(spans) + 1)).tolist()
    return list(pairwise(borders))


def decode(logp: Array, labels: tuple[str, ...]) -> Array:
    """Return by Viterbi the most probable valid IOB2 sequence, as positions in the labels; logp is (words, labels)."""
    best: Array = logp.argmax(1)
    first, steps = _penalties(labels)
    if not len(best) or not (first[best[0]] or steps[best[:-1], best[1:]].any()):
        return best  # what is best word by word is valid, and so the best of all
    score = first + logp[0]
    came = np.zeros(logp.shape, dtype=np.int64)
    for t in range(1, len(logp)):
        paths = score[:, None] + steps  # (labels before, labels)
        came[t] = paths.argmax(0)
        score = paths.max(0) + logp[t]
    path = np.empty(len(logp), dtype=np.int64)
    path[-1] = score.argmax()
    for t in range(len(logp) - 1, 0, -1):
        path[t - 1] = came[t, path[t]]
    return path


@lru_cache(64)
def _penalties(labels: tuple[str, ...]) -> tuple[Array, Array]:
    """Return (labels,) and (labels, labels): 0 where a label may begin or follow another, -inf where not."""
    inside = np.array([label.startswith("I") for label in labels])
    goes_on = np.array([[a[:1] in ("B", "I") and a[1:] == b[1:] for b in labels] for a in labels])
    return np.where(inside, -np.inf, 0.0), np.where(inside & ~goes_on, -np.inf, 0.0)


def _some(example: Example, rng: np.random.Generator) -> Example:
    return [example[i] for i in np.sort(rng.choice(len(example), MOST_ROWS, replace=False))]


def _words(example: Example) -> int:
    return sum(len(row.at.places) for row in example)


def _spaced(encoder: Encoder) -> bool:
    """Return whether the tokenizer encodes a word differently after a space."""
    alone, after, both = (pieces.ids.tolist() for pieces in encoder.pieces(["a", " a", "a a"]))
    return bool(both != alone + alone and both == alone + after)


def _written(given: Any, spaced: bool) -> list[str]:
    """Return the words as the tokenizer is to see them."""
    tokens, offsets = given["tokens"], given["offsets"]
    if not spaced:
        return list(tokens)
    return [
        f" {word}" if i and (offsets is None or offsets[i][0] > offsets[i - 1][1]) else word
        for i, word in enumerate(tokens)
    ]


def _pieces(encoder: Encoder, inputs: Iterable[Iterable[str]], room: int) -> dict[str, tuple[Array, bool]]:
    """Return the pieces of every word, as many as fit, and whether that is not all of them."""
    words = list(dict.fromkeys(word for some in inputs for word in some))
    unknown = encoder.pieces([STRANGE])[0].ids[-1:]
    if not len(unknown):
        unknown = np.array([encoder.pad_id], dtype=np.int32)
    reach = 64 * room  # what lies far behind the limit need not be looked at
    found: dict[str, tuple[Array, bool]] = {}
    for start in range(0, len(words), CHUNK):
        some = words[start : start + CHUNK]
        for word, pieces in zip(some, encoder.pieces([word[:reach] for word in some]), strict=True):
            ids = pieces.ids if len(pieces.ids) else unknown
            found[word] = ids[:room], len(ids) > room or len(word) > reach
    return found


def _given(item: Any, record: Record) -> Any:
    """Return one input of a user as `TagForm.input` returns that of a row."""
    given = {"tokens": item, "text": None, "offsets": None}
    if isinstance(item, str):
        given = words_of(item)
    elif isinstance(item, Mapping):
        given = words_of(item["text"]) if isinstance(item.get("text"), str) else {**given, **item}
    words = given["tokens"].tolist() if isinstance(given["tokens"], np.ndarray) else given["tokens"]
    if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words):
        return given | {"tokens": list(words)}
    raise UsageError(
        f"the task '{record.name}' takes a text or a list of words for each answer, not {item!r:.60}.",
        hint='Give "a text" or ["some", "words"].',
    )


def _entity(given: Any, label: str, first: int, behind: int, score: float) -> Entity:
    if given["text"] is None:
        text, start, end = " ".join(given["tokens"][first:behind]), None, None
    else:
        start, end = given["offsets"][first][0], given["offsets"][behind - 1][1]
        text = given["text"][start:end]
    return Entity(label, text, start, end, score, first, behind - 1)


def _in_words(found: Iterable[iob.Entity], words: Sequence[str]) -> str:
    return findings.cut("; ".join(f"{label}: {' '.join(words[first:behind])}" for label, first, behind in found))
