"""Several tasks in one model: one plan of what happens at each site, and the weights that are replaced.

At a site the tasks act one after the other, the lower one first. Where two act at the norm that ends a layer, the upper
one reads the output of the lower one and both add to the same sum (MAD-X, §4.1.2). Sparse δs over the same weights add
up. Any two others that write the same weight, a norm for instance, have no meaning together, and are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from adaptree.errors import CompositionError
from adaptree.methods import Action, Before, BeforeNorm, Entry, Method, Params, Plan, Step
from adaptree.methods.method import Inputs

if TYPE_CHECKING:
    from torch import Tensor, nn

    from adaptree.models.sites import Sites

Parts = Sequence[tuple[Method, Params]]
"""Methods with their weights, from the lowest to the topmost."""


def together(sites: Sites, frozen: Params, parts: Parts) -> tuple[Plan, dict[str, Tensor]]:
    """Return the plan and the replaced weights of some methods together."""
    return plan_of(sites, parts), weights_of(sites, frozen, parts)


def weights_of(sites: Sites, frozen: Params, parts: Parts) -> dict[str, Tensor]:
    """Return the tensors that replace the backbone's; raise CompositionError if two methods write the same one."""
    owners: dict[str, Method] = {}
    weights: dict[str, Tensor] = {}
    for method, v in parts:
        if method.standalone and len(parts) > 1:
            raise CompositionError(f"{method.name} does not use the base: there is nothing to put it on.")
        mine = method.weights(sites, {**frozen, **weights}, v)
        for name in (*mine, *method.owned(sites, v)):
            other = owners.setdefault(name, method)
            if other is not method and not (method.adds and other.adds):
                raise _clash(other, method, name)
        weights |= mine
    return weights


def plan_of(sites: Sites, parts: Parts) -> Plan:
    """Return the plan of some methods together, by module path."""
    return _merged([(v, method.plan(sites, v)) for method, v in parts])


def plan_by_row(sites: Sites, parts: Parts) -> Plan | None:
    """Return the plan of some methods whose weights have a row axis; None if the rows of one of them cannot differ."""
    plans = [(v, plan) for method, v in parts if (plan := method.by_row(sites, v)) is not None]
    return _merged(plans) if len(plans) == len(parts) else None


def _merged(plans: Sequence[tuple[Params, Plan]]) -> Plan:
    """Return one plan of several, each with the weights that it was made of."""
    steps: dict[str, list[tuple[bool, Step]]] = {}
    for v, plan in plans:
        replaced = {name.removeprefix("norm.").rpartition(".")[0] for name in v if name.startswith("norm.")}
        for path, entry in plan.items():
            # A task's norm replaces the base's: what acts on its output comes after it.
            here = [(path not in replaced or isinstance(step, Before), step) for step in steps_of(entry)]
            steps.setdefault(path, []).extend(here)
    return {path: _joined(step for _, step in sorted(of, key=_later)) for path, of in steps.items()}


def steps_of(entry: Entry) -> tuple[Step, ...]:
    """Return the steps of a plan's entry, in their order."""
    return entry if isinstance(entry, tuple) else (entry,)


def run_before(steps: Iterable[Before], module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> Inputs | None:
    """Return a module's inputs as these steps change them, one after the other; None if none changes them."""
    changed = None
    for step in steps:
        if (seen := step.look(module, args, kwargs)) is not None:
            changed = args, kwargs = seen
    return changed


def run_after(steps: Iterable[Action], module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    """Return a module's output as these steps change it, one after the other."""
    for step in steps:
        output = step(module, args, output)
    return output


def combine(
    entries: Sequence[Entry],
    before: Callable[[Sequence[Sequence[Before]]], Callable[..., Inputs | None]],
    after: Callable[[Sequence[Sequence[Action]]], Action],
) -> Entry:
    """Return one entry for several plans' entries at a module.

    `before` and `after` make one step of all steps that act on the module's inputs, and of those that act on its
    output; they receive one list of steps for each plan.
    """
    early = [[step for step in steps_of(entry) if isinstance(step, Before)] for entry in entries]
    late = [[step for step in steps_of(entry) if not isinstance(step, Before)] for entry in entries]
    steps: list[Step] = [Before(before(early))] if any(early) else []
    return (*steps, after(late)) if any(late) else tuple(steps)


def _later(step: tuple[bool, Step]) -> bool:
    return step[0]


def _joined(steps: Iterable[Step]) -> Entry:
    """Return steps as a plan's entry; those at the norm that ends a layer become one."""
    joined: list[Step] = []
    for step in steps:
        before = next((i for i, other in enumerate(joined) if isinstance(other, BeforeNorm)), None)
        if isinstance(step, BeforeNorm) and before is not None:
            lower = joined[before]
            assert isinstance(lower, BeforeNorm)
            joined[before] = lower.then(step)
        else:
            joined.append(step)
    return joined[0] if len(joined) == 1 else tuple(joined)


def _clash(first: Method, second: Method, name: str) -> CompositionError:
    names = f"{first.name} and {second.name}" if first.name != second.name else f"both tasks ({first.name})"
    hint = "Sparse δs add up (lt_sft, diff_pruning); bottlenecks without norms stack: pfeiffer, houlsby(norms=false)."
    return CompositionError(f"{names} write the same weight, {name}: together they have no meaning.", hint=hint)
