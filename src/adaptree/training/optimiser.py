"""AdamW over a task's weights: the method says which of them decay, and which share of the learning rate each has."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.optim import AdamW

from adaptree.methods import Method


def adamw(method: Method, trained: Mapping[str, Tensor], weight_decay: float, device: str) -> AdamW:
    """Return AdamW with one group for each share and decay; `device` is the type of the weights' device."""
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, p in trained.items():
        decay = weight_decay if method.decays(name) else 0.0
        groups.setdefault((method.rate(name), decay), []).append(p)
    options = [{"params": p, "weight_decay": decay, "share": share} for (share, decay), p in groups.items()]
    # One kernel for all weights: a fifth of the time, which counts where only a few layers are computed.
    return AdamW(options, lr=0.0, fused=device in ("cpu", "cuda"))


def set_rate(optimiser: AdamW, lr: float) -> None:
    """Set the learning rate of the next step, of which each group takes its share."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["share"]
