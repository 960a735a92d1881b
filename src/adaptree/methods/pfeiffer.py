"""One adapter per layer, after the feed-forward sublayer (Pfeiffer et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from adaptree.methods.bottleneck import Bottleneck


@dataclass(frozen=True, kw_only=True, repr=False)
class Pfeiffer(Bottleneck):
    """Half of Houlsby's adapters and no norms of its own, so that tasks can be fused and stacked.

    U(ReLU(D(h))) + h on the feed-forward sublayer's output, before the residual add and the layer's own norm.
    """

    name: ClassVar[str] = "pfeiffer"
    paper: ClassVar[str] = "Pfeiffer et al. 2021, AdapterFusion; 2020, MAD-X (eq. 1)"
    trains: ClassVar[str] = "one bottleneck a layer, the head"
    choose: ClassVar[str] = "To stack or fuse tasks later, or for half the size of houlsby."
    roles: ClassVar[tuple[str, ...]] = ("feedforward",)

    activation: str = "relu"
