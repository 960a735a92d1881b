"""Keep a composition as a task of its own, under a name (`adaptree compose`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import compose as algebra
from adaptree.compose import Average, Drop, Expression, Fuse, Name, Stack
from adaptree.compose.blocks import Block
from adaptree.data.events import Listener, silent
from adaptree.data.read import Source
from adaptree.errors import CompositionError, UsageError
from adaptree.methods import parse as parse_method
from adaptree.methods.layers import parse_layers
from adaptree.methods.sparse import POSITIONS
from adaptree.models.opening import open_task
from adaptree.tasks.names import check_name
from adaptree.tasks.record import EVALUATED, FUSES, MADE_OF, NEEDS, ON, REBASED, SAW, WARNINGS, Record
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training.package import probe_of
from adaptree.training.parents import Parents, data_seen
from adaptree.training.run import Run

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound

TOLERANCE = 1e-6
"""How far the logits of a kept composition may lie from those of its expression, relative to the largest."""
OF_THE_RUN = (ON, FUSES, NEEDS, SAW, REBASED, WARNINGS, "insight", "search", "joint")
"""Entries of a part's extra that are not true of a task made from it."""


def compose(
    expression: str | Expression,
    *,
    name: str,
    store: Store | str | Path,
    data: Source | None = None,
    base: Base | str | Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    on_event: Listener = silent,
    **options: Any,
) -> Bound:
    """Keep a composition of stored tasks as a new task, on the base of its parts unless another is given.

    fuse(…) is trained on `data`; `options` are those of a `Run`. The others are not trained: average(…) becomes a task
    with the mean of the weights, drop(…) one without the weights of some layers, and stack(…) one with the weights of
    its last part, on top of the rest.
    """
    from adaptree.training.pipeline import train

    check_name(name)
    parsed = algebra.parse(expression)
    _check(parsed, name, data, options)
    store = store if isinstance(store, Store) else Store(store)
    tasks = {reference: store[reference] for reference in parsed.names}
    pinned = parsed.renamed({reference: task.record.reference for reference, task in tasks.items()})
    opened = open_task(  # raises if something is wrong with the expression
        store, pinned.names[0] if isinstance(pinned, Fuse) else pinned, base=base, device=device, threads=threads,
        trust_remote_code=trust_remote_code, allow_pickle=allow_pickle,
    )  # fmt: skip
    if data is not None:
        run = Run.of(data, name=name, method=pinned, base=opened.base, store=store, **options)
        return train(run, on_event)[0]
    made = _made(pinned, {task.record.reference: task for task in tasks.values()}, opened.base)
    rebased = next((of for task in tasks.values() if (of := _unscored(task.record, store))), {})
    kept = _renamed(made, name, pinned, {SAW: data_seen(tasks.values()), **rebased})
    return opened.base.bind(store.add(_probed(kept, opened)))


def made_of(record: Record) -> str:
    """Return the expression that a task was made of, or fuses; empty if it was trained by itself."""
    return str(record.extra.get(MADE_OF) or record.extra.get(FUSES) or "")


def _check(expression: Expression, name: str, data: object, options: Mapping[str, Any]) -> None:
    """Raise CompositionError for an expression that cannot become a task in this way."""
    if not expression.names:
        raise CompositionError(f"{expression!r} is the bare base: there is nothing to compose.")
    if isinstance(expression, Name):
        raise CompositionError(
            f"there is nothing to compose: '{expression!r}' is one task.",
            hint="Write fuse(…), average(…), stack(…), drop(…).",
        )
    if expression.block in ("average_outputs", "parallel", "rows"):
        raise CompositionError(
            f"{expression.block} has no weights of its own to keep under a name.",
            hint=f'Use "{expression!r}" itself wherever a task\'s name goes.',
        )
    if isinstance(expression, Fuse) and data is None:
        raise CompositionError(
            f"{expression!r} has to be learned.", hint=f'adaptree compose "{expression!r}" --name {name} --train DATA'
        )
    if not isinstance(expression, Fuse) and data is not None:
        raise CompositionError(
            f"{expression!r} has nothing to learn: of the blocks, only fuse has.",
            hint=f'Train a task on top of it: adaptree train DATA --name {name} --on "{expression!r}"',
        )
    if data is None and options:
        option = next(iter(options)).replace("_", "-")
        raise UsageError(f"--{option} is for training, and {expression!r} is not trained.", hint="Leave it out.")


def _made(expression: Expression, parts: Mapping[str, Task], base: Base, bare: bool = False) -> Task:
    """Return the task that an expression makes: its weights, and a record with its method and parents.

    With `bare`, the tasks that its parts were trained on are left out, as inside a stack.
    """
    if isinstance(expression, Name):
        return parts[expression.reference]
    if isinstance(expression, Average):
        return _mean(expression, parts, base, bare)
    if isinstance(expression, Drop):
        return _fewer(expression, parts, base, bare)
    if isinstance(expression, Stack):
        return _stacked(expression, parts, base)
    raise CompositionError(
        f"{expression!r} has no weights of its own to keep under a name.",
        hint="It can stand below the last part of a stack.",
    )


