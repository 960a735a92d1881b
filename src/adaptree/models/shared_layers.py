"""Several plans over the same inputs: what the lower layers give is computed once for plans that are alike there.

The plans are run in an order that keeps like ones together, so that one output of each layer is all that is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adaptree.kinds import Example, Out
from adaptree.models.forward import infer
from adaptree.models.restart import private_copy

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound

Signature = tuple[Any, ...]
"""What a plan does in each layer: two plans that begin alike give the same states there."""


class SharedLayers:
    """A copy of a base whose lowest layers, if asked to, return what they returned in the run before."""

    def __init__(self, base: Base) -> None:
        self.base, self.hooked = base, private_copy(base.hooked)
        self.same = 0
        """How many of the lowest layers act as in the run before."""
        self._calls: Counter[int] = Counter()
        self._kept: dict[int, list[Any]] = {}
        for layer, path in enumerate(self.hooked.sites.layers):
            module = self.hooked.backbone.get_submodule(path)
            module.forward = self._remembering(layer, module.forward)

    def _remembering(self, layer: int, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return a layer's forward function that gives the earlier output, batch by batch, where it is the same."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            batch = self._calls[layer]
            self._calls[layer] += 1
            if layer < self.same:
                return self._kept[layer][batch]
            if not batch:
                self._kept[layer] = []
            self._kept[layer].append(compute(*args, **kwargs))
            return self._kept[layer][batch]

        return forward

    def compute(self, bound: Bound, examples: Sequence[Example], same: int) -> Out:
        """Return a task's output; `same` of the lowest layers act as in the last call, which had these examples."""
        assert bound.on_base is not None
        plan, v = bound.on_base
        self.same = same
        self._calls.clear()
        self.hooked.bind(plan)
        return infer(self.base, examples, bound.kind, v, None, bound.task.record.pooling, hooked=self.hooked)


def outputs(
    bounds: Sequence[Bound], signatures: Sequence[Signature], parts: Iterator[Sequence[Example]]
) -> Iterator[tuple[Sequence[Example], list[Out]]]:
    """Yield each part of some examples with the output of every task for it.

    The tasks are of one base and kind, and their signatures say what each does in each layer. The first part is also
    computed by some of the tasks alone: where that gives other bits, all tasks are.
    """
    order = sorted(range(len(bounds)), key=lambda i: signatures[i])
    same = [0, *(_alike(bounds, signatures, *pair) for pair in pairwise(order))]
    shared = SharedLayers(bounds[0].base) if _shareable(bounds) else None
    for number, examples in enumerate(parts):
        out: dict[int, Out] = {}
        for place, i in enumerate(order):
            if shared is None:
                out[i] = bounds[i].compute(examples)
                continue
            out[i] = shared.compute(bounds[i], examples, same[place])
            if not number and place in (len(order) // 2, len(order) - 1):
                alone = bounds[i].compute(examples)
                if not _equal(alone, out[i]):
                    shared, out = None, {k: bounds[k].compute(examples) for k in order[: place + 1]}
        yield examples, [out[i] for i in range(len(bounds))]


def _shareable(bounds: Sequence[Bound]) -> bool:
    """Return whether all tasks run on the base's own weights, and each layer of the base runs once in a pass."""
    calls = {site.calls for site in bounds[0].base.hooked.sites.sites}
    return calls == {1} and all(bound.on_base is not None for bound in bounds)


def _alike(bounds: Sequence[Bound], signatures: Sequence[Signature], one: int, other: int) -> int:
    """Return how many of the lowest layers give the same in two tasks; none if they differ outside of the layers."""
    if len({_outside(bounds[i]) for i in (one, other)}) > 1:  # DeBERTa's norm of positions, which all layers read
        return 0
    pairs = zip(signatures[one], signatures[other], strict=True)
    return next((layer for layer, (a, b) in enumerate(pairs) if a != b), len(signatures[one]))


def _outside(bound: Bound) -> frozenset[str]:
    """Return where a task acts outside of the layers."""
    plan = bound.on_base[0] if bound.on_base is not None else {}
    layers = bound.base.hooked.sites.layers
    return frozenset(path for path in plan if not any(f"{path}.".startswith(f"{layer}.") for layer in layers))


def _equal(one: Out, other: Out) -> bool:
    """Return whether two outputs have the same bits."""
    pairs = [(one, other)] if isinstance(one, Tensor) else zip(one, other, strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
