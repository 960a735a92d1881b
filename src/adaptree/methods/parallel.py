"""Adapters beside a sublayer, fed with what the sublayer is fed with (He et al. 2022; Houlsby et al. 2019, §3.6)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.bottleneck import Bottleneck
from adaptree.methods.method import Action, Before, Entry, Params, check_number, part

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Linear, Norm, Site, Sites

# The linear maps that read a sublayer's input, and nothing else: DeBERTa v2's query and key read its positions too.
ENTRANCES: Mapping[str, tuple[str, ...]] = {"attention": ("value", "qkv"), "feedforward": ("up",)}


@dataclass(frozen=True, kw_only=True, repr=False)
class Beside(Bottleneck):
    """f(x) + s · W_up act(W_down x): added to the sublayer's output before the residual add.

    x is what the sublayer's first linear map reads; in a pre-norm layer that is after the norm.
    """

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        self._entrances(sites)
        return super().init(sites, model, generator)

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        self._entrances(sites)
        return super().count(sites, model)

    def plan(self, sites: Sites, v: Params) -> dict[str, Entry]:
        plan = super().plan(sites, v)
        for site, entrance in self._entrances(sites):
            plan[entrance.path], plan[site.path] = self._pair(part(v, site.name))
        return plan

    def _pair(self, p: Mapping[str, Tensor]) -> tuple[Before, Action]:
        """Return a step that keeps the sublayer's input, and one that adds the adapter's branch of it to the output."""
        seen = threading.local()  # one plan may run in two threads, and a checkpoint's recompute in a third

        def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen.x = args[0] if args else next(iter(kwargs.values()))

        def add(module: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
            x: Tensor = seen.x
            del seen.x
            return self._join(y, x, p)

        return Before(look), add

    def _join(self, y: Tensor, x: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        """Return the sublayer's output y joined with the adapter's branch of the sublayer's input x."""
        from adaptree.core import bottleneck

        return bottleneck.beside(y, x, p, self.activation)

    def _entrances(self, sites: Sites) -> list[tuple[Site, Linear | Norm]]:
        """Return each site with the module that reads what its adapter reads: the sublayer's first linear map."""
        return [(site, self._entrance(sites, site)) for site in self._sites(sites)]

    def _entrance(self, sites: Sites, site: Site) -> Linear | Norm:
        if site.role == "cross":
            raise MethodError(
                f"{self.name}: layer {site.layer} of '{sites.architecture}' has cross attention, which reads two "
                "inputs: the paper names none for an adapter beside it.",
                hint="Choose the encoder's layers with layers=, or the method parallel_adapter (feed-forward only).",
            )
        roles = ENTRANCES[site.role]
        for linear in sites.linears_within((site.layer,)):
            if linear.role in roles and linear.inputs == site.width:
                return linear
        raise MethodError(
            f"{self.name}: the row of sites for '{sites.architecture}' names no linear map {' or '.join(roles)} of "
            f"layer {site.layer}, so the input of its {site.role} sublayer is not known.",
            hint=f"Name it in the row: LayerStack(…, linears={{'{roles[-1]}': '…'}}).",
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ParallelAdapter(Beside):
    """A bottleneck beside the feed-forward sublayer: FFN(x) + W_up ReLU(W_down x)."""

    name: ClassVar[str] = "parallel_adapter"
    aliases: ClassVar[tuple[str, ...]] = ("parallel",)  # parallel(a, b) is a composition
    paper: ClassVar[str] = "He et al. 2022, Towards a Unified View of Parameter-Efficient Transfer Learning (§3.3)"
    trains: ClassVar[str] = "one bottleneck beside each feed-forward part, the head"
    choose: ClassVar[str] = "He et al. found it better than adapters in sequence of the same size."
    roles: ClassVar[tuple[str, ...]] = ("feedforward",)

    activation: str = "relu"


@dataclass(frozen=True, kw_only=True, repr=False)
class ScaledParallel(ParallelAdapter):
    """A parallel adapter times s, exactly the base at first: FFN(x) + s · W_up ReLU(W_down x), W_up = 0 as in LoRA."""

    name: ClassVar[str] = "scaled_parallel"
    paper: ClassVar[str] = "He et al. 2022, Towards a Unified View of Parameter-Efficient Transfer Learning (§3.3)"
    choose: ClassVar[str] = "He et al. found it the best use of a few per cent in the feed-forward part."
    init_std: ClassVar[float] = 0.0  # type: ignore[misc]  # no field: up starts at zero, down as LoRA's

    scale: float = 4.0
    """The factor s of what is added."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "scale", self.scale, float, 0)
        if self.scale == 0:
            raise MethodError(f"{self.name}: scale must be more than 0: the adapters would add nothing.")

    def _join(self, y: Tensor, x: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        from adaptree.core import bottleneck

        return bottleneck.beside(y, x, p, self.activation, self.scale)

    def _initial(self, d: int, m: int, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        from adaptree.core import bottleneck

        return bottleneck.init_like_lora(d, m, generator=generator, dtype=dtype)


@dataclass(frozen=True, kw_only=True, repr=False)
class HoulsbyParallel(Beside):
    """Houlsby's adapters beside both sublayers instead of after them (§3.6: "in parallel to the main layers")."""

    name: ClassVar[str] = "houlsby_parallel"
    paper: ClassVar[str] = "Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP (§3.6)"
    trains: ClassVar[str] = "two bottlenecks beside each layer's parts, every norm, the head"
    choose: ClassVar[str] = "To repeat §3.6, or to put parallel adapters beside attention too."
    roles: ClassVar[tuple[str, ...]] = ("attention", "cross", "feedforward")

    norms: bool = True


@dataclass(frozen=True, kw_only=True, repr=False)
class HoulsbyMultiplicative(HoulsbyParallel):
    """f(x) ⊙ (1 + W_up act(W_down x)): beside both sublayers, scaling what they give instead of adding to it.

    The paper says only "in parallel to the main layers, and possibly with a multiplicative interaction"; the formula is
    our reading of it.
    """

    name: ClassVar[str] = "houlsby_multiplicative"
    paper: ClassVar[str] = "Houlsby et al. 2019, Parameter-Efficient Transfer Learning for NLP (§3.6)"
    trains: ClassVar[str] = "two multiplying bottlenecks beside each layer's parts, every norm, the head"
    choose: ClassVar[str] = "To repeat §3.6; the paper saw no gain."

    def _join(self, y: Tensor, x: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        from adaptree.core import bottleneck

        return bottleneck.multiply(y, x, p, self.activation)