def _mean(expression: Average, parts: Mapping[str, Task], base: Base, bare: bool) -> Task:
    """Return a task with the first part's record and the mean of all weights."""
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
    """Return a task of the same method without the dropped layers; the tasks below it lose them too."""
    import torch

    from adaptree.models.hooks import price

    if isinstance(inside := expression.inside, Stack):
        return _made(algebra.stack(*(_dropped(each, expression) for each in inside.parts)), parts, base)
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
    if expression.keep_norms and counts["norms"] < method.count(hooked.sites, hooked.backbone)["norms"]:
        raise CompositionError(
            f"{expression!r}: one {method.name} cannot have norms where it has no adapters.",
            hint=f"{use} Or leave out keep_norms: the norms of these layers go, too.",
        )
    head = {key: tensor for key, tensor in whole.weights.items() if key.startswith("head.")}
    if POSITIONS in names or not set(names) <= set(whole.weights):
        raise CompositionError(f"{expression!r}: the weights of {method.name} are not kept layer by layer.", hint=use)
    prices = price(counts, sum(tensor.numel() for tensor in head.values()), hooked.backbone)
    extra = dict(whole.record.extra)
    if extra.get(ON):
        extra[ON] = repr(_dropped(algebra.parse(extra[ON]), expression))
    record = replace(
        whole.record,
        method=str(fewer),
        parameters=prices,
        trained_percent=100 * prices["trained"] / prices["base"],
        extra=extra,
    )
    return Task(record, {key: whole.weights[key] for key in names} | head, whole.parts)


def _dropped(expression: Expression, as_in: Drop) -> Drop:
    """Return a composition without the layers of another drop(…), in addition to those that it lacks already."""
    if not isinstance(expression, Drop):
        return algebra.drop(expression, layers=as_in.layers, keep_norms=as_in.keep_norms)
    if expression.keep_norms != as_in.keep_norms:
        raise CompositionError(
            f"{as_in!r} cannot be kept as one task: of the layers that it drops, some keep their norms.",
            hint="Use the expression itself wherever a task's name goes.",
        )
    return algebra.drop(expression.inside, layers=f"{expression.layers},{as_in.layers}", keep_norms=as_in.keep_norms)


def _stacked(expression: Stack, parts: Mapping[str, Task], base: Base) -> Task:
    """Return the last part on top of the others, instead of what it was trained on."""
    *below, last = _flat(expression)
    top = _made(last, parts, base, bare=True)
    if not below and not top.record.extra.get(ON) and isinstance(last, Name):
        raise CompositionError(f"there is nothing to compose: {expression!r} is '{last!r}'.")
    extra = {key: value for key, value in top.record.extra.items() if key != ON}
    if below:
        extra[ON] = repr(below[0] if len(below) == 1 else algebra.stack(*below))
    return Task(replace(top.record, extra=extra), top.weights, {**top.parts, **parts})


def _flat(expression: Expression) -> list[Expression]:
    """Return the parts of a stack from the lowest on, with nested stacks unfolded."""
    if not isinstance(expression, Stack):
        return [expression]
    return [each for part in expression.parts for each in _flat(part)]


def _unscored(record: Record, store: Store) -> dict[str, Any]:
    """Return the REBASED entry of a part that was never evaluated on its new base: what is made of it inherits that."""
    rebased = record.extra.get(REBASED)
    if rebased is None or EVALUATED in store.marks(record.reference):
        return {}
    return {REBASED: {**rebased, "reference": record.reference, "metrics": {}}}


def _renamed(made: Task, name: str, pinned: Expression, more: Mapping[str, Any]) -> Task:
    """Return the task under its own name, with its parents and without the history of other weights."""
    extra = made.record.extra
    expressions = {key: extra[key] for key in (ON, FUSES) if extra.get(key)}
    needed = [reference for text in expressions.values() for reference in algebra.parse(text).names]
    parents = Parents(expressions, {reference: made.parts[reference] for reference in needed})
    record = made.record.unscored(
        name=name,
        seconds=0.0,
        settings={},
        extra={
            **{key: value for key, value in extra.items() if key not in OF_THE_RUN},
            **parents.extra,
            **more,
            MADE_OF: repr(pinned),
        },
    )
    return Task(record, made.weights, parents.tasks)


def _probed(task: Task, opened: Bound) -> Task:
    """Return the task with a probe of its own; raise CompositionError unless it predicts as the expression does."""
    probe, tensors = probe_of(opened.base.bind(task), task.record.probe.get("inputs", []))
    logits, expected = tensors["probe.logits"], opened.logits(probe["inputs"])
    if len(expected) and (logits - expected).abs().max() > TOLERANCE * expected.abs().max():
        raise CompositionError(
            f"{opened.composition.expression!r} cannot be kept as one task: its predictions would differ.",
            hint="Use the expression itself wherever a task's name goes.",
        )
    return Task(replace(task.record, probe=probe), {**task.weights, **tensors}, task.parts)
