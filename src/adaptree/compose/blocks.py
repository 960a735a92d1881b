"""The blocks of a composition as methods: each has a plan and weights, as the method of one task has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from adaptree.compose.merge import Parts, combine, plan_of, run_after, run_before, steps_of, weights_of
from adaptree.errors import CompositionError
from adaptree.methods import Action, Before, Entry, Method, OwnNorm, Params, Plan
from adaptree.methods.layers import parse_layers
from adaptree.methods.method import digest_of
from adaptree.methods.pfeiffer import INVERTIBLE

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from adaptree.models.sites import Sites


USE_PARALLEL = "parallel(…) predicts with each."


class Block(Method):
    """A method made of others, with their weights in it."""

    def __init__(self, name: str, parts: Parts, **more: Any) -> None:
        for key, value in {"name": name, "parts": tuple(parts), "layers": None, **more}.items():
            object.__setattr__(self, key, value)

    parts: tuple[tuple[Method, Params], ...]

    def lowest(self, sites: Sites) -> int:
        return min(method.lowest(sites) for method, _ in self.parts)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(str(method) for method, _ in self.parts)})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def norms_of(parts: Parts) -> dict[str, Tensor]:
    """Return the norms among the weights of some parts, which a block of them owns."""
    return {name: tensor for _, v in parts for name, tensor in v.items() if name.startswith("norm.")}


class Dropped(Block):
    """Parts without what they do in some layers; `keep_norms` leaves them their norms there."""

    def __init__(self, parts: Parts, layers: str, keep_norms: bool = False) -> None:
        adds = all(method.adds for method, _ in parts)
        super().__init__("drop", parts, adds=adds, spec=layers, keep_norms=keep_norms)

    spec: str
    keep_norms: bool

    def plan(self, sites: Sites, v: Params) -> Plan:
        gone = parse_layers(self.spec, sites.depth)
        left: dict[str, Entry] = {}
        for path, entry in plan_of(sites, self.parts).items():
            if sites.layer_of(f"{path}.") not in gone:
                left[path] = entry
            elif self.keep_norms and (norms := tuple(step for step in steps_of(entry) if isinstance(step, OwnNorm))):
                left[path] = norms
        return left

    def weights(self, sites: Sites, frozen: Params, v: Params) -> dict[str, Tensor]:
        whole = weights_of(sites, frozen, self.parts)
        return {name: tensor for name, tensor in whole.items() if self._has(sites, name)}

    def owned(self, sites: Sites, v: Params) -> list[str]:
        return [name for name in super().owned(sites, v) if self._has(sites, name)]

    def _has(self, sites: Sites, name: str) -> bool:
        """Return whether the parts still replace a parameter of the backbone, if they did."""
        if sites.layer_of(name) not in parse_layers(self.spec, sites.depth):
            return True
        return self.keep_norms and name.rpartition(".")[0] in {norm.path for norm in sites.norms}

    def left(self, sites: Sites, v: Params) -> Params:
        """Return the predicting task's weights that are left: without layer 0 there is no coupling to invert."""
        if isinstance(inner := self.parts[-1][0], Dropped):
            v = inner.left(sites, v)
        if 0 not in parse_layers(self.spec, sites.depth):
            return v
        return {name: tensor for name, tensor in v.items() if not name.startswith(f"{INVERTIBLE}.")}


class MeanOfWeights(Block):
    """The mean of the parts' changes to the base's weights, where these are in different places, as sparse δs are."""

    def __init__(self, parts: Parts, shares: Sequence[float]) -> None:
        super().__init__("average", parts, adds=all(method.adds for method, _ in parts), shares=tuple(shares))

    shares: tuple[float, ...]

    def weights(self, sites: Sites, frozen: Params, v: Params) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for share, (method, own) in zip(self.shares, self.parts, strict=True):
            for name, tensor in method.weights(sites, frozen, own).items():
                found[name] = found.get(name, frozen[name]) + share * (tensor - frozen[name])
        return found


