"""The numbers that say how a task is trained, each with a default."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from adaptree.errors import UsageError, near

CROSS_ENTROPY, HEAD_FIRST, CONTRASTIVE = "cross-entropy", "head-first", "contrastive"
CHOICES = {
    "objective": (None, CROSS_ENTROPY, HEAD_FIRST, CONTRASTIVE),
    "activation_cache": ("fp32", "fp16", "off"),
    "precision": (None, "fp32", "bf16"),
}
WHOLE = {
    "epochs": 1, "batch_size": 1, "max_length": 8, "seed": 0, "patience": 1, "max_steps": 1, "accumulate": 1,
    "most_tokens": 1, "adapter_drop": 0,
}  # fmt: skip
"""Settings that are whole numbers, and their least values."""
POSITIVE, NOT_NEGATIVE = ("lr", "clip"), ("weight_decay", "warmup")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a task is trained: the recipe of Houlsby et al., §3.1, with AdamW.

    None stands for a value that is chosen from the data, the method or the base. The text under each field is the help
    of the command line's option of that name.
    """

    objective: str | None = None
    """How it learns: cross-entropy; head-first (the head is solved before); or contrastive, for few rows a label: texts
    of one label are drawn together, then the head is solved. Default: chosen from the number of rows a label."""
    epochs: int | None = None
    """Passes over the training rows. Default: 20 on a few hundred rows, down to 4 on five thousand and more; up to 100
    on fewer rows, so that there are some 200 batches."""
    lr: float | None = None
    """Peak learning rate. Default: the method's."""
    batch_size: int = 32
    """Examples in a batch."""
    max_length: int | None = None
    """Longest input in tokens; longer ones are truncated. Default: 256, or the base's limit if that is less."""
    max_steps: int | None = None
    """Stop after this many batches."""
    seed: int = 0
    """Seed of everything random: the split, the initial weights, the order of the batches."""
    metric: str | None = None
    """Metric that chooses the best epoch. Default: the kind's own: accuracy, pearson, f1 or perplexity."""
    pooling: str | None = None
    """How token states become one vector: mean, first or last. Default: as the base was pretrained."""
    patience: int | None = None
    """Early stopping: end after this many epochs without a better score. Default: 5, on few rows some 50 batches."""
    weight_decay: float = 0.01
    """Weight decay of weight matrices; norms and biases have none."""
    warmup: float = 0.1
    """Fraction of the training over which the learning rate rises; after it, it falls linearly to zero."""
    clip: float = 1.0
    """Largest norm of the gradient; larger gradients are scaled down."""
    windows: bool = False
    """Read longer texts whole, in windows whose predictions are averaged, instead of truncating them."""
    whole_words: bool = False
    """For kind mlm: mask all pieces of a word together."""
    as_text: bool = False
    """For kind classify on a language model: read each label as text after the input, and choose the likeliest.
    Default: a head reads the state of the last token."""
    template: str | None = None
    """For kind generate and --as-text: what an input is put into, {input} in its place; chat is the base's own of
    chats. Default: that, if the base has one; for --as-text, the text Label: in the line after the input."""
    cut: str | None = None
    """For kind generate: the end at which a prompt that is too long is cut, left or right. Default: left."""
    class_weights: bool = False
    """Weight the loss so that every label counts the same, however rare."""
    dropout: bool | None = None
    """Keep the base's dropout while training, or not. Default: the method's."""
    adapter_drop: int = 0
    """In every step leave out the adapters and norms of the lowest n layers, n drawn from 0 to this (AdapterDrop), so
    that the task loses less when drop(…) removes them."""
    accumulate: int = 1
    """Compute each batch in this many parts: the same steps in less memory."""
    most_tokens: int | None = None
    """Compute each batch in parts of at most this many tokens, so that long texts need no more memory."""
    precision: str | None = None
    """Precision of training steps: fp32 (default), or bf16 where that is faster. Scores are always computed in fp32."""
    activation_cache: str = "fp32"
    """Precision of the cached states below the lowest trained layer: fp32 (exact), fp16, or off."""

    def __post_init__(self) -> None:
        for name, least in WHOLE.items():
            check_number(name, getattr(self, name), whole=True, least=least)
        for name in (*POSITIVE, *NOT_NEGATIVE):
            check_number(name, getattr(self, name), positive=name in POSITIVE)
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                known = [choice for choice in choices if choice]
                hint = near(str(value), known) or f"There are: {', '.join(known)}."
                raise UsageError(f"{name} cannot be {value!r}.", hint=hint)
        if self.seed >= 2**63:
            raise UsageError(f"seed must be less than 2**63, not {self.seed}.")
        if self.warmup > 1:
            raise UsageError(f"warmup is a fraction of the training, at most 1, not {self.warmup}.")

    def longest(self, limit: int) -> int:
        """Return the longest input in tokens on a base that takes `limit`; raise UsageError if max_length is more."""
        if self.max_length and self.max_length > limit:
            raise UsageError(
                f"max_length {self.max_length} is more than the base's {limit} tokens.", hint=f"--max-length {limit}"
            )
        return self.max_length or min(256, limit)

    def resolved(
        self,
        *,
        rows: int,
        lr: float,
        limit: int,
        metric: str,
        pooling: str,
        objective: str = CROSS_ENTROPY,
        dropout: bool = False,
    ) -> Settings:
        """Return these settings with the defaults filled in for `rows` training rows, a method and a base."""
        return replace(
            self,
            objective=self.objective or objective,
            epochs=self.epochs or (1 if objective == CONTRASTIVE else default_epochs(rows)),
            patience=self.patience or max(5, min(25, round(1_600 / max(rows, 1)))),
            lr=self.lr or lr,
            max_length=self.longest(limit),
            metric=self.metric or metric,
            pooling=self.pooling or pooling,
            dropout=dropout if self.dropout is None else self.dropout,
            precision=self.precision or "fp32",
        )

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def check_number(name: str, value: Any, *, whole: bool = False, least: float = 0, positive: bool = False) -> None:
    """Raise UsageError unless a value is None or a finite number of at least `least` (above it, if `positive`)."""
    if value is None:
        return
    good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < least or (positive and value == least):
        bound = f"above {least}" if positive else f"of at least {least}"
        raise UsageError(f"{name} must be a {'whole ' if whole else ''}number {bound}, not {value}.")


def default_epochs(rows: int) -> int:
    """Return the number of epochs that shows some twenty thousand rows in all, between 4 and 20.

    Where 20 are fewer than 200 batches of 32, it is as many as make 200, up to 100.
    """
    return max(4, min(20, round(20_000 / max(rows, 1))), min(100, round(6_400 / max(rows, 1))))


def learning_rate(progress: float, peak: float, warmup: float) -> float:
    """Return the learning rate at a fraction of the training: linear up over `warmup`, then linear down to zero."""
    if progress < warmup:
        return peak * progress / warmup
    return peak * (1 - progress) / (1 - warmup) if warmup < 1 else peak
