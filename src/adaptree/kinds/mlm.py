"""Masked language modelling: words of plain text are hidden, and the base learns to predict them.

The output layer is tied to the base's word embeddings; a small transform before it is trained and kept with the task.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from adaptree.data.cells import as_text, is_empty
from adaptree.data.columns import guess
from adaptree.data.encode import Encoder, Encoding
from adaptree.data.form import Form, Row
from adaptree.errors import UsageError
from adaptree.kinds import bootstrap, findings
from adaptree.kinds.findings import Evaluated, Section, Table
from adaptree.kinds.kind import Aim, Example, Kind, Out, by_example
from adaptree.methods import Params
from adaptree.methods.pfeiffer import coupling

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor

    from adaptree.data.dataset import Dataset
    from adaptree.tasks.record import Record

Array = np.ndarray[Any, Any]
TOP = 5
HIDDEN, RANDOM = 0.8, 0.1
"""Shares of the chosen pieces that become the mask and a random piece; the rest stays (Devlin et al., §3.1)."""
PRETRAINED = {
    "head.dense.weight": ("cls.predictions.transform.dense.weight", "lm_head.dense.weight", "vocab_transform.weight"),
    "head.dense.bias": ("cls.predictions.transform.dense.bias", "lm_head.dense.bias", "vocab_transform.bias"),
    "head.norm.weight": (
        "cls.predictions.transform.LayerNorm.weight", "cls.predictions.transform.LayerNorm.gamma",
        "lm_head.layer_norm.weight", "vocab_layer_norm.weight",
    ),
    "head.norm.bias": (
        "cls.predictions.transform.LayerNorm.bias", "cls.predictions.transform.LayerNorm.beta",
        "lm_head.layer_norm.bias", "vocab_layer_norm.bias",
    ),
    "head.bias": ("cls.predictions.bias", "lm_head.bias", "vocab_projector.bias"),
}  # fmt: skip
"""The names of the head's tensors in BERT, RoBERTa (also XLM-R and MPNet) and DistilBERT, by our names."""


class Hidden(NamedTuple):
    """The hidden places of a row, the tokens to be predicted there, and the word that each is part of."""

    places: Array
    pieces: Array
    words: Array


@dataclass(frozen=True)
class MlmForm(Form):
    """One column of text, and no labels: its own words are the targets."""

    needs: ClassVar[str] = "A column of text."
    has_labels: ClassVar[bool] = False
    empty: ClassVar[Any] = ""

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], columns: Mapping[str, str | None]) -> Form | None:
        found = guess(names, sample, text=columns.get("text"), need_label=False, pairs=False)
        return cls({"text": found.text}, "it is plain text, from which words are learned without labels")

    def input(self, row: Row, number: int, name: str) -> Any | None:
        column = str(self.columns["text"])
        text = as_text(row.get(column), number, column, name)
        return None if is_empty(text) else text

    def target(self, row: Row, given: Any, number: int, name: str) -> Any | None:
        return True

    def text(self, given: Any) -> str:
        return str(given)


@dataclass(frozen=True)
class WordsPrediction:
    """The likeliest words for each place that a user masked; or, of a text without masks, its perplexity."""

    fills: list[list[dict[str, Any]]]
    perplexity: float | None

    def to_dict(self) -> dict[str, Any]:
        return {"fills": self.fills, "perplexity": self.perplexity}

    def columns(self) -> dict[str, Any]:
        words = " / ".join(fill[0]["word"] for fill in self.fills if fill)
        return {"prediction": words, "perplexity": self.perplexity}


