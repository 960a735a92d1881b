"""Look up the tasks of an expression, and turn its blocks into methods with their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from adaptree import kinds
from adaptree.compose.blocks import USE_PARALLEL, Dropped, MeanOfOutputs, MeanOfWeights, norms_of
from adaptree.compose.expression import Average, AverageOutputs, Drop, Expression, Fuse, Name, Stack, parse
from adaptree.compose.merge import Parts
from adaptree.errors import CompositionError, TaskCorrupt, TaskNotFound, near
from adaptree.kinds.kind import DENSE
from adaptree.methods import Method, Params
from adaptree.methods import parse as parse_method
from adaptree.tasks.record import FUSES, ON
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from torch import Tensor


USE_OUTPUTS = "average_outputs(…) takes the mean of their outputs."


class Tasks(Protocol):
    """Where tasks are found by name: a store, or a dict of them."""

    def __getitem__(self, reference: str, /) -> Task: ...


@dataclass(frozen=True)
class Composition:
    """A compiled expression: what acts in the base, and which task predicts with which weights."""

    expression: Expression
    parts: Parts
    task: Task | None
    """The task that predicts: its kind, labels and settings count. None for the bare base."""
    v: Params
    """The weights of that task, its head among them."""
    tasks: tuple[Task, ...]
    """All tasks that take part."""


Check = Callable[[Task], None]
"""Called with each task before its weights are used; it raises an error if the task cannot be."""


def compile_(
    expression: str | Expression, tasks: Tasks, device: str = "cpu", check: Check = lambda task: None
) -> Composition:
    """Compile an expression that has one prediction for each input."""
    return _Compiler(tasks, device, check).read(parse(expression), bare=False)


def of_task(
    task: Task, *, on: Sequence[Task] | None = None, device: str = "cpu", check: Check = lambda task: None
) -> Composition:
    """Return a task on top of what it was trained on, or of the tasks in `on`."""
    return _Compiler({}, device, check).of_task(task, Name(task.record.name), on)


def own(task: Task, device: str = "cpu") -> tuple[Method, Params]:
    """Return a task's method and weights; the method of a fused task includes the adapters that it attends over."""
    return method_of(task, device), {name: tensor.to(device) for name, tensor in task.weights.items()}


def method_of(task: Task, device: str = "cpu") -> Method:
    """Return a task's method, with the adapters that a fused task attends over."""
    method = parse_method(task.record.method)
    if fuses := task.record.extra.get(FUSES):
        return method.over([own(_part(task, name), device) for name in parse(fuses).names])
    return method


def _part(task: Task, name: str) -> Task:
    if name not in task.parts:
        raise TaskCorrupt(
            f"'{name}', which '{task.record.name}' is made of, is not with it.", hint="Read it from its store."
        )
    return task.parts[name]


def dropped(whole: Composition, expression: Drop) -> Composition:
    """Return a composition without what it does in the layers that `expression` names."""
    for method in (method for method, _ in whole.parts if method.standalone):
        raise CompositionError(f"{method.name} does not use the base: it has no layers to drop.")
    parts = [(Dropped(whole.parts, expression.layers, expression.keep_norms), norms_of(whole.parts))]
    return Composition(expression, parts, whole.task, whole.v, whole.tasks)


