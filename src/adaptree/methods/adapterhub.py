"""What the adapters library computes where it differs from the papers, for tasks that were trained with it.

`hub/interop` reads such tasks, and writes them back. They run, stack and fuse as others do, but `--method` does not
train them: the papers' own forms are there for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.bapna import Bapna
from adaptree.methods.bottleneck import Bottleneck
from adaptree.methods.fusion import Fusion, unfit
from adaptree.methods.ia3 import Ia3
from adaptree.methods.method import BeforeNorm, Entry, Method, Params
from adaptree.methods.parallel import ScaledParallel

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Linear, Norm, Site, Sites


@dataclass(frozen=True, kw_only=True, repr=False)
class LayerAdapter(Bapna):
    """z + W_up ReLU(W_down z) on z, the whole layer's output: its `seq_bn` where a layer does not end with a norm."""

    name: ClassVar[str] = "layer_adapter"
    paper: ClassVar[str] = "adapters 1.x, seq_bn in a pre-norm base"
    trains: ClassVar[str] = "one bottleneck on each layer's output, the head"
    choose: ClassVar[str] = "For tasks of the adapters library."
    alone: ClassVar[bool] = False

    def _initial(self, d: int, m: int, generator: torch.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
        return Bottleneck._initial(self, d, m, generator, dtype)

    def _change(self, h: Tensor, p: Mapping[str, Tensor]) -> Tensor:
        return Bottleneck._change(self, h, p)

    def _size(self, d: int, m: int) -> int:
        return Bottleneck._size(self, d, m)


@dataclass(frozen=True, kw_only=True, repr=False)
class StreamParallel(ScaledParallel):
    """f(LN(x)) + s · W_up ReLU(W_down x): its `par_bn` in a pre-norm layer reads x, the stream before the norm."""

    name: ClassVar[str] = "stream_parallel"
    paper: ClassVar[str] = "adapters 1.x, par_bn in a pre-norm base"
    choose: ClassVar[str] = "For tasks of the adapters library."
    alone: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norms:
            raise MethodError(f"{self.name}: it has no norms of its own.", hint="Leave norms out.")

    def _entrance(self, sites: Sites, site: Site) -> Linear | Norm:
        """Return the norm in front of the feed-forward part, the layer's last; its input is the stream."""
        within = sites.layers[site.layer] + "."
        norms = [norm for norm in sites.norms_within((site.layer,)) if norm.path.startswith(within)]
        if site.closing is not None or not norms:
            raise MethodError(
                f"{self.name}: the layers of '{sites.architecture}' have no norm in front of the feed-forward part.",
                hint="Use scaled_parallel: it is the same there.",
            )
        return norms[-1]


@dataclass(frozen=True, kw_only=True, repr=False)
class Ia3Intermediate(Ia3):
    """l_k ⊙ k, l_v ⊙ v and act(l_ff ⊙ W_up x): its `ia3` scales the feed-forward part before the activation."""

    name: ClassVar[str] = "ia3_intermediate"
    paper: ClassVar[str] = "adapters 1.x, ia3"
    choose: ClassVar[str] = "For tasks of the adapters library."
    alone: ClassVar[bool] = False
    feedforward: ClassVar[str] = "up"


@dataclass(frozen=True, kw_only=True, repr=False)
class BranchFusion(Fusion):
    """r + Σ s_n (b_n V) with s = softmax over n of (h Q + q) · (b_n K): its fusion attends over the branches b_n.

    r is the residual that the adapters add to, h what they read. The paper's own form, `fusion`, attends over whole
    outputs, and V acts on r too.
    """

    name: ClassVar[str] = "branch_fusion"
    paper: ClassVar[str] = "adapters 1.x, AdapterFusion"
    choose: ClassVar[str] = "For tasks of the adapters library."

    def over(self, parts: Sequence[tuple[Method, Params]]) -> Fusion:
        for method, _ in parts:
            if not isinstance(method, LayerAdapter) and (why := unfit(method)):
                raise MethodError(f"{self.name}: {why}.")
        return self._fusing(parts)

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        import torch

        v = super().init(sites, model, generator)
        for site in self._sites(sites):
            v[f"{site.name}.query_bias"] = torch.zeros(1, site.width, dtype=sites.dtype)
        return v

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        counts = super().count(sites, model)
        biases = sum(site.width for site in self._sites(sites))
        return {**counts, "adapters": counts["adapters"] + biases}

    def _beside(self, layer: int, steps: Sequence[BeforeNorm], p: Mapping[str, Tensor]) -> BeforeNorm:
        def change(r: Tensor, h: Tensor) -> Tensor:
            nothing = r.new_zeros(())
            return r + self._fused(layer, h, [step.changes[0](nothing, h) for step in steps], p)

        return BeforeNorm(change)

    def _after(self, layer: int, steps: Sequence[Any], p: Mapping[str, Tensor]) -> Entry:
        def action(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            h, rest = (output[0], output[1:]) if isinstance(output, tuple) else (output, None)
            fused = h + self._fused(layer, h, [step(module, args, h) - h for step in steps], p)
            return fused if rest is None else (fused, *rest)

        return action
