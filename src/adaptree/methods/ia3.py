"""Learned scales of keys, values and feed-forward activations (Liu et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from adaptree.errors import MethodError
from adaptree.methods.lora import check_rows
from adaptree.methods.method import Action, Before, Method, Params, check_number

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Linear, Sites

THREE_BLOCKS = ("gpt2", "modernbert")
"""Where a fused map gives all queries, then all keys, then all values."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Ia3(Method):
    """l_k ⊙ k and l_v ⊙ v in self- and cross-attention, down(l_ff ⊙ x) in the feed-forward part; scales start at 1."""

    name: ClassVar[str] = "ia3"
    main: ClassVar[str] = "scale_init"
    paper: ClassVar[str] = "Liu et al. 2022, Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper (§3.3)"
    trains: ClassVar[str] = "three vectors of scales a layer, the head"
    choose: ClassVar[str] = "For the fewest weights: a few examples, or thousands of tasks."
    lr: ClassVar[float] = 1e-2
    training_only: ClassVar[tuple[str, ...]] = ("scale_init",)
    feedforward: ClassVar[str] = "down"
    """Which map of the feed-forward part: `down`, whose input is scaled, or `up`, whose output is."""

    scale_init: float = 1.0
    """Initial value of every scale; 1 is exactly the base."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, "scale_init", self.scale_init, float, 0)

    def decays(self, name: str) -> bool:
        """Return False: a scale that decays goes to zero, not to the base."""
        return False

    def _linears(self, sites: Sites) -> dict[str, list[Linear]]:
        """Return the maps it acts at, by role: key and value, or qkv; and that of the feed-forward part."""
        found: dict[str, list[Linear]] = {"key": [], "value": [], "qkv": [], self.feedforward: []}
        for linear in sites.linears:
            if (role := linear.role.removeprefix("cross_")) in found:
                found[role].append(linear)
        kind = sites.architecture
        if not found[self.feedforward] or not (found["qkv"] or (found["key"] and found["value"])):
            raise MethodError(
                f"ia3: no key, value and {self.feedforward} maps are known for '{kind}'.",
                hint="Name them in its row, as linears.",
            )
        if found["qkv"] and kind not in THREE_BLOCKS:
            why = (
                "interleaves them head by head and adds the values' bias outside the map"
                if kind == "deberta"
                else "may order them in any way"
            )
            raise MethodError(
                f"ia3: '{kind}' makes keys and values in one fused map, which {why}.", hint="Use lora or an adapter."
            )
        chosen = self.chosen(sites)
        return {role: [linear for linear in linears if linear.layer in chosen] for role, linears in found.items()}

    def _widths(self, sites: Sites) -> dict[str, int]:
        """Return the length of each vector, by its name."""
        at = self._linears(sites)
        widths = {f"{linear.name}.scale": linear.outputs for linear in (*at["key"], *at["value"])}
        for linear in at["qkv"]:
            widths |= {f"{linear.layer}.{role}.scale": linear.outputs // 3 for role in ("key", "value")}
        inner = "inputs" if self.feedforward == "down" else "outputs"
        return widths | {f"{linear.name}.scale": getattr(linear, inner) for linear in at[self.feedforward]}

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        import torch

        widths = self._widths(sites)
        return {name: torch.full((width,), float(self.scale_init), dtype=sites.dtype) for name, width in widths.items()}

    def plan(self, sites: Sites, v: Params) -> dict[str, Action | Before]:
        at = self._linears(sites)
        plan: dict[str, Action | Before] = {
            linear.path: self._output(linear.path, v[f"{linear.name}.scale"]) for linear in (*at["key"], *at["value"])
        }
        for linear in at["qkv"]:
            plan[linear.path] = _fused(v[f"{linear.layer}.key.scale"], v[f"{linear.layer}.value.scale"])
        for linear in at[self.feedforward]:
            scale = v[f"{linear.name}.scale"]
            plan[linear.path] = _input(scale) if self.feedforward == "down" else self._output(linear.path, scale)
        return plan

    def _output(self, path: str, scale: Tensor) -> Action:
        def action(module: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
            check_rows(self.name, path, y, scale, axes=1)
            return y * scale  # (B, T, d) * (d,), or * (B, 1, d) by row

        return action

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        return {"adapters": sum(self._widths(sites).values()), "norms": 0}


def _fused(key: Tensor, value: Tensor) -> Action:
    import torch

    def action(module: nn.Module, args: tuple[Any, ...], y: Tensor) -> Tensor:
        return y * torch.cat([torch.ones_like(key), key, value], -1)

    return action


def _input(scale: Tensor) -> Before:
    return Before(lambda module, args, kwargs: ((args[0] * scale, *args[1:]), kwargs))
