"""The adapter of Houlsby et al. 2019, "Parameter-Efficient Transfer Learning for NLP", as pure functions.

    d → m → d with a nonlinearity between and a skip around:  h + W_up · act(W_down · h + b_down) + b_up      (§2.1)

and its neighbours: the variants of §3.6, Bapna & Firat 2019, He et al. 2022. Each is a line around the same `branch`.

Shapes: B rows, T tokens, d the model's width, m the bottleneck. One task's weights have no row axis; stacked
weights of several tasks have a leading one, one entry per row of the batch, and the same code serves both.
"""

from __future__ import annotations

import math
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
GAINS: Mapping[str, float] = {"gelu": 1.7, "relu": math.sqrt(2), "swish": 1.7, "tanh": 1.0}
"""By how much a map after an activation makes up for what that takes: tanh leaves a small value as it is, relu halves
its square; gelu and swish take a half of a small value, and less of a large one."""
EPSILON = 1e-6  # of the adapter's own layer norm


def branch(x: Tensor, p: Mapping[str, Tensor], activation: str = "gelu") -> Tensor:
    """up(act(down(x))); biases are (1, m) and (1, d), or (B, 1, m) and (B, 1, d) by row."""
    z = ACTIVATIONS[activation](x @ p["down"] + p["down_bias"])  # (B, T, d) -> (B, T, m)
    return z @ p["up"] + p["up_bias"]  # (B, T, m) -> (B, T, d)


def apply(h: Tensor, p: Mapping[str, Tensor], activation: str = "gelu") -> Tensor:
    """Houlsby et al. 2019, §2.1: h + up(act(down(h)))."""
    return h + branch(h, p, activation)


def beside(y: Tensor, x: Tensor, p: Mapping[str, Tensor], activation: str = "relu", scale: float = 1.0) -> Tensor:
    """He et al. 2022, §3.3: y + s · up(act(down(x))), where y = f(x) is what the sublayer makes of its input."""
    return y + scale * branch(x, p, activation)


def norm_first(h: Tensor, p: Mapping[str, Tensor], activation: str = "relu") -> Tensor:
    """Bapna & Firat 2019: h + up(act(down(LN(h)))); the norm is d wide."""
    return h + branch(layer_norm(h, p), p, activation)


def norm_inside(h: Tensor, p: Mapping[str, Tensor], activation: str = "gelu") -> Tensor:
    """Houlsby et al. 2019, §3.6: h + up(act(LN(down(h)))); the norm is m wide, in front of the nonlinearity."""
    z = ACTIVATIONS[activation](layer_norm(h @ p["down"] + p["down_bias"], p))
    return h + (z @ p["up"] + p["up_bias"])


def deep(h: Tensor, p: Mapping[str, Tensor], activation: str = "gelu") -> Tensor:
    """Houlsby et al. 2019, §3.6: h + up(act(mid_n(… act(mid_1(act(down(h)))))))."""
    act = ACTIVATIONS[activation]
    z = act(h @ p["down"] + p["down_bias"])
    for i in range(1, 1 + sum(key.startswith("mid") and not key.endswith("bias") for key in p)):
        z = act(z @ p[f"mid{i}"] + p[f"mid{i}_bias"])  # (B, T, m) -> (B, T, m)
    return h + (z @ p["up"] + p["up_bias"])


def multiply(y: Tensor, x: Tensor, p: Mapping[str, Tensor], activation: str = "gelu") -> Tensor:
    """Houlsby et al. 2019, §3.6, parallel "with a multiplicative interaction": y ⊙ (1 + up(act(down(x)))), y = f(x)."""
    return y * (1 + branch(x, p, activation))


def layer_norm(x: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    """Over the last axis, with the adapter's own scale and shift: (1, n), or (B, 1, n) by row."""
    return torch.addcmul(p["norm_bias"], F.layer_norm(x, x.shape[-1:], eps=EPSILON), p["norm"])


def init(
    d: int,
    m: int,
    *,
    std: float = 1e-2,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Return weights near the identity: zero-mean Gaussian, cut at two standard deviations, and zero biases (§3.6)."""
    return {
        "down": truncated_normal((d, m), std, generator).to(dtype),
        "down_bias": torch.zeros(1, m, dtype=dtype),
        "up": truncated_normal((m, d), std, generator).to(dtype),
        "up_bias": torch.zeros(1, d, dtype=dtype),
    }


def init_norm(n: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return a layer norm, n wide, with one scale for all and no shift."""
    return {"norm": torch.full((1, n), scale, dtype=dtype), "norm_bias": torch.zeros(1, n, dtype=dtype)}


def init_mid(
    m: int,
    maps: int,
    activation: str = "gelu",
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Return `maps` maps m → m between down and up: Gaussian with standard deviation gain/√m, and zero biases.

    Each undoes what the activation before it takes (He et al. 2015), so that gradients reach `down` through several of
    them. `up` alone is small, which is enough to be near the identity.
    """
    std = GAINS[activation] / math.sqrt(m)
    mid: dict[str, Tensor] = {}
    for i in range(1, 1 + maps):
        mid[f"mid{i}"] = (std * torch.randn((m, m), generator=generator)).to(dtype)
        mid[f"mid{i}_bias"] = torch.zeros(1, m, dtype=dtype)
    return mid


def init_like_lora(
    d: int, m: int, *, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Return weights that change nothing: `up` zero, `down` uniform within ±1/√d (He et al. 2022, after LoRA)."""
    zero = init(d, m, std=0.0, dtype=dtype)
    down = (2 * torch.rand((d, m), generator=generator) - 1) / math.sqrt(d)
    return zero | {"down": down.to(dtype)}


def count(d: int, m: int, *, norm: int = 0, maps: int = 0) -> int:
    """Parameters of one module, biases included: 2md + d + m (§2.1), 2n for a norm n wide, m² + m for a map m → m."""
    return 2 * m * d + d + m + 2 * norm + maps * (m * m + m)


def truncated_normal(shape: tuple[int, ...], std: float, generator: torch.Generator | None = None) -> Tensor:
    """Return a zero-mean Gaussian with standard deviation `std` before the cut at ±2 std; std 0 gives zeros."""
    x = torch.empty(shape)
    if std == 0:
        return x.zero_()
    return torch.nn.init.trunc_normal_(x, std=std, a=-2 * std, b=2 * std, generator=generator)
