"""Projected attention layers, Stickland & Murray 2019, "BERT and PALs", as pure functions.

    TS(h) = V^D · MH(V^E · h)      d → s → d, beside a whole layer; V^E and V^D are shared across layers      (§3.2)

MH is multi-head self-attention of width s with queries, keys and values of its own in each layer, an output projection
only on request. The paper's form is followed: nothing non-linear but the softmax (the authors' code puts a GELU
behind V^D). Stacked weights of several tasks have a leading row axis, and the same code serves both.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def apply(h: Tensor, p: Mapping[str, Tensor], heads: int, mask: Tensor | None = None) -> Tensor:
    """V^D · MH(V^E · h) for h (B, T, d) and a mask as `visible` gives it."""
    B, T, _ = h.shape
    z = _linear(h, p, "encode")  # (B, T, d) -> (B, T, s)
    q, k, v = (_linear(z, p, key).reshape(B, T, heads, -1).transpose(1, 2) for key in ("query", "key", "value"))
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (B, heads, T, s / heads)
    z = z.transpose(1, 2).reshape(B, T, -1)
    z = _linear(z, p, "output") if "output" in p else z
    return _linear(z, p, "decode")  # (B, T, s) -> (B, T, d)


def visible(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a layer's mask as attention takes it, (B, 1, 1 or T, T): booleans, true where seen, or a float to add.

    It comes as None, as booleans or integers (1 is seen), or as a float to add to the scores; (B, T) or more.
    """
    if mask is None:
        return None
    if mask.dim() == 2:
        mask = mask[:, None, None, :]
    elif mask.dim() == 3:
        mask = mask[:, None]
    if mask.is_floating_point():
        return mask.to(dtype).clamp(min=torch.finfo(dtype).min)  # a row of -inf alone would give no number
    seen = mask.bool()
    return seen | ~seen.any(-1, keepdim=True)  # padding that sees nothing sees all: any number will do there


def init(
    d: int,
    s: int,
    layers: int,
    *,
    std: float,
    output: bool = False,
    bias: bool = False,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """Return two shared projections and each layer's attention: Gaussian of BERT's 0.02, V^D of `std`; biases zero."""

    def linear(key: str, inputs: int, outputs: int, std: float = 0.02) -> dict[str, Tensor]:
        weight = (torch.randn(inputs, outputs, generator=generator) * std).to(dtype)
        return {key: weight, **({f"{key}_bias": torch.zeros(1, outputs, dtype=dtype)} if bias else {})}

    shared = linear("encode", d, s) | linear("decode", s, d, std)
    keys = ("query", "key", "value", *(("output",) if output else ()))
    return shared, [{k: t for key in keys for k, t in linear(key, s, s).items()} for _ in range(layers)]


def count(d: int, s: int, layers: int, *, output: bool = False, bias: bool = False) -> int:
    """2ds shared, 3s² a layer (4s² with an output projection), and the biases if any."""
    maps = 4 if output else 3
    return 2 * d * s + layers * maps * s * s + bias * (d + s + layers * maps * s)


def _linear(x: Tensor, p: Mapping[str, Tensor], key: str) -> Tensor:
    y = x @ p[key]
    return y + p[f"{key}_bias"] if f"{key}_bias" in p else y
