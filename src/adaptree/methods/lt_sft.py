"""The weights that moved most in a fine-tuning, trained again from the start (Ansell et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from adaptree.methods.method import Params
from adaptree.methods.sparse import DELTA, POSITIONS, VALUES, Cut, universe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites


@dataclass(frozen=True, kw_only=True, repr=False)
class LotteryTicket(Cut):
    """Fine-tune everything, keep the K weights with the largest |δ|, rewind, and fine-tune only those.

    Norms may move too; the authors' scripts freeze them. Their L1 term, used for languages, is left out.
    """

    name: ClassVar[str] = "lt_sft"
    paper: ClassVar[str] = "Ansell et al. 2022, Composable Sparse Fine-Tuning for Cross-Lingual Transfer"
    trains: ClassVar[str] = "a few weights anywhere in the base, chosen by what moved; the head"
    choose: ClassVar[str] = "For tasks that are added to others, of a language for instance; trains twice."

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        import torch

        frozen = dict(model.named_parameters())
        self.size(sites, frozen)  # raises before the training, not after it
        return {DELTA + name: torch.zeros(frozen[name].shape) for name in self.touched(sites, frozen)}

    def advance(self, sites: Sites, frozen: Params, v: Params, initial: Params) -> dict[str, Tensor]:
        from adaptree.core import sparse

        at = self.cut(sites, frozen, {name: delta.abs() for name, delta in self.delta(v).items()})
        head = {name: tensor for name, tensor in initial.items() if name.startswith("head.")}
        return {POSITIONS: sparse.encode(at), VALUES: at.new_zeros(len(at)).float(), **head}


@dataclass(frozen=True, kw_only=True, repr=False)
class RandomTicket(Cut):
    """The control: as many weights, chosen at random, trained once. A mask that was learned must beat it."""

    name: ClassVar[str] = "rand_sft"
    paper: ClassVar[str] = (
        "Ansell et al. 2022, Composable Sparse Fine-Tuning for Cross-Lingual Transfer (a control for it)"
    )
    trains: ClassVar[str] = "a few random weights anywhere in the base, the head"
    choose: ClassVar[str] = "As the control: what so few weights give when they are chosen at random."
    stages: ClassVar[int] = 1

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        import torch

        from adaptree.core import sparse

        frozen = dict(model.named_parameters())
        may = self.touched(sites, frozen)
        lots = {name: torch.rand(frozen[name].shape, generator=generator) for name in universe(frozen) if name in may}
        at = self.cut(sites, {name: p.cpu() for name, p in frozen.items()}, lots)
        return {POSITIONS: sparse.encode(at), VALUES: torch.zeros(len(at))}
