"""How a task is trained: every number, with a default that needs no flag."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from adaptree.errors import UsageError, near

TRUNKS = ("fp32", "fp16", "off")
PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The recipe of Houlsby et al., §3.1, with AdamW; None means: chosen from the data, the method or the base."""

    epochs: int | None = None
    """Passes over the training rows. Default: from 20 on a few hundred rows down to 4 on five thousand and more."""
    lr: float | None = None
    """Peak learning rate. Default: the method's."""
    batch_size: int = 32
    max_length: int | None = None
    """Longest input in tokens; what is longer is cut. Default: 256, or the base's limit if that is less."""
    seed: int = 0
    metric: str | None = None
    """What chooses the best epoch. Default: accuracy, or pearson for numbers."""
    pooling: str | None = None
    """mean, first or last. Default: as the base was pretrained."""
    patience: int = 5
    """Epochs without a better score after which training stops."""
    weight_decay: float = 0.01
    """On weight matrices; never on norms and biases (as in the original code)."""
    warmup: float = 0.1
    """Share of the training over which the learning rate rises; then it falls to zero in a straight line (§3.1)."""
    clip: float = 1.0
    """Largest norm of the gradient."""
    windows: bool = False
    """Whether a text that is longer is read whole, in windows whose votes are pooled, and not cut."""
    whole_words: bool = False
    """Of kind mlm: whether all pieces of a word are hidden together."""
    class_weights: bool = False
    """Whether every label has the same say, however rare."""
    dropout: bool = False
    """Whether the frozen base keeps its dropout while training."""
    max_steps: int | None = None
    """Stop after this many batches."""
    accumulate: int = 1
    """Compute each batch in so many parts, one after the other: the same steps in less memory."""
    most_tokens: int | None = None
    """Compute a batch in parts of at most so many tokens: long texts then need no more memory than short ones."""
    precision: str | None = None
    """What a training step computes in: fp32 (the default), or bf16 where the device is quick at it. A task's scores
    and answers are in fp32 always."""
    trunk: str = "fp32"
    """How states below the lowest trained layer are kept: fp32 (in fp32 steps the same bits as without), fp16, off."""

    def __post_init__(self) -> None:
        for name, low, whole in (
            ("epochs", 1, True),
            ("lr", 0, False),
            ("batch_size", 1, True),
            ("max_length", 8, True),
            ("seed", 0, True),
            ("patience", 1, True),
            ("weight_decay", 0, False),
            ("warmup", 0, False),
            ("clip", 0, False),
            ("max_steps", 1, True),
            ("accumulate", 1, True),
            ("most_tokens", 1, True),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
            zero = name in ("lr", "clip") and value == 0
            if not good or not math.isfinite(value) or value < low or zero:
                bound = f"above {low}" if name in ("lr", "clip") else f"of at least {low}"
                raise UsageError(f"{name} must be a {'whole ' if whole else ''}number {bound}, not {value}.")
        for name, choices in (("trunk", TRUNKS), ("precision", (None, *PRECISIONS))):
            if (value := getattr(self, name)) not in choices:
                hint = near(str(value), [c for c in choices if c]) or f"There are: {', '.join(filter(None, choices))}."
                raise UsageError(f"{name} cannot be {value!r}.", hint=hint)
        if self.seed >= 2**63:
            raise UsageError(f"seed must be less than 2**63, not {self.seed}.")
        if self.warmup > 1:
            raise UsageError(f"warmup is a share of the training, at most 1, not {self.warmup}.")

    def longest(self, limit: int) -> int:
        """The longest input on a base that takes `limit` tokens."""
        if self.max_length and self.max_length > limit:
            raise UsageError(f"max_length {self.max_length} is more than the base's {limit} tokens.")
        return self.max_length or min(256, limit)

    def resolved(self, *, rows: int, lr: float, limit: int, metric: str, pooling: str) -> Settings:
        """These settings with nothing left open."""
        return replace(
            self,
            epochs=self.epochs or default_epochs(rows),
            lr=self.lr or lr,
            max_length=self.longest(limit),
            metric=self.metric or metric,
            pooling=self.pooling or pooling,
            precision=self.precision or "fp32",
        )

    def to_dict(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def known_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """The same; one that there is not is refused."""
    names = [f.name for f in fields(Settings)]
    for name in settings:
        if name not in names:
            hint = near(name, names) or f"There are: {', '.join(names)}."
            raise UsageError(f"there is no setting '{name}'.", hint=hint)
    return settings


def default_epochs(rows: int) -> int:
    """Some twenty thousand rows seen in all, between 4 and 20 passes."""
    return max(4, min(20, round(20_000 / max(rows, 1))))


def learning_rate(progress: float, peak: float, warmup: float) -> float:
    """Linear up over the first `warmup` of the training, linear down to zero at its end."""
    if progress < warmup:
        return peak * progress / warmup
    return peak * (1 - progress) / (1 - warmup) if warmup < 1 else peak
