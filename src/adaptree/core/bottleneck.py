"""The adapter of Houlsby et al. 2019, "Parameter-Efficient Transfer Learning for NLP", as pure functions.

    d → m → d with a nonlinearity between and a skip around:  h + W_up · act(W_down · h + b_down) + b_up      (§2.1)

Shapes: B rows, T tokens, d the model's width, m the bottleneck. One task's weights have no row axis; stacked
weights of several tasks have a leading one, one entry per row of the batch, and the same code serves both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


def apply(h: Tensor, p: Mapping[str, Tensor], activation: str = "gelu") -> Tensor:
    """h + up(act(down(h))); biases are (1, m) and (1, d), or (B, 1, m) and (B, 1, d) by row."""
    z = ACTIVATIONS[activation](h @ p["down"] + p["down_bias"])  # (B, T, d) -> (B, T, m)
    return h + (z @ p["up"] + p["up_bias"])  # (B, T, m) -> (B, T, d)


def init(
    d: int,
    m: int,
    *,
    std: float = 1e-2,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Near identity at birth: zero-mean Gaussian weights truncated at two standard deviations, zero biases (§3.1)."""
    return {
        "down": truncated_normal((d, m), std, generator).to(dtype),
        "down_bias": torch.zeros(1, m, dtype=dtype),
        "up": truncated_normal((m, d), std, generator).to(dtype),
        "up_bias": torch.zeros(1, d, dtype=dtype),
    }


def count(d: int, m: int) -> int:
    """Parameters of one module, biases included: 2md + d + m (§2.1)."""
    return 2 * m * d + d + m


def truncated_normal(shape: tuple[int, ...], std: float, generator: torch.Generator | None = None) -> Tensor:
    """Zero-mean Gaussian of the given standard deviation before the cut at ±2 std; std 0 gives zeros."""
    x = torch.empty(shape)
    if std == 0:
        return x.zero_()
    return torch.nn.init.trunc_normal_(x, std=std, a=-2 * std, b=2 * std, generator=generator)
