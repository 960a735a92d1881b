"""A low-rank change beside chosen linear maps (Hu et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from adaptree.errors import MethodError, near
from adaptree.methods.method import Action, Before, Method, Params, check_number, warn_if_wide

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Linear, Sites

ROLES = ("query", "key", "value", "output", "gate", "up", "down")
CROSS = tuple(f"cross_{role}" for role in ROLES[:4])


@dataclass(frozen=True, kw_only=True, repr=False)
class Lora(Method):
    """y + (alpha / rank) · x A B on the output of linear maps; A starts Gaussian and B zero: exactly the base.

    Where query, key and value are one fused map (GPT-2, ModernBERT, DeBERTa v1), each of these words means all of it.
    """

    name: ClassVar[str] = "lora"
    main: ClassVar[str] = "rank"
    paper: ClassVar[str] = "Hu et al. 2021, LoRA: Low-Rank Adaptation of Large Language Models"
    trains: ClassVar[str] = "two thin matrices beside chosen linear maps, the head"
    choose: ClassVar[str] = "For decoders and large models: few weights, and any linear map can be chosen."
    lr: ClassVar[float] = 3e-3
    training_only: ClassVar[tuple[str, ...]] = ("dropout",)

    rank: int = 8
    """Rank r of the change."""
    alpha: float = 16.0
    """The change is multiplied by alpha / rank."""
    dropout: float = 0.0
    """Part of the map's input that is dropped on the way to A while training."""
    targets: str = "query+value"
    """Which maps of a layer: query, key, value, output, gate, up, down, joined by +; or all.

    Those of cross attention have cross_ in front."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "rank", self.rank, int, 1)
        check_number(self.name, "alpha", self.alpha, float, 0)
        check_number(self.name, "dropout", self.dropout, float, 0)
        if self.dropout >= 1:
            raise MethodError(f"lora: dropout must be below 1, not {self.dropout!r}.")
        if not isinstance(self.targets, str):
            raise MethodError(f"lora: targets={self.targets!r} cannot be read.", hint="Write query+value, or all.")
        for word in self._words():
            if word not in (*ROLES, *CROSS, "all") or (word == "all" and self.targets.strip() != "all"):
                raise MethodError(
                    f"lora: targets='{self.targets}' names no linear map with '{word}'.",
                    hint=near(word, ROLES) or f"There are: {', '.join(ROLES)}, joined by +; or all.",
                )

    def stacked_as(self) -> Self:
        rank = 4
        while rank < self.rank:
            rank *= 2
        return replace(super().stacked_as(), rank=rank, alpha=self.alpha * rank / self.rank)

    def _words(self) -> list[str]:
        return [word.strip() for word in self.targets.split("+")]

    def _linears(self, sites: Sites) -> list[Linear]:
        """Return the maps that `targets` and `layers` choose."""
        there = {linear.role for linear in sites.linears}
        if not there:
            raise MethodError(
                f"lora: no linear maps are known for '{sites.architecture}'.", hint="Name them in its row."
            )
        wanted = set(there) if self._words() == ["all"] else set(self._words())
        if "qkv" in there and wanted & {"query", "key", "value"}:
            wanted = wanted - {"query", "key", "value"} | {"qkv"}
        for role in sorted(wanted - there):
            raise MethodError(
                f"lora: the layers of '{sites.architecture}' have no linear map '{role}'.",
                hint=f"They have: {', '.join(role for role in (*ROLES, 'qkv') if role in there)}.",
            )
        return [linear for linear in sites.linears_within(self.chosen(sites)) if linear.role in wanted]

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        from adaptree.core import lora

        v: dict[str, Tensor] = {}
        linears = self._linears(sites)
        narrowest = min((min(linear.inputs, linear.outputs) for linear in linears), default=self.rank)
        warn_if_wide(self.name, "rank", self.rank, narrowest)
        for linear in linears:
            new = lora.init(linear.inputs, linear.outputs, self.rank, generator=generator, dtype=sites.dtype)
            v |= {f"{linear.name}.{key}": tensor for key, tensor in new.items()}
        return v

    def plan(self, sites: Sites, v: Params) -> dict[str, Action | Before]:
        return {
            linear.path: self._beside(linear.path, {key: v[f"{linear.name}.{key}"] for key in "AB"})
            for linear in self._linears(sites)
        }

    def _beside(self, path: str, p: Params) -> Action:
        import torch

        from adaptree.core import lora

        def action(module: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
            check_rows(self.name, path, y, p["A"], axes=2)
            # A frozen base is trained in evaluation mode too, and reentrant checkpoints first run without gradients.
            training = torch.is_grad_enabled() or module.training
            dropout = self.dropout if training else 0.0
            return lora.apply(args[0], y, p, scale=self.alpha / self.rank, dropout=dropout)

        return action

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        from adaptree.core import lora

        linears = self._linears(sites)
        return {"adapters": sum(lora.count(linear.inputs, linear.outputs, self.rank) for linear in linears), "norms": 0}


def check_rows(method: str, path: str, y: Tensor, weight: Tensor, axes: int) -> None:
    """Raise MethodError for weights by row where an output has no rows: DeBERTa v2 also maps a table of positions."""
    if weight.dim() > axes and y.shape[0] != weight.shape[0]:
        raise MethodError(
            f"{method}: '{path}' also maps what all rows of a batch share, so its rows cannot be of several tasks.",
            hint="Run one task at a time on this base.",
        )
