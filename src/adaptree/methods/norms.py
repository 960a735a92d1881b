"""The smallest tunings: the norms alone, or nothing but the head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.method import Action, Before, Method, OwnNorm, Params, part

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Norm, Sites


def init(chosen: list[Norm], model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the scale and shift of some of the base's norms."""
    v: dict[str, Tensor] = {}
    for norm in chosen:
        module = model.get_submodule(norm.path)
        v |= {f"norm.{norm.path}.{key}": p.detach().clone() for key, p in module.named_parameters(recurse=False)}
    return v


def plan(chosen: list[Norm], v: Params) -> dict[str, Action | Before]:
    """Return what the task's own scale and shift do in some norms."""
    return {norm.path: _renorm(part(v, f"norm.{norm.path}")) for norm in chosen}


def _renorm(p: Params) -> Action:
    from adaptree.core import norms

    def action(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        return norms.apply(module, args[0], p["weight"], p.get("bias"))

    return OwnNorm(action)


@dataclass(frozen=True, kw_only=True, repr=False)
class Norms(Method):
    """Every LayerNorm of the chosen layers, the embeddings' included, and the head (Houlsby et al. 2019, §3.4)."""

    name: ClassVar[str] = "norms"
    main: ClassVar[str] = "layers"
    paper: ClassVar[str] = "Houlsby et al. 2019, §3.4 (layer normalisation only)"
    trains: ClassVar[str] = "every norm, the head"
    choose: ClassVar[str] = "When kilobytes count; expect less than adapters give."
    lr: ClassVar[float] = 3e-3

    def _norms(self, sites: Sites) -> list[Norm]:
        found = list(sites.norms_within(self.chosen(sites)))
        if not found:
            raise MethodError("norms: the chosen layers of this base have no norms with weights of their own.")
        return found

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        return init(self._norms(sites), model)

    def plan(self, sites: Sites, v: Params) -> dict[str, Action | Before]:
        return plan(self._norms(sites), v)

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        return {"adapters": 0, "norms": sum(norm.size for norm in self._norms(sites))}


@dataclass(frozen=True, kw_only=True, repr=False)
class Head(Method):
    """The base as a fixed extractor of features: only the head is trained."""

    name: ClassVar[str] = "head"
    main: ClassVar[str] = "layers"
    paper: ClassVar[str] = "Houlsby et al. 2019, §1 (feature-based transfer)"
    trains: ClassVar[str] = "the head"
    choose: ClassVar[str] = "As the floor: what the base knows without learning; the fastest to train."
    lr: ClassVar[float] = 1e-2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            raise MethodError("head: it touches no layer.", hint="Leave layers out.")

    def chosen(self, sites: Sites) -> tuple[int, ...]:
        return ()

    def lowest(self, sites: Sites) -> int:
        return sites.depth

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        return {"adapters": 0, "norms": 0}
