"""Fine-tuning: the task has whole parameters of its own in the place of the base's. These are the papers' baselines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.method import Method, Params, check_number

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites


@dataclass(frozen=True, kw_only=True, repr=False)
class Full(Method):
    """Every weight of the chosen layers, embeddings included with layer 0; the pooler, which nothing reads, is not."""

    name: ClassVar[str] = "full"
    main: ClassVar[str] = "layers"
    paper: ClassVar[str] = "Devlin et al. 2019, BERT"
    trains: ClassVar[str] = "every weight, the head"
    choose: ClassVar[str] = "As the yardstick, or when a whole model per task is no matter."
    lr: ClassVar[float] = 1e-4
    by_layer: ClassVar[bool] = False

    def _names(self, sites: Sites, names: Iterator[str]) -> list[str]:
        chosen = self.chosen(sites)
        return [name for name in names if not name.startswith("pooler") and sites.layer_of(name) in chosen]

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        own = dict(model.named_parameters())
        return {f"weight.{name}": own[name].detach().clone() for name in self._names(sites, iter(own))}

    def weights(self, sites: Sites, frozen: Params, v: Params) -> dict[str, Tensor]:
        return {name: v[f"weight.{name}"] for name in self._names(sites, iter(frozen))}

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        own = dict(model.named_parameters())
        return {"adapters": sum(own[name].numel() for name in self._names(sites, iter(own))), "norms": 0}


@dataclass(frozen=True, kw_only=True, repr=False)
class Top(Full):
    """Variable fine-tuning: the top n layers and the head (Houlsby et al. 2019, §3.3)."""

    name: ClassVar[str] = "top"
    main: ClassVar[str] = "n"
    paper: ClassVar[str] = "Houlsby et al. 2019, §3.3 (variable fine-tuning)"
    trains: ClassVar[str] = "the top n layers, the head"
    choose: ClassVar[str] = "As the baseline that trades layers for parameters; fast, because backward stops early."

    n: int = 2
    """How many layers from the top."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "n", self.n, int, 1)
        if self.layers is not None:
            raise MethodError("top: n says which layers.", hint="For others: full(layers=3-5).")

    def chosen(self, sites: Sites) -> tuple[int, ...]:
        if self.n > sites.depth:
            raise MethodError(f"top: n={self.n}, and this base has {sites.depth} layers.", hint="full trains them all.")
        return tuple(range(sites.depth - self.n, sites.depth))
