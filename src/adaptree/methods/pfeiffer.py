"""One adapter per layer, after the feed-forward sublayer (Pfeiffer et al. 2020 and 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from adaptree.methods.bottleneck import Bottleneck
from adaptree.methods.method import Closing, Entry, Params, part
from adaptree.sites import Sites

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, repr=False)
class Pfeiffer(Bottleneck):
    """U(ReLU(D(h))) + r: half of Houlsby's adapters and no norms of its own, so that tasks can be fused and stacked.

    r is the sum of the feed-forward part and its residual, h is the base's own norm of it, and the result goes through
    that norm again (MAD-X, §4.1; AdapterFusion, A.2: "pretrained layer norm before and after"). Where a layer does not
    end with a norm, both are the feed-forward part's output, before its residual add: the papers have no such base.
    """

    name: ClassVar[str] = "pfeiffer"
    paper: ClassVar[str] = "Pfeiffer et al. 2021, AdapterFusion (A.2); 2020, MAD-X (§4.1)"
    trains: ClassVar[str] = "one bottleneck a layer, the head"
    choose: ClassVar[str] = "To stack or fuse tasks later, or for half the size of houlsby."
    roles: ClassVar[tuple[str, ...]] = ("feedforward",)

    activation: str = "relu"

    def plan(self, sites: Sites, v: Params) -> dict[str, Entry]:
        plan = super().plan(sites, v)
        for site in self._sites(sites):
            if site.closing is not None:
                del plan[site.path]
                before = Closing(self._beside(part(v, site.name)), norm=part(v, f"norm.{site.closing}"))
                plan[site.closing] = (before, plan[site.closing]) if site.closing in plan else before  # type: ignore[assignment]
        return plan

    def _beside(self, p: Mapping[str, Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        from adaptree.core import bottleneck

        return lambda r, h: bottleneck.beside(r, h, p, self.activation)
