"""LoRA, Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", as pure functions.

    y + (α / r) · x A B      for a linear map x → y, with A (in, r) and B (r, out)      (§4.1)

It is the map of weight W + (α / r) · A B, computed beside W instead of in it. Stacked weights of several tasks have a
leading row axis, (B, in, r) and (B, r, out), one entry per row of x (B, T, in); the same code serves both.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def apply(x: Tensor, y: Tensor, p: Mapping[str, Tensor], *, scale: float, dropout: float = 0.0) -> Tensor:
    """y + scale · dropout(x) A B; dropout acts whenever it is not zero."""
    x = F.dropout(x, dropout) if dropout else x
    return y + (x @ p["A"] @ p["B"]) * scale  # (B, T, in) -> (B, T, r) -> (B, T, out)


def init(
    inputs: int,
    outputs: int,
    rank: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Return initial weights with A Gaussian and B zero, which change nothing (§4.1).

    The paper gives no width for A; N(0, 1 / (3 · in)) has the variance of its code's kaiming_uniform(a=√5).
    """
    A = torch.randn(inputs, rank, generator=generator) / (3 * inputs) ** 0.5
    return {"A": A.to(dtype), "B": torch.zeros(rank, outputs, dtype=dtype)}


def count(inputs: int, outputs: int, rank: int) -> int:
    """Parameters of one map: r · (in + out)."""
    return rank * (inputs + outputs)
