"""What the sparse methods share: the order of the base's parameters, and a δ that is added to them.

The *universe* is all of the backbone's parameters by sorted name, laid end to end, the pooler left out; embeddings are
in it. Positions count in it whatever `layers` is, so that two δs over one base add up. A density is of all that the
base has ('base' in a task's record), pooler included and head not, with or without `layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

from adaptree.errors import MethodError, TaskCorrupt
from adaptree.methods.method import Method, Params, Shapes, check_number

if TYPE_CHECKING:
    from torch import Tensor, nn

    from adaptree.models.sites import Sites

DELTA, VALUES, POSITIONS = "delta.", "sparse.values", "sparse.positions"


@dataclass(frozen=True, kw_only=True, repr=False)
class Sparse(Method):
    """θ + δ in the place of θ, computed before every forward pass, in training and in prediction alike."""

    dynamic: ClassVar[bool] = True
    adds: ClassVar[bool] = True
    by_layer: ClassVar[bool] = False

    def touched(self, sites: Sites, frozen: Params) -> list[str]:
        """Return the names of the parameters that this method may change: those of the chosen layers."""
        chosen = self.chosen(sites)
        return [name for name in universe(frozen) if sites.layer_of(name) in chosen]

    def weights(self, sites: Sites, frozen: Params, v: Params) -> dict[str, Tensor]:
        from adaptree.core import sparse

        if VALUES not in v and POSITIONS not in v:
            delta = self.delta(v)
            return {name: (frozen[name] + delta[name]).to(frozen[name].dtype) for name in self.touched(sites, frozen)}
        out = {}
        values, start = v[VALUES], 0
        names = universe(frozen)
        ends = list(accumulate(frozen[name].numel() for name in names))
        try:
            at = sparse.decode(v[POSITIONS])
        except ValueError as error:
            raise TaskCorrupt(f"the positions of this {self.name} task are damaged: {error}.") from error
        if len(at) != len(values) or (len(at) and int(at[-1]) >= ends[-1]):
            raise TaskCorrupt(f"the positions of this {self.name} task do not fit its values, or the base.")
        for name, end, stop in zip(names, ends, _below(at, ends), strict=True):
            if stop > start:
                here = at[start:stop] - (end - frozen[name].numel())
                out[name] = sparse.put(frozen[name], here, values[start:stop])
            start = stop
        return out

    def delta(self, v: Params) -> dict[str, Tensor]:
        """Return δ for every parameter that is trained densely."""
        return {name.removeprefix(DELTA): tensor for name, tensor in v.items() if name.startswith(DELTA)}

    def decays(self, name: str) -> bool:
        return name.startswith((DELTA, "head.")) and super().decays(name)  # values are of norms and biases too


@dataclass(frozen=True, kw_only=True, repr=False)
class Cut(Sparse):
    """First a dense δ, then only the `density` of its entries that weigh most."""

    main: ClassVar[str] = "density"
    training_only: ClassVar[tuple[str, ...]] = ("density",)
    stages: ClassVar[int] = 2
    lr: ClassVar[float] = 1e-3

    density: float = 0.005
    """The share of the base's parameters that the task changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "density", self.density, float, 0)
        if not 0 < self.density <= 1:
            raise MethodError(
                f"{self.name}: density must be above 0 and at most 1, not {self.density!r}.",
                hint="Half a per cent is 0.005.",
            )

    def size(self, sites: Sites, frozen: Params) -> int:
        """Return K, how many weights are kept; at most all but the pooler's."""
        total = sum(p.numel() for p in frozen.values())
        free = sum(frozen[name].numel() for name in self.touched(sites, frozen))
        k = round(self.density * total)
        if not k:
            raise MethodError(
                f"{self.name}: a density of {self.density:g} keeps none of this base's {total:,} parameters.",
                hint=f"The least is {1 / total:.1g}.",
            )
        if k > free and self.layers is not None:
            raise MethodError(
                f"{self.name}: a density of {self.density:g} is {k:,} weights, and layers {self.layers} "
                f"have only {free:,}.",
                hint=f"Here it can be {free / total:.3g} at most: it is of all that the base has.",
            )
        return min(k, free)

    def rate(self, name: str) -> float:
        """Return a small rate for a dense δ, trained as full fine-tuning is, at 5e-5; a sparse one needs more."""
        return 0.05 if name.startswith(DELTA) else 1.0

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        return {"adapters": self.size(sites, dict(model.named_parameters())), "norms": 0}

    def shapes(self, sites: Sites, model: nn.Module) -> Shapes:
        import torch

        return {POSITIONS: ((None,), torch.uint8), VALUES: ((None,), torch.float32)}

    def problem(self, sites: Sites, model: nn.Module, v: Params) -> str:
        from adaptree.core import sparse

        try:
            at = sparse.decode(v[POSITIONS])
        except ValueError as error:
            return f"its positions are damaged: {error}"
        frozen = dict(model.named_parameters())
        total = sum(frozen[name].numel() for name in universe(frozen))
        if len(at) != len(v[VALUES]):
            return f"it has {len(at):,} positions, and {len(v[VALUES]):,} values"
        rising = bool((at[1:] > at[:-1]).all())
        if len(at) and not (rising and int(at[0]) >= 0 and int(at[-1]) < total):
            return "its positions are not in the base"
        return ""

    def cut(self, sites: Sites, frozen: Params, score: Mapping[str, Tensor]) -> Tensor:
        """Return the positions with the K largest scores among the parameters that may change."""
        import torch

        from adaptree.core import sparse

        names = universe(frozen)
        whole = [score[n].flatten() if n in score else frozen[n].new_full((frozen[n].numel(),), -1.0) for n in names]
        return sparse.largest(torch.cat(whole), self.size(sites, frozen))

    def take(self, frozen: Params, whole: Mapping[str, Tensor], at: Tensor) -> Tensor:
        """Return the entries of tensors, by parameter name, at some positions."""
        import torch

        names = universe(frozen)
        ends = list(accumulate(frozen[name].numel() for name in names))
        stops = _below(at, ends)
        starts = [0, *stops[:-1]]
        parts = [
            whole[name].flatten()[at[start:stop] - (end - frozen[name].numel())]
            for name, end, start, stop in zip(names, ends, starts, stops, strict=True)
            if stop > start
        ]
        return torch.cat(parts)


def changed(frozen: Params, v: Params) -> dict[str, int]:
    """Return how many weights of each of the backbone's parameters a finished task changes."""
    from adaptree.core import sparse

    names = universe(frozen)
    before = _below(sparse.decode(v[POSITIONS]), list(accumulate(frozen[name].numel() for name in names)))
    return {name: stop - start for name, start, stop in zip(names, [0, *before[:-1]], before, strict=True)}


def universe(frozen: Params) -> list[str]:
    """Return the names of the parameters in which positions count, in their order."""
    return [name for name in sorted(frozen) if not name.startswith("pooler")]


def _below(at: Tensor, ends: list[int]) -> list[int]:
    """Return how many positions lie before each end."""
    import torch

    counts: list[int] = torch.searchsorted(at, torch.tensor(ends, device=at.device)).tolist()
    return counts
