"""Attention over what several adapters give (Pfeiffer et al. 2021, AdapterFusion, §3.2).

    s = softmax over n of (h Q) · (z_n K)        h: what the adapters read, z_n: what adapter n gives, its skip included
    o = Σ s_n (z_n V)

This is the paper's form: z_n is adapter n's whole output, and o takes its place. The form of the adapters library
attends over branches without their skip, adds the residual to o afterwards, and has biases in Q and K
(methods/adapterhub.py). A bias in K adds the same to every adapter's score, which softmax does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

NOISE = 1e-6
"""Standard deviation of the initial V off its diagonal."""


def init(d: int, *, std: float, generator: torch.Generator | None, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return small random Q and K, and V near the identity: the fusion starts near the mean of the adapters."""
    q, k, noise = (torch.randn((d, d), generator=generator) for _ in range(3))
    value = torch.eye(d) + NOISE * noise * (1 - torch.eye(d))
    return {"query": (std * q).to(dtype), "key": (std * k).to(dtype), "value": value.to(dtype)}


def weights(h: Tensor, z: Tensor, p: Mapping[str, Tensor], counts: Sequence[int] = ()) -> Tensor:
    """Return (B, T, N), how much each adapter counts for each token; `counts`: how often each is present.

    (h Q) · (z_n K) is computed as (h Q Kᵀ) · z_n, once for all n. An adapter that is there c times has c e^s of the
    softmax's sum, which is e^(s + log c).
    """
    query = h @ p["query"]
    if "query_bias" in p:
        query = query + p["query_bias"]
    scores = torch.einsum("...d,n...d->...n", query @ p["key"].T, z)
    if any(count != 1 for count in counts):
        scores = scores + torch.tensor(counts, dtype=scores.dtype, device=scores.device).log()
    return scores.softmax(-1)


def mix(s: Tensor, z: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    """Σ s_n (z_n V), computed as (Σ s_n z_n) V."""
    return torch.einsum("...n,n...d->...d", s, z) @ p["value"]


def distance(p: Mapping[str, Tensor]) -> Tensor:
    """‖V − I‖²: what the regularisation keeps small."""
    value = p["value"]
    return (value - torch.eye(len(value), dtype=value.dtype, device=value.device)).square().sum()


def count(d: int) -> int:
    return 3 * d * d