class MeanOfOutputs(Block):
    """All parts run; each module's output is the mean of theirs. A part without a step there leaves it unchanged."""

    def __init__(self, groups: Sequence[Parts], shares: Sequence[float]) -> None:
        super().__init__("average_outputs", [part for group in groups for part in group])
        object.__setattr__(self, "groups", tuple(groups))
        object.__setattr__(self, "shares", tuple(shares))

    groups: tuple[Parts, ...]
    shares: tuple[float, ...]

    def plan(self, sites: Sites, v: Params) -> Plan:
        plans = [plan_of(sites, group) for group in self.groups]
        return {
            path: combine([plan.get(path, ()) for plan in plans], self._mean_of_inputs, self._mean_of_outputs)
            for path in dict.fromkeys(chain(*plans))
        }

    def weights(self, sites: Sites, frozen: Params, v: Params) -> dict[str, Tensor]:
        for method, own in self.parts:
            if method.weights(sites, frozen, own):
                one = all(method.alike(other) for other, _ in self.parts)
                raise CompositionError(
                    f"{method.name} changes the base's own weights: it gives no output of its own to average.",
                    hint="average(…) takes the mean of the weights." if one else USE_PARALLEL,
                )
        return {}

    def _mean_of_outputs(self, steps: Sequence[Sequence[Action]]) -> Action:
        def mean(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            total: Tensor | None = None
            for share, mine in zip(self.shares, steps, strict=True):
                y = run_after(mine, module, args, output)
                total = share * y if total is None else total + share * y
            assert total is not None
            return total

        return OwnNorm(mean) if all(isinstance(step, OwnNorm) for mine in steps for step in mine) else mean

    def _mean_of_inputs(self, steps: Sequence[Sequence[Before]]) -> Callable[..., Any]:
        def mean(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            changed = [run_before(mine, module, args, kwargs) for mine in steps]
            if not any(changed):
                return None
            inputs = [each or (args, kwargs) for each in changed]
            return (
                tuple(self._mix([one[i] for one, _ in inputs]) for i in range(len(args))),
                {key: self._mix([named[key] for _, named in inputs]) for key in kwargs},
            )

        return mean

    def _mix(self, values: Sequence[Any]) -> Any:
        if all(value is values[0] for value in values) or not hasattr(values[0], "is_floating_point"):
            return values[0]
        return sum(share * value for share, value in zip(self.shares, values, strict=True))


class Raised(Block):
    """A method on top of others, which are frozen: what `train --on` trains."""

    def __init__(self, method: Method, below: Parts, on: str) -> None:
        same = ("main", "lr", "base_dropout", "stages", "standalone", "dynamic", "adds", "layers")
        kept = {key: getattr(method, key) for key in same}
        super().__init__(method.name, [*below, (method, {})], **kept, method=method, below=tuple(below), on=on)

    method: Method
    below: tuple[tuple[Method, Params], ...]
    on: str
    """The expression of the tasks below."""

    def __str__(self) -> str:
        return f"{self.method} on {self.on}"

    def __repr__(self) -> str:
        """Return the spelling and a digest of the weights below: a run over others is another run."""
        return f"{self.method!r} on {self.on}, {digest_of(self.below)}"

    def for_kind(self, kind: str) -> Raised:
        return Raised(self.method.for_kind(kind), self.below, self.on)

    def chosen(self, sites: Sites) -> tuple[int, ...]:
        return self.method.chosen(sites)

    def init(self, sites: Sites, model: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
        return self.method.init(sites, model, generator)

    def plan(self, sites: Sites, v: Params) -> Plan:
        return plan_of(sites, [*self.below, (self.method, v)])

    def weights(self, sites: Sites, frozen: Params, v: Params) -> dict[str, Tensor]:
        return weights_of(sites, frozen, [*self.below, (self.method, v)])

    def count(self, sites: Sites, model: nn.Module) -> dict[str, int]:
        return self.method.count(sites, model)

    def advance(self, sites: Sites, frozen: Params, v: Params, initial: Params) -> dict[str, Tensor]:
        below = {**frozen, **weights_of(sites, frozen, self.below)}
        return self.method.advance(sites, below, v, initial)

    def penalty(self, v: Params) -> Tensor | None:
        return self.method.penalty(v)

    def stops_early(self, v: Params) -> bool:
        return self.method.stops_early(v)

    def report(self, v: Params) -> dict[str, float]:
        return self.method.report(v)

    def rate(self, name: str) -> float:
        return self.method.rate(name)

    def constant_rate(self, name: str) -> float | None:
        return self.method.constant_rate(name)

    def epsilon(self, name: str) -> float:
        return self.method.epsilon(name)

    def freezes(self, name: str) -> bool:
        return self.method.freezes(name)

    def decays(self, name: str) -> bool:
        return self.method.decays(name)
