"""A sparse δ learnt by gates that cost something while they are open (Guo et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from adaptree.methods.method import Params, check_flag, check_number
from adaptree.methods.sparse import DELTA, POSITIONS, VALUES, Cut

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites

GATE, GROUP = "gate.", "group."
ALPHA = 5.0
"""Where log α starts: nearly every gate open (§4.3)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DiffPruning(Cut):
    """δ = z ⊙ w with a hard-concrete gate z for each weight, cut to K in the end and trained on with the mask fixed."""

    name: ClassVar[str] = "diff_pruning"
    paper: ClassVar[str] = "Guo et al. 2021, Parameter-Efficient Transfer Learning with Diff Pruning"
    trains: ClassVar[str] = "a few weights anywhere in the base, chosen by gates; the head"
    choose: ClassVar[str] = "For very small task files, where training may take long; it needs memory, too."

    training_only: ClassVar[tuple[str, ...]] = ("density", "structured", "strength")

    structured: bool = True
    """Whether a whole parameter has a gate as well, times those of its weights (§3.3)."""
    strength: float = 5.0
    """This, times the expected share of gates that are open, is added to the loss. The authors' 42 (1.25e-7 for each
    of BERT-large's 335 million weights, §4.3) closes too many of minilm's within a hundred steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "strength", self.strength, float, 0)
        check_flag(self.name, "structured", self.structured)

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        import torch

        frozen = dict(model.named_parameters())
        self.size(sites, frozen)  # raises before the training, not after it
        names = self.touched(sites, frozen)
        v = {DELTA + name: torch.zeros(frozen[name].shape) for name in names}
        v |= {GATE + name: torch.full(frozen[name].shape, ALPHA) for name in names}
        return v | {GROUP + name: torch.full((1,), ALPHA) for name in names if self.structured}

    def delta(self, v: Params) -> dict[str, Tensor]:
        """Return z ⊙ w: gates are sampled while gradients are recorded, and at their mean otherwise."""
        import torch

        from adaptree.core import sparse

        out = {}
        for name, w in super().delta(v).items():
            gates = [v[kind + name] for kind in (GATE, GROUP) if kind + name in v]
            for alpha in gates:
                w = w * sparse.gate(alpha, sparse.noise_like(alpha) if torch.is_grad_enabled() else None)
            out[name] = w
        return out

    def expected(self, v: Params) -> Tensor:
        """Return the expected number of open gates (§3.1; with groups the product of the two chances, §3.3)."""
        import torch

        from adaptree.core import sparse

        open_ = []
        for name in super().delta(v):
            of_group = sparse.chance(v[GROUP + name]) if GROUP + name in v else 1.0
            open_.append((sparse.chance(v[GATE + name]).sum() * of_group).reshape(()))
        return torch.stack(open_).sum()

    def penalty(self, v: Params) -> Tensor | None:
        """Return the price of the open gates: by their share, so that it is the same on a base of any size."""
        if VALUES in v:
            return None
        gates = sum(alpha.numel() for name, alpha in v.items() if name.startswith(GATE))
        return self.strength * self.expected(v) / gates

    def stops_early(self, v: Params) -> bool:
        """Scores fall while the gates close: that stage is not judged by them."""
        return VALUES in v

    def report(self, v: Params) -> dict[str, float]:
        """Return how many weights of δ are not zero: as the gates expect it, and with the gates at their mean."""
        import torch

        with torch.no_grad():
            if VALUES in v:
                return {"expected_l0": float(len(v[VALUES])), "realised_l0": float(v[VALUES].count_nonzero())}
            realised = sum(int(delta.count_nonzero()) for delta in self.delta(v).values())
            return {"expected_l0": float(self.expected(v)), "realised_l0": float(realised)}

    def advance(self, sites: Sites, frozen: Params, v: Params, initial: Params) -> dict[str, Tensor]:
        """Cut δ to the K largest |δ|; if fewer gates are open, open those that are nearest to it."""
        import torch

        from adaptree.core import sparse

        with torch.no_grad():
            delta = self.delta(v)
            score = {name: d.abs() for name, d in delta.items()}
            if sum(int(d.count_nonzero()) for d in delta.values()) < self.size(sites, frozen):
                closed = {n: v[DELTA + n].abs() * torch.sigmoid(v[GATE + n]) for n in delta}
                score = {n: torch.where(d != 0, torch.inf, closed[n]) for n, d in delta.items()}
            at = self.cut(sites, frozen, score)
            return {POSITIONS: sparse.encode(at), VALUES: self.take(frozen, delta, at).float()}

    def constant_rate(self, name: str) -> float | None:
        """Gates have far to go, from 5 to below 0: always at 0.1, as in the authors' code."""
        return 0.1 if name.startswith((GATE, GROUP)) else None

    def epsilon(self, name: str) -> float:
        """The price of one gate of millions has a gradient of some 1e-9, which the usual ε would swallow."""
        return 1e-15 if name.startswith((GATE, GROUP)) else super().epsilon(name)
