"""A tag for every word: entities, parts of speech."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree.data.encode import Encoder
from adaptree.data.forms.tag import PLAIN, entities, words_of
from adaptree.errors import UsageError
from adaptree.kinds import entities as scoring
from adaptree.kinds.kind import MOST_ROWS, Example, Kind, Out

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]

OVERLAP = 4
"""Windows share one part in this many with the next one."""
UNSEEN = -100
"""Stands for a tag that the task does not know: such words are not learned from."""
STRANGE = "\U00012000"  # a cuneiform sign, for which a tokenizer has nothing better than its unknown token
CHUNK = 10_000


class Answered(NamedTuple):
    """Which words a row answers: the number of the first, and where in the row the first piece of each is."""

    first: int
    places: Array


@dataclass(frozen=True)
class Entity:
    """Words that are something together: which ones, and of a text which characters (`end` is behind the last)."""

    label: str
    text: str
    start: int | None
    end: int | None
    score: float
    """The probability of its least sure word's tag."""
    first: int
    last: int


@dataclass(frozen=True)
class Tagged:
    """The tags of an input's words, and the entities that they spell."""

    tags: list[str | None]
    tokens: list[str]
    entities: list[Entity]

    def to_dict(self) -> dict[str, Any]:
        """As `predict --format jsonl` prints it."""
        return {"tags": self.tags, "tokens": self.tokens, "entities": [asdict(entity) for entity in self.entities]}

    def columns(self) -> dict[str, Any]:
        """As a column beside the input's, such as 'PER: Ann Lee; LOC: Bern'."""
        parts = [f"{e.label}: {' '.join(e.text.split())}".removeprefix(": ") for e in self.entities]
        return {"prediction": "; ".join(parts)}


@dataclass(frozen=True)
class Tag(Kind):
    """Its targets and answers are lists of tags: IOB2, or plain ones where the training file's have no prefixes."""

    name: ClassVar[str] = "tag"
    reads_tokens: ClassVar[bool] = True
    labels: tuple[str, ...]
    scheme: str = "IOB2"
    """How the training file writes its tags."""

    @classmethod
    def of(cls, labels: Iterable[Any], scheme: str) -> Tag:
        """With the labels in order: 'O', then by what they stand for, its beginning first."""
        order = sorted(set(map(str, labels)), key=lambda tag: (tag != "O", tag if scheme == PLAIN else tag[1:], tag))
        return cls(tuple(order), scheme)

    @property
    def width(self) -> int:
        return len(self.labels)

    @property
    def plain(self) -> bool:
        return self.scheme == PLAIN

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        """Windows of an input's words, each word answered by the window that shows most of what is around it."""
        room = max(1, encoder.room(max_length, pair=False))
        spelled = [_spelled(given, _spaced(encoder)) for given in inputs]
        pieces = _pieces(encoder, spelled, room)
        return [self._windows(encoder, [pieces[word] for word in words], room) for words in spelled]

    def _windows(self, encoder: Encoder, words: Sequence[tuple[Array, bool]], room: int) -> Example:
        ends = np.cumsum([0] + [len(ids) for ids, _ in words])  # where each word's pieces begin, and the last one's end
        ids = np.concatenate([np.zeros(0, dtype=np.int32), *(ids for ids, _ in words)])
        cut = np.array([cut for _, cut in words], dtype=bool)
        spans = windows(ends, room)
        before = len(encoder.frame(pair=False).before)
        example: Example = []
        for (start, end), (first, behind) in zip(spans, answered(ends, spans), strict=True):
            at = Answered(first, before + ends[first:behind] - ends[start])
            row = encoder.row(ids[ends[start] : ends[end]], at=at)
            example.append(row._replace(truncated=bool(cut[start:end].any())))
        return example

    def for_training(self, example: Example, gold: Any) -> Example:
        """All of them, for `drawn` to choose from."""
        return example

    def resampled(self, examples: Sequence[Example], seed: int | None) -> Sequence[Example]:
        """In training some windows of a long input, other ones in each step, so that all of it is learned from."""
        if seed is None:
            return examples
        rng = np.random.default_rng(seed)
        return [_some(example, rng) if len(example) > MOST_ROWS else example for example in examples]

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        """The mean over the words that the rows answer, which in training need not be all of an input's."""
        logits = self._logits(out, examples)
        position = {label: i for i, label in enumerate(self.labels)}
        wanted: list[int] = []
        for example, gold in zip(examples, targets, strict=True):
            for first, places in (row.at for row in example):
                wanted += [position.get(tag, UNSEEN) for tag in gold[first : first + len(places)]]
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

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        return sum(map(list.__ne__, self.decode(exact, examples), self.decode(out, examples)))

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Tagged]:
        """With `min_score`, entities that are less sure are left out, and their words are outside of any."""
        found = []
        for given, (path, scores) in zip(inputs, self._paths(out, examples), strict=True):
            tags: list[str] = [self.labels[i] for i in path.tolist()]
            told: list[str | None] = list(tags)
            spans = [(tag, i, i + 1) for i, tag in enumerate(tags) if tag != "O"] if self.plain else entities(tags)
            some = []
            for label, first, behind in spans:
                score = float(scores[first:behind].min())
                if min_score is None or score >= min_score:
                    some.append(_entity(given, label, first, behind, score))
                else:
                    told[first:behind] = ["O" if "O" in self.labels else None] * (behind - first)
            found.append(Tagged(told, given["tokens"], some))
        return found

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return scoring.score(targets, answers, plain=self.plain)

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return scoring.intervals(targets, answers, plain=self.plain)

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        """Each input is a text, which is split into words, or a list of words."""
        return [_given(item, record) for item in ([inputs] if isinstance(inputs, str | Mapping) else inputs)]

    def extra(self) -> dict[str, Any]:
        return {"scheme": self.scheme}

    def _logits(self, out: Out, examples: Sequence[Example]) -> Tensor:
        """What the head gives for each word, (words, labels), at its first piece in the window that answers it."""
        assert isinstance(out, list)
        if not out:
            return torch.zeros(0, self.width)
        rows = [row for example in examples for row in example]
        starts = np.cumsum([0] + [len(part) for part in out[:-1]])
        at = np.concatenate([start + row.at.places for start, row in zip(starts, rows, strict=True)])
        return torch.cat(out)[torch.from_numpy(at).to(out[0].device)]

    def _paths(self, out: Out, examples: Sequence[Example]) -> Iterator[tuple[Array, Array]]:
        """The best tags of each input's words, as positions in the labels, and their probabilities."""
        logp = self._logits(out, examples).double().log_softmax(-1).numpy()
        start = 0
        for example in examples:
            mine = logp[start : start + _words(example)]
            path = mine.argmax(1) if self.plain else decode(mine, self.labels)
            yield path, np.exp(mine[np.arange(len(mine)), path])
            start += len(mine)


