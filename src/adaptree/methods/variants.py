"""The variants that Houlsby et al. 2019 tried in §3.6 and found no better; each changes the maths or the places.

Other activations are a field of every bottleneck; adapters in parallel, multiplying ones too, are in parallel.py.
Batch norm inside is left out: its running statistics would have to be task state that ignores the padding, and mixed
batches would blur them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.houlsby import Houlsby
from adaptree.methods.method import check_number

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from adaptree.models.sites import Site

_PAPER = "Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP (§3.6)"


@dataclass(frozen=True, kw_only=True, repr=False)
class HoulsbyNorm(Houlsby):
    """h + W_up act(LN(W_down h)): a layer norm inside, m wide, between the linear map and the nonlinearity.

    The paper says only "adding a … layer normalization to the adapter"; this is where its alternative, batch norm,
    usually stands. In front and d wide it would be Bapna's.
    """

    name: ClassVar[str] = "houlsby_norm"
    paper: ClassVar[str] = _PAPER
    trains: ClassVar[str] = "two bottlenecks a layer with a norm inside, every norm, the head"
    fills_up: ClassVar[bool] = False
    choose: ClassVar[str] = "To repeat §3.6; the paper saw no gain."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size == 1:
            raise MethodError("houlsby_norm: size must be at least 2: a norm over one number is always zero.")

    def width(self, site: Site) -> int:
        return max(2, super().width(site))

    def _initial(self, d: int, m: int, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        from adaptree.core import bottleneck

        # As large as down(h) is for an h of unit entries: with a scale of one it would not start near the identity.
        norm = bottleneck.init_norm(m, scale=self.init_std * math.sqrt(d), dtype=dtype)
        return super()._initial(d, m, generator, dtype) | norm

    def _change(self, h: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        from adaptree.core import bottleneck

        return bottleneck.norm_inside(h, p, self.activation)

    def _size(self, d: int, m: int) -> int:
        from adaptree.core import bottleneck

        return bottleneck.count(d, m, norm=m)


@dataclass(frozen=True, kw_only=True, repr=False)
class HoulsbyDeep(Houlsby):
    """Adapters with more than one hidden layer: d → m → … → m → d, each followed by the nonlinearity but the last."""

    name: ClassVar[str] = "houlsby_deep"
    paper: ClassVar[str] = _PAPER
    trains: ClassVar[str] = "two deeper bottlenecks a layer, every norm, the head"
    choose: ClassVar[str] = "To repeat §3.6; the paper saw no gain."

    depth: int = 2
    """Hidden layers in an adapter; houlsby's own has one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "depth", self.depth, int, 2)

    def _initial(self, d: int, m: int, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        from adaptree.core import bottleneck

        bottom = super()._initial(d, m, generator, dtype)
        return bottom | bottleneck.init_mid(m, self.depth - 1, self.activation, generator=generator, dtype=dtype)

    def _change(self, h: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        from adaptree.core import bottleneck

        return bottleneck.deep(h, p, self.activation)

    def _size(self, d: int, m: int) -> int:
        from adaptree.core import bottleneck

        return bottleneck.count(d, m, maps=self.depth - 1)


@dataclass(frozen=True, kw_only=True, repr=False)
class HoulsbyAttention(Houlsby):
    """Adapters after attention only (§3.6: "inserting adapters only inside the attention layer")."""

    name: ClassVar[str] = "houlsby_attention"
    paper: ClassVar[str] = _PAPER
    trains: ClassVar[str] = "one bottleneck after each attention, every norm, the head"
    choose: ClassVar[str] = "To see what attention's adapters do alone."
    roles: ClassVar[tuple[str, ...]] = ("attention", "cross")


@dataclass(frozen=True, kw_only=True, repr=False)
class HoulsbyFeedforward(Houlsby):
    """Adapters after the feed-forward part only: the other half of "only inside the attention layer"."""

    name: ClassVar[str] = "houlsby_feedforward"
    paper: ClassVar[str] = "Houlsby et al. 2019 (the counterpart of §3.6's attention only)"
    trains: ClassVar[str] = "one bottleneck after each feed-forward part, every norm, the head"
    choose: ClassVar[str] = "To see what the feed-forward part's adapters do alone."
    roles: ClassVar[tuple[str, ...]] = ("feedforward",)
