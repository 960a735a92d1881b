"""A composition that is kept as a task of its own, under a name: what `adaptree compose` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import api
from adaptree import compose as algebra
from adaptree.compose import Average, Drop, Expression, Fuse, Name, Stack
from adaptree.compose.blocks import Block
from adaptree.errors import CompositionError, UsageError
from adaptree.methods import parse as parse_method
from adaptree.methods.layers import parse_layers
from adaptree.methods.sparse import POSITIONS
from adaptree.models.opening import EVALUATED, REBASED, open_task
from adaptree.tasks.names import check_name
from adaptree.tasks.record import FUSES, MADE_OF, NEEDS, ON, SAW, Record
from adaptree.tasks.task import Task
from adaptree.training.parents import Ground, saw

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store

TOLERANCE = 1e-6
_OF_THE_RUN = (ON, FUSES, NEEDS, SAW, REBASED, "insight", "search", "joint")


def compose(
    expression: str | Expression,
    *,
    name: str,
    store: Store | str | Path,
    data: api.Source | None = None,
    base: Base | str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    on_event: Callable[[api.Event], None] = lambda event: None,
    **settings: Any,
) -> Bound:
    """Keep a composition of stored tasks as a new task.

    fuse(…) learns on `data`, with the options of `api.train` as `settings`. Nothing is trained for the others:
    average(…) becomes a task with the mean of the weights, drop(…) one without the weights of some layers, and stack(…)
    one with the weights of its last part, on top of the rest. Without a `base` it is the one of the parts.
    """
    from adaptree.tasks.store import Store

    check_name(name)
    asked = algebra.parse(expression)
    _check(asked, name, data, settings)
    where = store if isinstance(store, Store) else Store(store)
    found = {reference: where[reference] for reference in asked.names}
    pinned = asked.renamed({reference: task.record.reference for reference, task in found.items()})
    wanted = open_task(  # what has no meaning is refused here
        where, pinned.names[0] if isinstance(pinned, Fuse) else pinned, base=base, device=device, threads=threads,
        trust_remote_code=trust_remote_code, allow_pickle=allow_pickle,
    )  # fmt: skip
    base = wanted.base
    if data is not None:
        return api.train(data, name=name, method=pinned, base=base, store=where, on_event=on_event, **settings)
    made = _made(pinned, {task.record.reference: task for task in found.values()}, base)
    came = next((of for task in found.values() if (of := _unscored(task.record, where))), {})
    return base.bind(where.add(_probed(_kept(made, name, pinned, {SAW: saw(found.values()), **came}), base, wanted)))


def made_of(record: Record) -> str:
    """What a task was made of, or fuses; nothing where it was trained by itself."""
    return str(record.extra.get(MADE_OF) or record.extra.get(FUSES) or "")


def _check(asked: Expression, name: str, data: object, settings: Mapping[str, Any]) -> None:
    """Refuse what cannot become a task, or not in this way."""
    if not asked.names:
        raise CompositionError(f"{asked!r} is the bare base: there is nothing to compose.")
    if isinstance(asked, Name):
        raise CompositionError(
            f"there is nothing to compose: '{asked!r}' is one task.",
            hint="Write fuse(…), average(…), stack(…), drop(…).",
        )
    if asked.block in ("average_outputs", "parallel", "rows"):
        raise CompositionError(
            f"{asked.block} has no weights of its own to keep under a name.",
            hint=f'Use "{asked!r}" itself wherever a task\'s name goes.',
        )
    if isinstance(asked, Fuse) and data is None:
        raise CompositionError(
            f"{asked!r} has to be learned.", hint=f'adaptree compose "{asked!r}" --name {name} --train DATA'
        )
    if not isinstance(asked, Fuse) and data is not None:
        raise CompositionError(
            f"{asked!r} has nothing to learn: of the blocks, only fuse has.",
            hint=f'Train a task on top of it: adaptree train DATA --name {name} --on "{asked!r}"',
        )
    if data is None and settings:
        option = next(iter(settings)).replace("_", "-")
        raise UsageError(f"--{option} is for training, and {asked!r} is not trained.", hint="Leave it out.")


def _made(expression: Expression, parts: Mapping[str, Task], base: Base, bare: bool = False) -> Task:
    """The task that an expression makes: its weights, and in its record the method and what it stands on.

    `bare`: what it stands on does not count, as in a stack.
    """
    if isinstance(expression, Name):
        return parts[expression.reference]
    if isinstance(expression, Average):
        return _mean(expression, parts, base, bare)
    if isinstance(expression, Drop):
        return _fewer(expression, parts, base, bare)
    if isinstance(expression, Stack):
        return _raised(expression, parts, base)
    raise CompositionError(
        f"{expression!r} has no weights of its own to keep under a name.",
        hint="It can stand below the last part of a stack.",
    )


def _mean(expression: Average, parts: Mapping[str, Task], base: Base, bare: bool) -> Task:
    """The first part's record with the mean of all weights."""
    composition = algebra.compile_(algebra.stack(expression) if bare else expression, parts, base.device)
    method, v = composition.parts[-1]
    first = composition.task
    assert first is not None
    if isinstance(method, Block):
        raise CompositionError(
            f"{expression!r}: the parts change different weights of the base, and one {first.record.method} cannot.",
            hint="Use the expression itself wherever a task's name goes.",
        )
    return Task(first.record, v, first.parts)


