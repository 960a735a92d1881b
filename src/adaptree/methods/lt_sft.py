"""The weights that moved most in a fine-tuning, trained again from the start (Ansell et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from adaptree.errors import MethodError
from adaptree.methods.method import Params, check_flag, check_number
from adaptree.methods.sparse import DELTA, POSITIONS, VALUES, Cut, universe

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites


LANGUAGE, LANGUAGE_L1 = "mlm", 0.1
"""The kind that a language is trained by, and the authors' L1 for it; their scripts for other tasks have none."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Ticket(Cut):
    """What the lottery ticket and its control share: what is held back in the training of a language or a task.

    The decoder of a language model, which compares with the base's word embeddings, is always the base's own: δ moves
    the input embeddings alone, and all languages share the decoder.
    """

    training_only: ClassVar[tuple[str, ...]] = (*Cut.training_only, "l1", "norms", "freeze_head")

    l1: float | None = None
    """This, times the mean |δ| over all of the base's weights, is added to the loss. Default: as in the authors'
    scripts 0.1 for a language (kind mlm), and 0 for other tasks."""
    norms: bool = False
    """Whether norms may change as well, also the one in the head of kind mlm."""
    freeze_head: bool = False
    """For kind mlm: whether the head stays as it was pretrained, so that all languages share it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.l1 is not None:
            check_number(self.name, "l1", self.l1, float, 0)
        check_flag(self.name, "norms", self.norms)
        check_flag(self.name, "freeze_head", self.freeze_head)

    def for_kind(self, kind: str) -> Self:
        if self.freeze_head and kind != LANGUAGE:
            raise MethodError(
                f"{self.name}: freeze_head is for kind mlm; a task of kind {kind} has to learn its head.",
                hint="Leave out freeze_head.",
            )
        return self if self.l1 is not None else replace(self, l1=LANGUAGE_L1 if kind == LANGUAGE else 0.0)

    def touched(self, sites: Sites, frozen: Params) -> list[str]:
        norms = () if self.norms else tuple(f"{norm.path}." for norm in sites.norms)
        return [name for name in super().touched(sites, frozen) if not name.startswith(norms)]

    def freezes(self, name: str) -> bool:
        return name.startswith("head.") if self.freeze_head else name.startswith("head.norm.") and not self.norms

    def penalty(self, v: Params) -> Tensor | None:
        """Return l1 times the mean |δ|: of a sparse δ, which is `density` of all, the rest is zero."""
        import torch

        if not self.l1:
            return None
        if VALUES in v:
            return self.l1 * self.density * v[VALUES].abs().mean()
        delta = self.delta(v).values()
        return self.l1 * torch.stack([d.abs().sum() for d in delta]).sum() / sum(d.numel() for d in delta)


@dataclass(frozen=True, kw_only=True, repr=False)
class LotteryTicket(Ticket):
    """Fine-tune everything, keep the K weights with the largest |δ|, rewind, and fine-tune only those."""

    name: ClassVar[str] = "lt_sft"
    paper: ClassVar[str] = "Ansell et al. 2022, Composable Sparse Fine-Tuning for Cross-Lingual Transfer"
    trains: ClassVar[str] = "a few weights anywhere in the base, chosen by what moved; the head"
    choose: ClassVar[str] = "For tasks that are added to others, of a language for instance; trains twice."
    training_only: ClassVar[tuple[str, ...]] = (*Ticket.training_only, "dense_rate")

    dense_rate: float = 0.05
    """Learning rate of the dense δ, relative to `lr`, which the sparse one has. The authors have one rate for both:
    that is 1, with an `lr` of 5e-5."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "dense_rate", self.dense_rate, float, 0)

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        import torch

        frozen = dict(model.named_parameters())
        self.size(sites, frozen)  # raises before the training, not after it
        return {DELTA + name: torch.zeros(frozen[name].shape) for name in self.touched(sites, frozen)}

    def rate(self, name: str) -> float:
        return self.dense_rate if name.startswith(DELTA) else super().rate(name)

    def advance(self, sites: Sites, frozen: Params, v: Params, initial: Params) -> dict[str, Tensor]:
        from adaptree.core import sparse

        at = self.cut(sites, frozen, {name: delta.abs() for name, delta in self.delta(v).items()})
        head = {name: tensor for name, tensor in initial.items() if name.startswith("head.")}
        return {POSITIONS: sparse.encode(at), VALUES: at.new_zeros(len(at)).float(), **head}


@dataclass(frozen=True, kw_only=True, repr=False)
class RandomTicket(Ticket):
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
