"""The state of a training run, as a checkpoint keeps it: counters, current and best weights, Adam's moments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from adaptree.training.sharded import like, whole

NOW, BEST = "now.", "best."
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


@dataclass
class State:
    """The progress of a run: counters within its stage, and the history. All of it goes into a checkpoint."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    step: int = 0
    seen: int = 0
    tokens: int = 0
    loss: float = 0.0
    best: int = 0
    cached_layers: int = 0
    """How many of the lowest layers come from the activation cache."""
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    kind: dict[str, Any] = field(default_factory=dict)
    """What the kind chose on validation in the best epoch (`Kind.state`)."""


def pack(
    v: Mapping[str, Tensor], best: Mapping[str, Tensor], optimiser: torch.optim.Optimizer
) -> Iterator[tuple[str, Tensor]]:
    """Yield a checkpoint's tensors: current weights, best weights and Adam's moments."""
    for name, p in v.items():
        yield f"{NOW}{name}", whole(p)
        yield f"{BEST}{name}", whole(best[name])
        for key, value in optimiser.state.get(p, {}).items():
            yield f"{key}.{name}", whole(value)


def weights(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return a checkpoint's current weights (`NOW`), or those of the best epoch (`BEST`)."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def restore_moments(optimiser: torch.optim.Optimizer, v: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Put the moments of a checkpoint into an optimiser of these weights."""
    for name, p in v.items():
        kept = {key: tensors[f"{key}.{name}"] for key in MOMENTS if f"{key}.{name}" in tensors}
        if kept:
            optimiser.state[p] = {key: like(p, t) for key, t in kept.items()}
