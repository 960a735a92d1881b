"""One adapter per layer, after the feed-forward sublayer (Pfeiffer et al. 2020 and 2021)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.bottleneck import Bottleneck
from adaptree.methods.method import Before, BeforeNorm, Entry, Inputs, Params, check_flag, part

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites

INVERTIBLE = "invertible"


def coupling(v: Params) -> dict[str, Tensor]:
    """Return the weights of a task's invertible part; empty if it has none."""
    return part(v, INVERTIBLE)


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
    choose: ClassVar[str] = "To stack or fuse tasks later, or for half of houlsby's adapters."
    roles: ClassVar[tuple[str, ...]] = ("feedforward",)

    size: int | None = None
    activation: str = "relu"
    invertible: bool = False
    """Whether it couples the embeddings too, which kind mlm inverts before its output layer (MAD-X, §4.1.3)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self.name, "invertible", self.invertible)

    def chosen(self, sites: Sites) -> tuple[int, ...]:
        layers = super().chosen(sites)
        if self.invertible:
            self._check_embeddings(sites, layers)
        return layers

    def _check_embeddings(self, sites: Sites, layers: tuple[int, ...]) -> None:
        """Raise MethodError where the first layer's input is not the embeddings, whole and only once."""
        why = ""
        if sites.sites[0].width % 2:
            why = f"a width of {sites.sites[0].width} has no halves to couple"
        elif any(site.role == "cross" for site in sites.sites):
            why = f"the decoder of {sites.architecture} has embeddings of its own"
        elif any(site.calls > 1 for site in sites.sites):
            why = f"the first layer of {sites.architecture} runs again higher up, where no embeddings go into it"
        elif any(norm.path.startswith("encoder.conv.") for norm in sites.norms):
            why = f"a convolution of this {sites.architecture} reads the embeddings beside the first layer"
        if why:
            raise MethodError(f"{self.name}: invertible has no place here: {why}.", hint="Leave invertible out.")
        if 0 not in layers:
            raise MethodError(
                f"{self.name}: invertible changes what goes into layer 0, and layers='{self.layers}' leaves that out.",
                hint="Leave out the layers (or --fast), or invertible.",
            )

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        v = super().init(sites, model, generator)
        if self.invertible:
            from adaptree.core import invertible

            maps = invertible.init(sites.sites[0].width, std=self.init_std, generator=generator, dtype=sites.dtype)
            v |= {f"{INVERTIBLE}.{key}": tensor for key, tensor in maps.items()}
        return v

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        from adaptree.core import invertible

        counts = super().count(sites, model)
        coupling = invertible.count(sites.sites[0].width) if self.invertible else 0
        return {**counts, "adapters": counts["adapters"] + coupling}

    def plan(self, sites: Sites, v: Params) -> dict[str, Entry]:
        plan = super().plan(sites, v)
        if self.invertible:
            plan[sites.layers[0]] = Before(_coupled(coupling(v)))
        for site in self._sites(sites):
            if site.closing is not None:
                del plan[site.path]
                before = BeforeNorm(self._beside(part(v, site.name)), norm=part(v, f"norm.{site.closing}"))
                plan[site.closing] = (before, plan[site.closing]) if site.closing in plan else before  # type: ignore[assignment]
        return plan

    def _beside(self, p: Mapping[str, Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        from adaptree.core import bottleneck

        return lambda r, h: bottleneck.beside(r, h, p, self.activation)


def _coupled(p: Params) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Inputs]:
    from adaptree.core import invertible

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        if args:
            return (invertible.apply(args[0], p), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": invertible.apply(kwargs["hidden_states"], p)}

    return look