def _fewer(expression: Drop, parts: Mapping[str, Task], base: Base, bare: bool) -> Task:
    """A task of the same method in the layers that are left; what it stands on loses them too."""
    import torch

    from adaptree.models.hooks import price

    if isinstance(inside := expression.inside, Stack):
        return _made(algebra.stack(*(_dropped(each, expression.layers) for each in inside.parts)), parts, base)
    whole = _made(inside, parts, base, bare)
    hooked, method = base.hooked, parse_method(whole.record.method)
    gone = parse_layers(expression.layers, hooked.sites.depth)
    kept = [layer for layer in method.chosen(hooked.sites) if layer not in gone]
    use = "Use the expression itself wherever a task's name goes."
    if not kept:
        raise CompositionError(f"{expression!r} leaves nothing but the head.", hint=use)
    try:
        fewer = parse_method(method, layers=",".join(map(str, kept)))
        names = fewer.init(hooked.sites, hooked.backbone, torch.Generator())
        counts = fewer.count(hooked.sites, hooked.backbone)
    except UsageError as error:
        raise CompositionError(f"{expression!r}: {method.name} cannot be cut to some layers.", hint=use) from error
    head = {key: tensor for key, tensor in whole.weights.items() if key.startswith("head.")}
    if POSITIONS in names or not set(names) <= set(whole.weights):
        raise CompositionError(f"{expression!r}: the weights of {method.name} are not kept layer by layer.", hint=use)
    prices = price(counts, sum(tensor.numel() for tensor in head.values()), hooked.backbone)
    extra = dict(whole.record.extra)
    if extra.get(ON):
        extra[ON] = repr(_dropped(algebra.parse(extra[ON]), expression.layers))
    record = replace(
        whole.record,
        method=str(fewer),
        parameters=prices,
        trained_percent=100 * prices["trained"] / prices["base"],
        extra=extra,
    )
    return Task(record, {key: whole.weights[key] for key in names} | head, whole.parts)


def _dropped(expression: Expression, layers: str) -> Drop:
    """A composition without some layers; one that lacks some already loses these as well."""
    if isinstance(expression, Drop):
        return algebra.drop(expression.inside, layers=f"{expression.layers},{layers}")
    return algebra.drop(expression, layers=layers)


def _raised(expression: Stack, parts: Mapping[str, Task], base: Base) -> Task:
    """The last part on top of the rest, whatever it stood on before."""
    *below, last = _flat(expression)
    top = _made(last, parts, base, bare=True)
    if not below and not top.record.extra.get(ON) and isinstance(last, Name):
        raise CompositionError(f"there is nothing to compose: {expression!r} is '{last!r}'.")
    extra = {key: value for key, value in top.record.extra.items() if key != ON}
    if below:
        extra[ON] = repr(below[0] if len(below) == 1 else algebra.stack(*below))
    return Task(replace(top.record, extra=extra), top.weights, {**top.parts, **parts})


def _flat(expression: Expression) -> list[Expression]:
    """The parts of a stack from the lowest on, those of stacks within it among them."""
    if not isinstance(expression, Stack):
        return [expression]
    return [each for part in expression.parts for each in _flat(part)]


def _unscored(record: Record, store: Store) -> dict[str, Any]:
    """That a part was put into this base from another and never scored here, which holds for what is made of it too."""
    came = record.extra.get(REBASED)
    if came is None or EVALUATED in store.marks(record.reference):
        return {}
    return {REBASED: {**came, "reference": record.reference, "metrics": {}}}


def _kept(made: Task, name: str, pinned: Expression, more: Mapping[str, Any]) -> Task:
    """The task under its own name, without what was said of other weights, and with the tasks that it needs."""
    extra = made.record.extra
    said = {key: extra[key] for key in (ON, FUSES) if extra.get(key)}
    needed = [reference for text in said.values() for reference in algebra.parse(text).names]
    ground = Ground(said, {reference: made.parts[reference] for reference in needed})
    record = replace(
        made.record,
        name=name,
        version=0,
        metrics={},
        intervals={},
        baselines={},
        seconds=0.0,
        settings={},
        history=[],
        versions={},
        created="",
        digest="",
        file_bytes=0,
        extra={
            **{key: value for key, value in extra.items() if key not in _OF_THE_RUN},
            **ground.extra,
            **more,
            MADE_OF: repr(pinned),
        },
    )
    return Task(record, made.weights, ground.tasks)


def _probed(task: Task, base: Base, wanted: Bound) -> Task:
    """The task with its own probe; it has to answer as the expression does."""
    import torch

    inputs = task.record.probe.get("inputs", [])
    logits = base.bind(task).logits(inputs)
    expected = wanted.logits(inputs)
    if len(expected) and (logits - expected).abs().max() > TOLERANCE * expected.abs().max():
        raise CompositionError(
            f"{wanted.composition.expression!r} cannot be kept as one task: it would not answer alike.",
            hint="Use the expression itself wherever a task's name goes.",
        )
    probe = {**task.record.probe, "inputs": inputs, "path": "single", "threads": torch.get_num_threads()}
    return Task(replace(task.record, probe=probe), {**task.weights, "probe.logits": logits}, task.parts)
