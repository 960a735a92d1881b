"""One adapter after each layer, with a layer norm in front (Bapna & Firat 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.methods.bottleneck import Bottleneck
from adaptree.methods.method import Action, Entry, Params, part

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites


@dataclass(frozen=True, kw_only=True, repr=False)
class Bapna(Bottleneck):
    """z + W_up ReLU(W_down LN(z)) on z, the whole layer's output: after the residual add, not before it as Houlsby's.

    The norm is the adapter's own, d wide, so that it fits any layer's scale; the base's norms stay as they are.
    """

    name: ClassVar[str] = "bapna"
    paper: ClassVar[str] = "Bapna & Firat 2019, Simple, Scalable Adaptation for Neural Machine Translation"
    trains: ClassVar[str] = "one bottleneck a layer with a norm in front, the head"
    choose: ClassVar[str] = "For deep or pre-norm bases, whose layers' outputs differ in scale."
    roles: ClassVar[tuple[str, ...]] = ("feedforward",)

    activation: str = "relu"

    def plan(self, sites: Sites, v: Params) -> dict[str, Entry]:
        plan = super().plan(sites, v)
        for site in self._sites(sites):
            del plan[site.path]
            plan[sites.layers[site.layer]] = self._adapt(part(v, site.name))
        return plan

    def _adapt(self, p: Mapping[str, Tensor]) -> Action:
        def action(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            if isinstance(output, tuple):  # some layers give their attention or position bias along
                return (self._change(output[0], p), *output[1:])
            return self._change(output, p)

        return action

    def _initial(self, d: int, m: int, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        from adaptree.core import bottleneck

        return super()._initial(d, m, generator, dtype) | bottleneck.init_norm(d, dtype=dtype)

    def _change(self, h: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        from adaptree.core import bottleneck

        return bottleneck.norm_first(h, p, self.activation)

    def _size(self, d: int, m: int) -> int:
        from adaptree.core import bottleneck

        return bottleneck.count(d, m, norm=d)