@dataclass(frozen=True)
class Mlm(Kind):
    """A `share` of the word pieces is hidden, other ones in every step; in validation always the same ones."""

    name: ClassVar[str] = "mlm"
    form: ClassVar[type[Form]] = MlmForm
    metrics: ClassVar[tuple[str, ...]] = ("perplexity", "accuracy")
    lower_is_better: ClassVar[tuple[str, ...]] = ("perplexity",)
    priority: ClassVar[int | None] = 80
    endings: ClassVar[tuple[str, ...]] = (".txt",)
    linear_head: ClassVar[bool] = False
    target_name: ClassVar[str] = ""
    reads_tokens: ClassVar[bool] = True
    reads_whole: ClassVar[bool] = True
    resamples: ClassVar[bool] = True
    vocabulary: int
    mask_id: int
    words: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The spelling of every token, by its id."""
    share: float = 0.15
    whole_words: bool = False

    @classmethod
    def _of(cls, encoder: Encoder, options: Mapping[str, Any]) -> Self:
        own = {name: options[name] for name in ("share", "whole_words") if name in options}
        return cls(encoder.vocabulary, encoder.mask_id(), words=encoder.words(), **own)

    @classmethod
    def from_data(cls, dataset: Dataset, rows: Array, encoder: Encoder, **options: Any) -> Self:
        return cls._of(encoder, options)

    @classmethod
    def from_record(cls, record: Record, encoder: Encoder) -> Self:
        return cls._of(encoder, record.extra)

    @property
    def width(self) -> int:
        return self.vocabulary

    def problem(self) -> str:
        return "" if 0 < self.share <= 1 else f"a share of {self.share:g} of the words cannot be hidden"

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
        """Return the examples with tokens hidden, chosen by `seed`; without one, by the tokens of each row.

        In a text with masks of its own, those are what is to be predicted, in whichever of its windows they are.
        """
        return [
            [self._asked(row) for row in example]
            if any((row.at.pieces == self.mask_id).any() for row in example)
            else [self._hide(row, seed, number) for row in example]
            for number, example in enumerate(examples)
        ]

    def _asked(self, row: Encoding) -> Encoding:
        """Return the row with a user's masks as its hidden places."""
        masked = np.flatnonzero(row.at.pieces == self.mask_id)
        return row._replace(at=Hidden(*(part[masked] for part in row.at)))

    def _hide(self, row: Encoding, seed: int | None, number: int) -> Encoding:
        at: Hidden = row.at
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
        import torch

        from adaptree.core.bottleneck import truncated_normal

        return {
            "head.dense.weight": truncated_normal((d, d), 0.02, generator) + torch.eye(d),
            "head.dense.bias": torch.zeros(d),
            "head.norm.weight": torch.ones(d),
            "head.norm.bias": torch.zeros(d),
            "head.bias": torch.zeros(self.vocabulary),
        }

    def pretrained_head(self, folder: Path, width: int) -> dict[str, Tensor]:
        found = words_head(folder)
        fits = found and found["head.dense.weight"].shape[1] == width and len(found["head.bias"]) == self.width
        return found if fits else {}

    def run(
        self, hidden: Tensor, mask: Tensor, rows: Sequence[Encoding], v: Params, pooling: str, words: Tensor
    ) -> Out:
        """Return by hidden place its loss and whether the likeliest piece is right; without gradients also the TOP."""
        import torch

        sizes = [len(row.at.places) for row in rows]
        batch = torch.from_numpy(np.repeat(np.arange(len(rows)), sizes)).to(hidden.device)
        place = torch.from_numpy(np.concatenate([row.at.places for row in rows])).to(hidden.device)
        target = torch.from_numpy(np.concatenate([row.at.pieces for row in rows]).astype(np.int64)).to(hidden.device)
        x = hidden[batch, place]
        if torch.is_grad_enabled():
            return list(torch.split(_predict(x, target, v, words)[0], sizes))
        out = []
        for states, pieces in zip(torch.split(x, sizes), torch.split(target, sizes), strict=True):
            # A row by itself: the bits of a product depend on how many states are in it.
            scores, logits = _predict(states, pieces, v, words)
            likely = logits.log_softmax(-1).topk(min(TOP, logits.shape[-1]), -1)
            out.append(torch.cat([scores, likely.indices.float(), likely.values], -1))
        return out

    def loss(self, out: Out, examples: Sequence[Example], targets: Any, weights: Tensor | None = None) -> Tensor:
        import torch

        parts = [torch.cat(part)[:, 0] for part in by_example(out, examples)]
        return torch.stack([part.mean() if len(part) else part.sum() for part in parts])

    def aims(self, out: Out, example: Example, given: Any, target: str | None) -> list[Aim]:
        raise UsageError(
            "a language model predicts every hidden word from the others: there is no one answer to explain.",
            hint="Explain a task that was trained on top of it.",
        )

    def decode(self, out: Out, examples: Sequence[Example]) -> list[tuple[float, int, int]]:
        """Return of each input the sum of its losses, how many pieces are right, and how many there are."""
        import torch

        parts = [torch.cat(part)[:, :2].double() for part in by_example(out, examples)]
        return [(float(part[:, 0].sum()), int(part[:, 1].sum()), len(part)) for part in parts]

    def changed(self, exact: Out, out: Out, examples: Sequence[Example]) -> int:
        import torch

        both = zip(by_example(exact, examples), by_example(out, examples), strict=True)
        return sum(not torch.equal(torch.cat(a)[:, 2], torch.cat(b)[:, 2]) for a, b in both)

    def predictions(
        self, out: Out, examples: Sequence[Example], inputs: Sequence[Any], min_score: float | None
    ) -> list[WordsPrediction]:
        import torch

        if min_score is not None:
            raise UsageError("words have no score to abstain by.", hint="Leave --min-score out.")
        found = []
        for part, example in zip(by_example(out, examples), examples, strict=True):
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
            masked = all((row.at.pieces == self.mask_id).all() for row in example) and own
            perplexity = None if masked or not len(rows) else float(rows[:, 0].double().mean().exp())
            found.append(WordsPrediction(fills if masked else [], perplexity))
        return found

    def score(self, targets: Any, answers: Any) -> dict[str, float]:
        return bootstrap.score(_sums(answers), _ratios)

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

    @classmethod
    def describe(cls, record: Record) -> str:
        return "Predicts the words that are hidden in a text."

    def findings(self, on: Evaluated) -> dict[str, Any]:
        lengths = np.array([sum(len(row.ids) for row in example) for example in on.examples], dtype=np.int64)
        thirds = np.searchsorted(np.quantile(lengths, [1 / 3, 2 / 3]), lengths)
        sums = _sums(on.answers)
        found = []
        for third in np.unique(thirds):
            at = thirds == third
            loss, _, pieces = sums[at].sum(0)
            span = {"from": int(lengths[at].min()), "to": int(lengths[at].max())}
            found.append({**span, "rows": int(at.sum()), "perplexity": math.exp(min(loss / max(pieces, 1), 700))})
        return {"by_length": found, "words": self._hardest(on)}

    def _hardest(self, on: Evaluated) -> list[dict[str, Any]]:
        """Return the words with the highest loss, of those that were hidden more than twice if there are such."""
        losses: dict[int, list[float]] = defaultdict(list)
        instead: dict[int, Counter[int]] = defaultdict(Counter)
        for row, part in zip((row for example in on.examples for row in example), on.out, strict=True):
            for piece, (loss, _, likeliest, *_) in zip(row.at.pieces.tolist(), part.tolist(), strict=True):
                losses[piece].append(loss)
                instead[piece][int(likeliest)] += 1
        often = {piece: found for piece, found in losses.items() if len(found) > 2} or losses
        worst = sorted(often, key=lambda piece: (-float(np.mean(often[piece])), piece))[: findings.MOST_WRONG]

        def word(piece: int) -> str:
            return findings.name(self.words[piece]) if piece < len(self.words) else str(piece)

        return [
            {
                "word": word(piece),
                "rows": len(often[piece]),
                "loss": float(np.mean(often[piece])),
                "said": word(min(instead[piece].items(), key=lambda item: (-item[1], item[0]))[0]),
            }
            for piece in worst
        ]

    @classmethod
    def sections(cls, found: Mapping[str, Any], record: Record) -> list[Section]:
        lengths = [
            (f"{row['from']:,} to {row['to']:,}", row["rows"], row["perplexity"])
            for row in found.get("by_length") or []
        ]
        words = [(row["word"], row["rows"], row["loss"], row["said"]) for row in found.get("words") or []]
        return [
            Section("By length", [Table(("tokens", "texts", "perplexity"), lengths)]),
            Section("Hardest words", [Table(("word", "times hidden", "mean loss", "mostly predicted"), words)]),
        ]


