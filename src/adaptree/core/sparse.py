"""Sparse fine-tuning as pure functions: θ_task = θ_pretrained + δ, with δ zero almost everywhere.

A δ is kept as whole numbers and values: *positions* in all of a model's parameters laid end to end, rising, and one
value for each. On disk the positions are the gaps between them, seven bits to a byte. The gates are those of Guo et
al. 2021, "Parameter-Efficient Transfer Learning with Diff Pruning", after Louizos et al. 2018.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LOW, HIGH = -1.5, 1.5
"""Where a gate is stretched to before it is cut to [0, 1]: l and r of Guo et al., whose temperature is 1."""


def encode(positions: Tensor) -> Tensor:
    """Return rising positions as bytes: each gap in groups of seven bits, low first, the top bit set if more follow."""
    places = positions.cpu().numpy().astype(np.int64)
    gaps = np.diff(places, prepend=-1) - 1
    if len(gaps) and gaps.min() < 0:
        raise ValueError("positions must rise, from 0 on")
    lengths = np.ones(len(gaps), np.int64)
    for bits in range(7, 63, 7):
        lengths += gaps >= 1 << bits
    owner = np.repeat(np.arange(len(gaps)), lengths)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    more = nth < lengths[owner] - 1
    code = ((gaps[owner] >> (7 * nth)) & 127) | (more << 7)
    return torch.from_numpy(code.astype(np.uint8))


def decode(code: Tensor) -> Tensor:
    """Return the positions that `encode` wrote, as int64 on the code's device."""
    read = code.cpu().numpy()
    ends = np.flatnonzero(read < 128)
    if len(read) and (not len(ends) or ends[-1] != len(read) - 1):
        raise ValueError("the last position is cut off")
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    nth = np.arange(len(read)) - np.repeat(starts, np.diff(ends, prepend=-1))
    gaps = np.add.reduceat((read & 127).astype(np.int64) << (7 * nth), starts) if len(starts) else starts
    return torch.from_numpy(np.cumsum(gaps + 1) - 1).to(code.device)


def largest(score: Tensor, k: int) -> Tensor:
    """Return the positions of the k largest entries, exactly k of them, rising; of equal ones the first."""
    flat = score.detach().cpu().float().numpy()
    if not 0 < k <= len(flat):
        raise ValueError(f"cannot keep {k} of {len(flat)}")
    least = np.partition(flat, len(flat) - k)[len(flat) - k]
    kept = flat > least
    kept[np.flatnonzero(flat == least)[: k - int(kept.sum())]] = True
    return torch.from_numpy(np.flatnonzero(kept)).to(score.device)


def put(weight: Tensor, at: Tensor, values: Tensor) -> Tensor:
    """Return weight + δ, where δ is `values` at the flat positions `at` and zero elsewhere."""
    flat = weight.reshape(-1)
    return flat.index_put((at,), (flat[at] + values).to(weight.dtype)).view_as(weight)


def gate(alpha: Tensor, noise: Tensor | None = None) -> Tensor:
    """z = min(1, max(0, s·(r − l) + l)), s = σ(log u − log(1 − u) + α) (Guo et al., §3.1); without noise u = ½."""
    logits = alpha if noise is None else alpha + noise
    return (torch.sigmoid(logits) * (HIGH - LOW) + LOW).clamp(0, 1)


def noise_like(alpha: Tensor) -> Tensor:
    """log u − log(1 − u) for uniform u, from torch's own generator; u is kept off 0 and 1 as in the authors' code."""
    return torch.rand_like(alpha).clamp_(1e-4, 1 - 1e-4).logit_()


def chance(alpha: Tensor) -> Tensor:
    """P(z > 0) = σ(α − log(−l / r)): summed up, the expected L0 (Guo et al., §3.1)."""
    return torch.sigmoid(alpha - math.log(-LOW / HIGH))
