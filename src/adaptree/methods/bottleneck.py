"""The bottleneck family: one module of core/bottleneck.py at chosen sites, and the task's own norms on request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from adaptree.methods import norms
from adaptree.methods.method import (
    Action,
    Entry,
    Method,
    Params,
    check_choice,
    check_flag,
    check_number,
    part,
    warn_if_wide,
)

STACKED = (8, 16, 32, 48, 64, 96, 128, 192, 256)
"""Sizes that tasks of a smaller size are filled up to in a stack of many; above them, steps of 128."""

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Norm, Site, Sites


@dataclass(frozen=True, kw_only=True, repr=False)
class Bottleneck(Method):
    """A bottleneck on the output of the sublayers in `roles`, before their residual add."""

    main: ClassVar[str] = "size"
    lr: ClassVar[float] = 1e-3
    roles: ClassVar[tuple[str, ...]]
    training_only: ClassVar[tuple[str, ...]] = ("init_std",)
    fills_up: ClassVar[bool] = True
    """Whether more units whose weights are zero change nothing."""

    size: int | None = 64
    """Width m of the bottleneck; none: a sixteenth of the model's width."""
    activation: str = "gelu"
    """gelu, relu, swish or tanh."""
    init_std: float = 1e-2
    """Standard deviation of the initial weights (§3.6; the original code uses 1e-3)."""
    norms: bool = False
    """Whether the task has its own scale and shift in every norm, the embeddings' included (§2.1)."""

    def __post_init__(self) -> None:
        from adaptree.core.bottleneck import ACTIVATIONS

        super().__post_init__()
        if self.size is not None:
            check_number(self.name, "size", self.size, int, 1)
        check_number(self.name, "init_std", self.init_std, float, 0)
        check_choice(self.name, "activation", self.activation, ACTIVATIONS)
        check_flag(self.name, "norms", self.norms)

    def stacked_as(self) -> Self:
        like = super().stacked_as()
        if self.size is None or not self.fills_up:
            return like
        return replace(like, size=next((n for n in STACKED if n >= self.size), -(-self.size // 128) * 128))

    def width(self, site: Site) -> int:
        return self.size or max(1, site.width // 16)

    def _sites(self, sites: Sites) -> list[Site]:
        return [site for site in sites.within(self.chosen(sites)) if site.role in self.roles]

    def _norms(self, sites: Sites) -> list[Norm]:
        return list(sites.norms_within(self.chosen(sites))) if self.norms else []

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        v: dict[str, Tensor] = {}
        places = self._sites(sites)
        warn_if_wide(self.name, "size", self.size or 0, min(site.width for site in places))
        for site in places:
            new = self._initial(site.width, self.width(site), generator, sites.dtype)
            v |= {f"{site.name}.{key}": tensor for key, tensor in new.items()}
        return v | norms.init(self._norms(sites), model)

    def plan(self, sites: Sites, v: Params) -> dict[str, Entry]:
        plan: dict[str, Entry] = {site.path: self._adapt(part(v, site.name)) for site in self._sites(sites)}
        return plan | norms.plan(self._norms(sites), v)

    def _adapt(self, p: Mapping[str, Tensor]) -> Action:
        return lambda module, args, h: self._change(h, p)

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        return {
            "adapters": sum(self._size(site.width, self.width(site)) for site in self._sites(sites)),
            "norms": sum(norm.size for norm in self._norms(sites)),
        }

    # One module, d → m → d: its initial weights, what it does to a sublayer's output h, and its number of weights.
    # A variant that changes the maths changes these three.

    def _initial(self, d: int, m: int, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        from adaptree.core import bottleneck

        return bottleneck.init(d, m, std=self.init_std, generator=generator, dtype=dtype)

    def _change(self, h: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        from adaptree.core import bottleneck

        return bottleneck.apply(h, p, self.activation)

    def _size(self, d: int, m: int) -> int:
        from adaptree.core import bottleneck

        return bottleneck.count(d, m)