def _predict(x: Tensor, target: Tensor, v: Params, embeddings: Tensor) -> tuple[Tensor, Tensor]:
    """Return (places, 2), the loss and whether the likeliest piece is right; and the logits, (places, vocabulary)."""
    import torch
    import torch.nn.functional as F

    from adaptree.core import invertible

    x = F.gelu(F.linear(x, v["head.dense.weight"], v["head.dense.bias"]))
    x = F.layer_norm(x, x.shape[-1:], v["head.norm.weight"], v["head.norm.bias"], 1e-12)
    if coupled := coupling(v):  # the embeddings went in coupled: what is compared with them is uncoupled
        x = invertible.invert(x, coupled)
    logits = F.linear(x, embeddings, v["head.bias"]).float()
    return torch.stack(
        [F.cross_entropy(logits, target, reduction="none"), (logits.argmax(-1) == target).float()], -1
    ), logits


def _words(text: str, spans: Array) -> Array:
    """Return the number of the word that each piece is of: pieces that touch, of letters and digits, are one word."""
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


def words_head(folder: Path) -> dict[str, Tensor]:
    """Return the pretrained transform before the tied output layer; {} unless the folder has all of its tensors."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                there = set(file.keys())
                for name, others in PRETRAINED.items():
                    for other in others:
                        if other in there:
                            found[name] = file.get_tensor(other).float()
        except (OSError, SafetensorError):
            return {}
    return found if found.keys() == PRETRAINED.keys() else {}
