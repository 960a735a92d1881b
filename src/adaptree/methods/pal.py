"""A small attention layer beside each layer, between two shared projections (Stickland & Murray 2019)."""

from __future__ import annotations

import inspect
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.method import Action, Before, Method, Params, check_flag, check_number, warn_if_wide

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Site, Sites

ENCODERS = (
    "bert", "roberta", "xlm-roberta", "electra", "distilbert", "albert", "mpnet", "deberta", "deberta-v2", "modernbert",
)  # fmt: skip
"""Encoders whose layers get the padding mask, and attend in both directions."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Pal(Method):
    """V^D · MH(V^E · h) of a layer's input h, added to its feed-forward sublayer's output, before the final norm.

    The attention sees what the layer's own does: no padding, and only the window in ModernBERT's local layers.
    """

    name: ClassVar[str] = "pal"
    main: ClassVar[str] = "size"
    paper: ClassVar[str] = "Stickland & Murray 2019, BERT and PALs: Projected Attention Layers (§3.2)"
    trains: ClassVar[str] = "a small attention beside each layer, two projections shared by all, the head"
    choose: ClassVar[str] = "On encoders, where tokens must be related anew and not only each one changed."
    lr: ClassVar[float] = 1e-3
    training_only: ClassVar[tuple[str, ...]] = ("init_std",)

    size: int = 204
    """Width s of the attention, a multiple of heads."""
    heads: int = 12
    """Heads of the attention (12 in the paper; 6 in the authors' code)."""
    output: bool = False
    """Whether the attention has an output projection of its own."""
    bias: bool = False
    """Whether its linear maps have biases."""
    init_std: float = 0.02
    """Standard deviation of the initial V^D: small, so that the layer is near the base; 0 is exactly the base."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "size", self.size, int, 1)
        check_number(self.name, "heads", self.heads, int, 1)
        check_number(self.name, "init_std", self.init_std, float, 0)
        check_flag(self.name, "output", self.output)
        check_flag(self.name, "bias", self.bias)
        if self.size % self.heads:
            raise MethodError(
                f"pal: size {self.size} is not a multiple of {self.heads} heads.",
                hint=f"Write pal(size={-(-self.size // self.heads) * self.heads}), or other heads.",
            )

    def _check(self, sites: Sites, model: nn.Module) -> None:
        config: Any = model.config
        if sites.architecture not in ENCODERS or getattr(config, "is_decoder", False):
            raise MethodError(
                f"pal: the layers of '{sites.architecture}' are not those of an encoder that gets the padding mask.",
                hint=f"It is for: {', '.join(ENCODERS)}.",
            )
        if getattr(config, "chunk_size_feed_forward", 0):
            raise MethodError(
                "pal: this base runs its feed-forward part in pieces of a text, and the attention needs the whole.",
                hint="Set config.chunk_size_feed_forward = 0.",
            )

    def _sites(self, sites: Sites) -> list[Site]:
        return [site for site in sites.within(self.chosen(sites)) if site.role == "feedforward"]

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        from adaptree.core import pal

        self._check(sites, model)
        places = self._sites(sites)
        warn_if_wide(self.name, "size", self.size, places[0].width)
        shared, own = pal.init(
            places[0].width, self.size, len(places), std=self.init_std, output=self.output, bias=self.bias,
            generator=generator, dtype=sites.dtype,
        )  # fmt: skip
        v = {f"shared.{key}": tensor for key, tensor in shared.items()}
        for site, new in zip(places, own, strict=True):
            v |= {f"{site.layer}.pal.{key}": tensor for key, tensor in new.items()}
        return v

    def plan(self, sites: Sites, v: Params) -> dict[str, Action | Before]:
        plan: dict[str, Action | Before] = {}
        for site in self._sites(sites):
            own = ("shared.", f"{site.layer}.pal.")
            p = {name.rpartition(".")[2]: tensor for name, tensor in v.items() if name.startswith(own)}
            plan |= self._beside(p, sites.architecture, sites.layers[site.layer], site.path)
        return plan

    def _beside(self, p: Params, architecture: str, layer: str, output: str) -> dict[str, Action | Before]:
        """Return the steps that keep a layer's input and mask, and the one that adds the attention over them.

        The input is read off the layer's own parts, not off the layer: what is recomputed for a checkpoint is the
        layer's body, and it must find its own input again.
        """
        from adaptree.core import pal

        kept = threading.local()

        def keep_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept.h = args[0]

        def keep_mask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
            kept.mask = bound.get("attention_mask")

        def keep_both(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            keep_input(module, args, kwargs)
            keep_mask(module, args, kwargs)

        def action(module: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
            h, mask = kept.h, kept.mask
            del kept.h, kept.mask
            return y + pal.apply(h, p, self.heads, pal.visible(mask, h.dtype))

        if architecture == "modernbert":  # a norm is in front of its attention
            keep = {f"{layer}.attn_norm": Before(keep_input), f"{layer}.attn": Before(keep_mask)}
        else:
            keep = {f"{layer}.attention": Before(keep_both)}
        return {**keep, output: action}

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        from adaptree.core import pal

        self._check(sites, model)
        places = self._sites(sites)
        n = pal.count(places[0].width, self.size, len(places), output=self.output, bias=self.bias)
        return {"adapters": n, "norms": 0}
