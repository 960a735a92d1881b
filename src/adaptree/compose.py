"""Several tasks' weights in one model: what happens at each site, in order, and which weights stand where.

At a site the tasks act one after the other, the lower one first. Sparse δs over the same weights add up. Any two others
that write the same weight, a norm for instance, have no meaning together, and are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from adaptree.errors import CompositionError
from adaptree.methods import Before, Method, Params, Plan, Step
from adaptree.sites import Sites

if TYPE_CHECKING:
    from torch import Tensor


def together(sites: Sites, frozen: Params, parts: Sequence[tuple[Method, Params]]) -> tuple[Plan, dict[str, Tensor]]:
    """The plan and the replaced weights of some methods at once, from the lowest to the topmost."""
    owners: dict[str, Method] = {}
    weights: dict[str, Tensor] = {}
    steps: dict[str, list[tuple[bool, Step]]] = {}
    for method, v in parts:
        if method.outside and len(parts) > 1:
            raise CompositionError(f"{method.name} leaves the base alone: there is nothing to put it on.")
        mine = method.weights(sites, {**frozen, **weights}, v)
        norms = {name.removeprefix("norm."): name for name in v if name.startswith("norm.")}
        for name in chain(mine, norms):
            other = owners.setdefault(name, method)
            if other is not method and not (method.adds and other.adds):
                raise _clash(other, method, name)
        weights |= mine
        replaced = {name.rpartition(".")[0] for name in norms}
        for path, entry in method.plan(sites, v).items():
            # A task's norm stands in the place of the base's: what acts on its output comes after it.
            here = entry if isinstance(entry, tuple) else (entry,)
            steps.setdefault(path, []).extend((path not in replaced or isinstance(step, Before), step) for step in here)
    return {path: _one_or_more(step for _, step in sorted(of, key=_first)) for path, of in steps.items()}, weights


def _first(step: tuple[bool, Step]) -> bool:
    return step[0]


def _one_or_more(steps: Iterable[Step]) -> Step | tuple[Step, ...]:
    all_ = tuple(steps)
    return all_[0] if len(all_) == 1 else all_


def _clash(first: Method, second: Method, name: str) -> CompositionError:
    names = f"{first.name} and {second.name}" if first.name != second.name else f"both tasks ({first.name})"
    hint = "Sparse δs add up (lt_sft, diff_pruning); bottlenecks without norms stack: pfeiffer, houlsby(norms=false)."
    return CompositionError(f"{names} write the same weight, {name}: together they have no meaning.", hint=hint)
