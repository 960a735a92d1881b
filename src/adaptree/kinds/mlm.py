"""Masked language modelling: words of plain text are hidden, and the base learns to say them.

The output layer is tied to the base's word embeddings; a small transform before it is trained and kept with the task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree.core import invertible
from adaptree.core.bottleneck import truncated_normal
from adaptree.data.encode import Encoder, Encoding
from adaptree.errors import UsageError
from adaptree.kinds import bootstrap
from adaptree.kinds.kind import Example, Kind, Out
from adaptree.methods import Params
from adaptree.methods.pfeiffer import coupling

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
TOP = 5
HIDDEN, RANDOM = 0.8, 0.1
"""Shares of the chosen pieces that become the mask and a random piece; the rest stays (Devlin et al., §3.1)."""


class Hidden(NamedTuple):
    """In a row: the places whose pieces are to be said, what they were, and the word that each place belongs to."""

    places: Array
    pieces: Array
    words: Array


@dataclass(frozen=True)
class Filled:
    """A text's hidden places with the likeliest words for each; and how well its own words were said."""

    fills: list[list[dict[str, Any]]]
    perplexity: float | None

    def to_dict(self) -> dict[str, Any]:
        return {"fills": self.fills, "perplexity": self.perplexity}

    def columns(self) -> dict[str, Any]:
        said = " / ".join(fill[0]["word"] for fill in self.fills if fill)
        return {"prediction": said, "perplexity": self.perplexity}