def windows(ends: Array, room: int) -> list[tuple[int, int]]:
    """The words of each window, from and to: as many as fit, a quarter of them shared with the window before.

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


def answered(ends: Array, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The words that each window answers, from and to: those that see most on their poorer side there."""
    best = np.full(len(ends) - 1, -1)
    owner = np.zeros(len(ends) - 1, dtype=np.int64)
    for i, (start, end) in enumerate(spans):
        sees = np.minimum(ends[start:end] - ends[start], ends[end] - ends[start + 1 : end + 1])
        more = np.flatnonzero(sees > best[start:end]) + start
        best[more] = sees[more - start]
        owner[more] = i
    # Later windows answer later words, so that owners are in order.
    borders = np.searchsorted(owner, np.arange(len(spans) + 1)).tolist()
    return list(pairwise(borders))


def decode(logp: Array, labels: tuple[str, ...]) -> Array:
    """Viterbi: the most probable valid IOB2 sequence, as positions in the labels; logp is (words, labels)."""
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
    """0 for a label that may begin, or follow another, (labels,) and (labels, labels); -inf for one that may not."""
    inside = np.array([label.startswith("I") for label in labels])
    goes_on = np.array([[a[:1] in ("B", "I") and a[1:] == b[1:] for b in labels] for a in labels])
    return np.where(inside, -np.inf, 0.0), np.where(inside & ~goes_on, -np.inf, 0.0)


def _some(example: Example, rng: np.random.Generator) -> Example:
    return [example[i] for i in np.sort(rng.choice(len(example), MOST_ROWS, replace=False))]


def _words(example: Example) -> int:
    return sum(len(row.at.places) for row in example)


def _spaced(encoder: Encoder) -> bool:
    """Whether the tokenizer tells a word inside a sentence from the same word alone by the space before it."""
    alone, after, both = (pieces.ids.tolist() for pieces in encoder.pieces(["a", " a", "a a"]))
    return bool(both != alone + alone and both == alone + after)


def _spelled(given: Any, spaced: bool) -> list[str]:
    """The words as the tokenizer is to see them."""
    tokens, offsets = given["tokens"], given["offsets"]
    if not spaced:
        return list(tokens)
    return [
        f" {word}" if i and (offsets is None or offsets[i][0] > offsets[i - 1][1]) else word
        for i, word in enumerate(tokens)
    ]


def _pieces(encoder: Encoder, inputs: Iterable[Iterable[str]], room: int) -> dict[str, tuple[Array, bool]]:
    """The pieces of every word, as many as fit, and whether that is not all of them."""
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
    """What a user asks about, in the form that a file's rows have."""
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