class _Compiler:
    """Compiles expressions over some tasks, whose weights it puts on a device."""

    def __init__(self, tasks: Tasks, device: str, check: Check) -> None:
        self.tasks, self.device, self.check = tasks, device, check

    def read(self, expression: Expression, bare: bool) -> Composition:
        """Compile an expression; `bare` leaves out what a task was trained on, because a stack names what is below."""
        if isinstance(expression, Name):
            task = self._find(expression.reference)
            return self.of_task(task, expression, () if bare else None)
        if isinstance(expression, Stack):
            return self._stacked(expression)
        if isinstance(expression, Average):
            return self._averaged(expression, bare)
        if isinstance(expression, AverageOutputs):
            return self._averaged_outputs(expression, bare)
        if isinstance(expression, Drop):
            return dropped(self.read(expression.inside, bare), expression)
        if isinstance(expression, Fuse):
            raise CompositionError(
                f"{expression!r} has to be learned before it can predict.",
                hint=f'adaptree compose "{expression!r}" --name NAME --train DATA',
            )
        raise CompositionError(
            f"{expression.block} gives several predictions, and here one is needed.", hint="Name one of its parts."
        )

    def of_task(self, task: Task, expression: Expression, on: Sequence[Task] | None) -> Composition:
        """Compile a task on top of the tasks in `on`; None: on what it was trained on."""
        trained_on = task.record.extra.get(ON)
        if on is None and trained_on:
            below = _Compiler(_PartsOf(task), self.device, self.check).read(parse(trained_on), bare=True)
        else:
            for each in on or ():
                self.check(each)
            lower = [own(each, self.device) for each in on or ()]
            below = Composition(expression, lower, None, {}, tuple(on or ()))
        family = tuple(_family(task))
        for each in reversed(family):
            self.check(each)
        mine = own(task, self.device)
        return Composition(expression, [*below.parts, mine], task, mine[1], (*below.tasks, *family))

    def _find(self, reference: str) -> Task:
        try:
            return self.tasks[reference]
        except KeyError:
            known = [str(name) for name in self.tasks] if isinstance(self.tasks, Mapping) else []
            raise TaskNotFound(f"there is no task '{reference}' here.", hint=near(reference, known)) from None

    def _stacked(self, expression: Stack) -> Composition:
        inside = [self.read(part, bare=True) for part in expression.parts]
        inside = [each for each in inside if each.parts]  # stack() within a stack is nothing
        if not inside:
            return Composition(expression, [], None, {}, ())
        parts = [part for each in inside for part in each.parts]
        return Composition(expression, parts, inside[-1].task, inside[-1].v, _all_tasks(inside))

    def _averaged(self, expression: Average, bare: bool) -> Composition:
        inside = [self.read(part, bare) for part in expression.parts]
        first = _check_alike(expression, inside, bare)
        whole = [each.parts[-1] for each in inside]
        method: Method = whole[0][0]
        if method.standalone:
            raise CompositionError(f"{method.name} does not use the base: there are no weights to average.")
        if not all(_inner(each).alike(_inner(method)) for each, _ in whole):
            replaces = any(type(_inner(each)).weights is not Method.weights for each, _ in whole)
            raise CompositionError(
                f"{expression!r}: weights of {' and '.join(dict.fromkeys(str(m) for m, _ in whole))} have no mean.",
                hint=USE_PARALLEL if replaces else USE_OUTPUTS,
            )
        heads = _mean_head(expression, inside, expression.shares)
        blocks = any(isinstance(each, MeanOfWeights) for each, _ in whole)
        mean = None if blocks else _mean([v for _, v in whole], expression.shares)
        if mean is None:  # δs over other places
            method, mean = MeanOfWeights(whole, expression.shares), norms_of(whole)
        mean |= heads
        return Composition(expression, [*first.parts[:-1], (method, mean)], first.task, mean, _all_tasks(inside))

    def _averaged_outputs(self, expression: AverageOutputs, bare: bool) -> Composition:
        inside = [self.read(part, bare) for part in expression.parts]
        first = _check_alike(expression, inside, bare)
        kind = kinds.find(first.task.record.kind) if first.task is not None else None
        if kind is not None and not (kind.linear_head and not any(f"{DENSE}.weight" in each.v for each in inside)):
            raise CompositionError(f"{expression!r}: the head of {kind.name} is no linear map, and has no mean.")
        for method, _ in (part for each in inside for part in each.parts):
            if method.standalone:
                raise CompositionError(f"{method.name} does not use the base: it has no outputs to average.")
        heads = _mean_head(expression, inside, expression.shares)
        block = MeanOfOutputs([each.parts for each in inside], expression.shares)
        v = {**norms_of([part for each in inside for part in each.parts]), **heads}
        return Composition(expression, [(block, v)], first.task, v, _all_tasks(inside))


