"""AdamW over a task's weights: the method says which of them decay, and how fast each of them learns."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import AdamW

from adaptree.methods import Method
from adaptree.training.distributed import ProcessGroup
from adaptree.training.sharded import is_sharded, norm


def adamw(method: Method, trained: Mapping[str, Tensor], weight_decay: float, device: str) -> AdamW:
    """Return AdamW with a group for each rate, decay and ε; `device` is the type of the weights' device."""
    groups: dict[tuple[float, float | None, float, float, bool], list[Tensor]] = {}
    for name, p in trained.items():
        decay = weight_decay if method.decays(name) else 0.0
        # One kernel takes sharded weights or whole ones, not both.
        key = (method.rate(name), method.constant_rate(name), decay, method.epsilon(name), is_sharded(p))
        groups.setdefault(key, []).append(p)
    options = [
        {"params": p, "weight_decay": decay, "share": share, "constant": constant, "eps": epsilon}
        for (share, constant, decay, epsilon, _), p in groups.items()
    ]
    # One kernel for all weights: a fifth of the time, which counts where only a few layers are computed.
    return AdamW(options, lr=0.0, fused=device in ("cpu", "cuda"))


def set_rate(optimiser: AdamW, lr: float) -> None:
    """Set the learning rate of the next step, of which each group takes its share, unless it has a constant one."""
    for group in optimiser.param_groups:
        group["lr"] = lr * group["share"] if group["constant"] is None else group["constant"]


def clip(method: Method, trained: Mapping[str, Tensor], most: float, group: ProcessGroup) -> None:
    """Scale gradients down to a norm of `most`; weights with a constant rate have a norm of their own.

    So a penalty on Diff Pruning's gates, large as it is, leaves the gradients of δ as they are (as in its code).
    """
    apart = {name for name in trained if method.constant_rate(name) is not None}
    if any(map(is_sharded, trained.values())):
        gradients = [p.grad for p in trained.values() if p.grad is not None]
        if (scale := most / (norm(gradients, group) + 1e-6)) < 1:
            for gradient in gradients:
                gradient.mul_(scale)
        return
    for some in (trained.keys() - apart, apart):
        if some:
            torch.nn.utils.clip_grad_norm_([p for name, p in trained.items() if name in some], most)