@dataclass(frozen=True)
class Mlm(Kind):
    """`share` of the word pieces are to be said, drawn anew in every step; validation draws the same ones always."""

    name: ClassVar[str] = "mlm"
    reads_tokens: ClassVar[bool] = True
    resamples: ClassVar[bool] = True
    vocabulary: int
    mask_id: int
    words: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Every piece by its number, as the tokenizer says it."""
    share: float = 0.15
    whole_words: bool = False

    @property
    def width(self) -> int:
        return self.vocabulary

    def examples(self, encoder: Encoder, inputs: Sequence[Any], max_length: int) -> list[Example]:
        room = max(1, encoder.room(max_length, pair=False))
        before = len(encoder.frame(pair=False).before)
        found = []
        for text, pieces in zip(inputs, encoder.pieces(list(inputs)), strict=True):
            words = _words(text, pieces.spans)
            example = []
            for start in range(0, max(1, len(pieces.ids)), room):
                ids = pieces.ids[start : start + room]
                places = before + np.arange(len(ids))
                example.append(encoder.row(ids, at=Hidden(places, ids, words[start : start + room])))
            found.append(example)
        return found

    def resampled(self, examples: Sequence[Example], seed: int | None) -> list[Example]:
        """The same examples with pieces hidden: by `seed`, or with none by what each row is."""
        return [[self._hide(row, seed, number) for row in example] for number, example in enumerate(examples)]

    def _hide(self, row: Encoding, seed: int | None, number: int) -> Encoding:
        at: Hidden = row.at
        asked = np.flatnonzero(at.pieces == self.mask_id)
        if len(asked):  # a user's own mask: that is what is to be said
            return row._replace(at=Hidden(at.places[asked], at.pieces[asked], at.words[asked]))
        own = int.from_bytes(blake2b(row.ids.tobytes(), digest_size=6).digest(), "little")
        rng = np.random.default_rng(own if seed is None else [seed, number, own])
        names = np.unique(at.words) if self.whole_words else np.arange(len(at.places))
        count = min(len(names), max(1, round(self.share * len(names))))
        chosen = rng.choice(names, count, replace=False) if count else names[:0]
        picked = np.flatnonzero(np.isin(at.words, chosen)) if self.whole_words else np.sort(chosen)
        ids = row.ids.copy()
        fate = rng.random(len(picked))
        ids[at.places[picked[fate < HIDDEN]]] = self.mask_id
        swapped = picked[(fate >= HIDDEN) & (fate < HIDDEN + RANDOM)]
        ids[at.places[swapped]] = rng.integers(0, self.vocabulary, len(swapped))
        return row._replace(ids=ids, at=Hidden(at.places[picked], at.pieces[picked], at.words[picked]))

    def init(self, d: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {
            "head.dense.weight": truncated_normal((d, d), 0.02, generator) + torch.eye(d),
            "head.dense.bias": torch.zeros(d),
            "head.norm.weight": torch.ones(d),
            "head.norm.bias": torch.zeros(d),
            "head.bias": torch.zeros(self.vocabulary),
        }

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding], v: Params, pooling: str, embeddings: Tensor
    ) -> Out:
        """For each hidden place its loss and whether the likeliest piece is right; without gradients also the TOP."""
        sizes = [len(row.at.places) for row in rows]
        batch = torch.from_numpy(np.repeat(np.arange(len(rows)), sizes)).to(hidden.device)
        place = torch.from_numpy(np.concatenate([row.at.places for row in rows])).to(hidden.device)
        gold = torch.from_numpy(np.concatenate([row.at.pieces for row in rows]).astype(np.int64)).to(hidden.device)
        x = hidden[batch, place]
        if torch.is_grad_enabled():
            return list(torch.split(_said(x, gold, v, embeddings)[0], sizes))
        out = []
        for states, pieces in zip(torch.split(x, sizes), torch.split(gold, sizes), strict=True):
            # A row by itself: the bits of a product depend on how many states are in it.
            said, logits = _said(states, pieces, v, embeddings)
            likely = logits.log_softmax(-1).topk(min(TOP, logits.shape[-1]), -1)
            out.append(torch.cat([said, likely.indices.float(), likely.values], -1))
        return out

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        parts = [torch.cat(part)[:, 0] for part in _by_unit(out, examples)]
        return torch.stack([part.mean() if len(part) else part.sum() for part in parts])

    def decode(self, out: Out, examples: Sequence[Example]) -> list[tuple[float, int, int]]:
        """Of each input: the sum of its losses, how many pieces were right, how many there were."""
        parts = [torch.cat(part)[:, :2].double() for part in _by_unit(out, examples)]
        return [(float(part[:, 0].sum()), int(part[:, 1].sum()), len(part)) for part in parts]

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        both = zip(_by_unit(exact, examples), _by_unit(out, examples), strict=True)
        return sum(not torch.equal(torch.cat(a)[:, 2], torch.cat(b)[:, 2]) for a, b in both)

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[Filled]:
        found = []
        for part, example in zip(_by_unit(out, examples), examples, strict=True):
            own = any((row.ids[row.at.places] == self.mask_id).all() and len(row.at.places) for row in example)
            rows = torch.cat(part)
            top = (rows.shape[-1] - 2) // 2
            fills = [
                [
                    {"word": self.words[int(piece)] if self.words else int(piece), "score": float(np.exp(score))}
                    for piece, score in zip(line[2 : 2 + top].tolist(), line[2 + top :].tolist(), strict=True)
                ]
                for line in rows
            ]
            asked = all((row.at.pieces == self.mask_id).all() for row in example) and own
            perplexity = None if asked or not len(rows) else float(rows[:, 0].double().mean().exp())
            found.append(Filled(fills if asked else [], perplexity))
        return found

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return {name: float(values[0]) for name, values in _ratios(_sums(answers).sum(0, keepdims=True)).items()}

    def intervals(self, targets: Any, answers: Any) -> Mapping[str, tuple[float, float]]:
        return bootstrap.intervals(_sums(answers), _ratios)

    def inputs(self, inputs: Any, record: Record) -> list[Any]:
        texts = [inputs] if isinstance(inputs, str) else list(inputs)
        for text in texts:
            if not isinstance(text, str):
                raise UsageError(f"the task '{record.name}' takes texts, not {text!r:.60}.")
        return texts

    def extra(self) -> dict[str, Any]:
        return {"share": self.share, "whole_words": self.whole_words}


def _said(x: Tensor, gold: Tensor, v: Params, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """(places, 2): the loss, and whether the likeliest piece is right; and the logits, (places, vocabulary)."""
    x = F.gelu(F.linear(x, v["head.dense.weight"], v["head.dense.bias"]))
    x = F.layer_norm(x, x.shape[-1:], v["head.norm.weight"], v["head.norm.bias"], 1e-12)
    if coupled := coupling(v):  # the embeddings went in coupled: what is compared with them is uncoupled
        x = invertible.invert(x, coupled)
    logits = F.linear(x, embeddings, v["head.bias"]).float()
    return torch.stack(
        [F.cross_entropy(logits, gold, reduction="none"), (logits.argmax(-1) == gold).float()], -1
    ), logits


def _by_unit(out: Out, examples: Sequence[Example]) -> list[list[Tensor]]:
    assert isinstance(out, list)
    ends = np.cumsum([len(example) for example in examples]).tolist()
    return [out[end - len(example) : end] for example, end in zip(examples, ends, strict=True)]


def _words(text: str, spans: Array) -> Array:
    """The number of the word that each piece is of: pieces that touch, of letters and digits, are one word."""
    number, last = -1, -1
    found = np.empty(len(spans), dtype=np.int64)
    for i, (start, end) in enumerate(spans.tolist()):
        joined = start == last and start > 0 and text[start - 1 : start].isalnum() and text[start : start + 1].isalnum()
        number += not joined
        found[i], last = number, end
    return found


def _sums(answers: Sequence[tuple[float, int, int]]) -> Array:
    return np.asarray(answers, dtype=np.float64).reshape(-1, 3)


def _ratios(sums: Array) -> dict[str, Array]:
    loss, right, count = sums[:, 0], sums[:, 1], np.maximum(sums[:, 2], 1)
    return {"perplexity": np.exp(loss / count), "accuracy": right / count}