class _PartsOf:
    """The parts of a task, by reference: those that were saved with it."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __getitem__(self, reference: str, /) -> Task:
        return _part(self.task, reference)


def _family(task: Task) -> Iterator[Task]:
    """Yield a task and those that it fuses."""
    yield task
    if fuses := task.record.extra.get(FUSES):
        for name in parse(fuses).names:
            yield from _family(_part(task, name))


def _all_tasks(inside: Sequence[Composition]) -> tuple[Task, ...]:
    return tuple(task for each in inside for task in each.tasks)


def _inner(method: Method) -> Method:
    """Return the method of the weights in a mean of weights; any other method unchanged."""
    return _inner(method.parts[0][0]) if isinstance(method, MeanOfWeights) else method


def _check_alike(expression: Expression, inside: Sequence[Composition], bare: bool) -> Composition:
    """Return the first of some parts; raise CompositionError if their predictions have no mean.

    `bare`: parts may have been trained on different tasks.
    """
    first = inside[0]
    for each in inside:
        if each.task is None or first.task is None:
            raise CompositionError(f"{expression!r}: the bare base has no prediction to average.")
        a, b = first.task.record, each.task.record
        both = f"{expression!r}: '{a.reference}' and '{b.reference}'"
        for what in ("kind", "labels", "pooling"):
            if getattr(a, what) != getattr(b, what):
                raise CompositionError(f"{both} differ in {what}: their predictions have no mean.", hint=USE_PARALLEL)
        kind = kinds.find(a.kind)
        if kind is not None and kind.outputs(a) != kind.outputs(b):
            raise CompositionError(f"{both} differ in what their numbers stand for.", hint=USE_PARALLEL)
        if isinstance(expression, Average) and not bare and a.extra.get(ON) != b.extra.get(ON):
            raise CompositionError(
                f"{both} were trained on other tasks.", hint="Name what is below them: stack(…, average(…))."
            )
        if isinstance(expression, Average) and a.extra.get(FUSES) != b.extra.get(FUSES):
            raise CompositionError(f"{both} fuse other tasks: their weights have no mean.", hint=USE_OUTPUTS)
    return first


def _mean_head(expression: Expression, inside: Sequence[Composition], shares: tuple[float, ...]) -> dict[str, Tensor]:
    first = inside[0].task
    heads = [_scaled({n: t for n, t in each.v.items() if n.startswith("head.")}, each.task, first) for each in inside]
    found = _mean(heads, shares)
    if found is None:
        raise CompositionError(f"{expression!r}: the heads have other shapes.", hint="Average tasks of one kind.")
    return found


def _scaled(head: dict[str, Tensor], task: Task | None, like: Task | None) -> dict[str, Tensor]:
    """Return a regression head for another task's mean and standard deviation, with the same predictions."""
    scales = [kind.scale(each.record) for each in (task, like) if each and (kind := kinds.find(each.record.kind))]
    if len(scales) < 2 or scales[0] is None or scales[1] is None:
        return head
    (mean, std), (wanted, unit) = (map(head["head.bias"].new_tensor, scale) for scale in (scales[0], scales[1]))
    if mean.equal(wanted) and std.equal(unit):
        return head
    weight, bias = head["head.weight"], head["head.bias"]
    scaled = {"head.weight": weight * (std / unit)[:, None], "head.bias": (bias * std + mean - wanted) / unit}
    return head | scaled


def _mean(of: Sequence[Params], shares: tuple[float, ...]) -> dict[str, Tensor] | None:
    """Return the mean of weights, name by name; None if their names or shapes differ."""
    first = of[0]
    if any(set(v) != set(first) or any(v[name].shape != first[name].shape for name in first) for v in of):
        return None
    found: dict[str, Tensor] = {}
    for name, tensor in first.items():
        if not tensor.is_floating_point():
            if any(not v[name].equal(tensor) for v in of):
                return None
            found[name] = tensor
            continue
        total = shares[0] * tensor
        for share, v in zip(shares[1:], of[1:], strict=True):
            total = total + share * v[name]
        found[name] = total
    return found
