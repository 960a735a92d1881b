"""The invertible adapter of Pfeiffer et al. 2020, MAD-X, §4.1.3: NICE coupling of the two halves of an embedding.

    o1 = F(e2) + e1        e2 = o2 − G(o1)
    o2 = G(o1) + e2        e1 = o1 − F(e2)

F and G are bottlenecks without a skip, U ReLU(D x), from half the width to a quarter and back. What goes in can be
computed again from what comes out, so that one set of weights serves the input's embeddings and the tied output's.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from adaptree.core import bottleneck

MAPS = ("f", "g")


def init(d: int, *, std: float, generator: torch.Generator | None, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return initial weights near the identity: both maps start as bottlenecks do."""
    half, m = sizes(d)
    maps = {name: bottleneck.init(half, m, std=std, generator=generator, dtype=dtype) for name in MAPS}
    return {f"{name}.{key}": tensor for name, p in maps.items() for key, tensor in p.items()}


def apply(e: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    """(B, T, d) -> (B, T, d): the embeddings, coupled."""
    e1, e2 = e.chunk(2, -1)
    o1 = _map(e2, p, "f") + e1
    o2 = _map(o1, p, "g") + e2
    return torch.cat([o1, o2], -1)


def invert(o: Tensor, p: Mapping[str, Tensor]) -> Tensor:
    """Return the input of `apply` from its output."""
    o1, o2 = o.chunk(2, -1)
    e2 = o2 - _map(o1, p, "g")
    e1 = o1 - _map(e2, p, "f")
    return torch.cat([e1, e2], -1)


def count(d: int) -> int:
    """Two bottlenecks d/2 → d/4 → d/2 with their biases."""
    return len(MAPS) * bottleneck.count(*sizes(d))


def sizes(d: int) -> tuple[int, int]:
    """Return the width of a half, and of the bottleneck of its map."""
    if d % 2:
        raise ValueError(f"a width of {d} has no halves")
    return d // 2, max(1, d // 4)


def _map(x: Tensor, p: Mapping[str, Tensor], name: str) -> Tensor:
    own = {key.removeprefix(f"{name}."): tensor for key, tensor in p.items() if key.startswith(f"{name}.")}
    return bottleneck.branch(x, own, "relu")
