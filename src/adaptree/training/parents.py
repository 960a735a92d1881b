"""The parents of a new task: stored tasks that it is trained on top of, or whose adapters it fuses; all frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adaptree import compose
from adaptree.compose import Expression, Fuse, Tasks
from adaptree.compose.blocks import Raised
from adaptree.errors import CompositionError, UsageError, WrongBase
from adaptree.methods import Method, parse
from adaptree.methods.fusion import Fusion, unfit
from adaptree.tasks.record import FUSES, NEEDS, ON, SAW
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from adaptree.models.base import Base


@dataclass(frozen=True)
class Parents:
    """The parent tasks by name@version, and the expressions in which a new task's record names them."""

    expressions: Mapping[str, str] = field(default_factory=dict)
    """Under ON what it is trained on top of, under FUSES what it fuses; each name with its version."""
    tasks: Mapping[str, Task] = field(default_factory=dict)

    def combine(self, method: Method, device: str) -> Method:
        """Return the method to train: `method` over the adapters that it fuses, on top of the tasks below it."""
        if FUSES in self.expressions:
            names = compose.parse(self.expressions[FUSES]).names
            method = method.over([compose.own(self.tasks[name], device) for name in names])
        if ON not in self.expressions:
            return method
        below = compose.compile_(compose.stack(self.expressions[ON]), self.tasks, device).parts
        return Raised(method, below, self.expressions[ON])

    def check_base(self, base: Base) -> None:
        """Raise WrongBase if a parent was trained on another base."""
        for task in self.tasks.values():
            if task.record.base.get("fingerprint") != base.fingerprint:
                other = task.record.base.get("name")
                raise WrongBase(
                    f"'{task.record.name}' was trained on another base, {other}, not on {base.name}.",
                    hint=f"Load that base: --base {other}, or its folder.",
                )

    @property
    def extra(self) -> dict[str, Any]:
        """The entries of the new task's record about its parents."""
        needs = {reference: task.record.digest for reference, task in self.tasks.items()}
        return {**self.expressions, NEEDS: needs, SAW: data_seen(self.tasks.values())} if needs else {}


def data_seen(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the data that these tasks were trained on: names by digest."""
    return {digest: name for task in tasks for digest, name in task.record.learned_from.items()}


def find_parents(
    method: Method | str | Expression, on: str | Expression | None, tasks: Tasks | None
) -> tuple[Method, Parents]:
    """Return the method to train and the parents that it needs, looked up in `tasks`."""
    fuse: Any = method if isinstance(method, Expression) else _block(method)
    if fuse is None and on is None:
        return parse(method), Parents()  # type: ignore[arg-type]
    if tasks is None:
        raise UsageError("other tasks are needed for this, and there is no store.", hint="Pass the store they are in.")
    parents: dict[str, Task] = {}
    expressions: dict[str, str] = {}
    if fuse is not None:
        fuse = _fusable(fuse, tasks, parents)
        expressions[FUSES] = repr(compose.fuse(*fuse.names))
    if on is not None:
        expressions[ON] = repr(_stackable(on, tasks, parents))
    if fuse is not None:
        _check_below([parents[name] for name in fuse.names], expressions.get(ON))
        fusion = Fusion() if fuse.regularisation is None else Fusion(regularisation=fuse.regularisation)
        return fusion, Parents(expressions, parents)
    plain = parse(method)  # type: ignore[arg-type]
    if plain.standalone:
        raise CompositionError(
            f"{plain.name} does not use the base: it cannot be trained on {expressions[ON]}.",
            hint="Leave out --on, or choose another method.",
        )
    return plain, Parents(expressions, parents)


def _fusable(expression: Expression, tasks: Tasks, parents: dict[str, Task]) -> Fuse:
    """Return a fuse(…) with versions, its tasks added to `parents`; raise CompositionError if they cannot be fused."""
    if not isinstance(expression, Fuse):
        raise CompositionError(
            f"{expression!r} cannot be trained: of the blocks, only fuse learns.",
            hint=f'Train a task on top of it: --on "{expression!r}".',
        )
    fuse = _with_versions(expression, tasks, parents)
    assert isinstance(fuse, Fuse)
    for name in fuse.names:
        if why := unfit(parse(parents[name].record.method)):
            plain, within = name.partition("@")[0], parents[name].record.extra.get(FUSES)
            raise CompositionError(
                f"'{plain}' cannot be fused: {why}; fuse takes feed-forward adapters without norms.",
                hint=f"Fuse the tasks that it is made of: {within}"
                if within
                else f"adaptree train DATA --name {plain} --method pfeiffer",
            )
    return fuse


def _stackable(on: str | Expression, tasks: Tasks, parents: dict[str, Task]) -> Expression:
    """Return what is trained on, with versions, its tasks added to `parents`; raise CompositionError if unsuitable."""
    expression = _with_versions(compose.parse(on), tasks, parents)
    if expression.block in ("parallel", "rows", "fuse"):
        raise CompositionError(f"nothing can be trained on {expression!r}.", hint="Give a name, or stack(…).")
    if any(part.standalone for part, _ in compose.compile_(compose.stack(expression), parents).parts):
        raise CompositionError(f"{expression!r} does not use the base: there is nothing to train on.")
    return expression


def _check_below(fused: Sequence[Task], on: str | None) -> None:
    """Raise CompositionError unless all adapters were trained on top of what they are to be fused on."""
    trained_on = {task.record.reference: task.record.extra.get(ON) for task in fused}
    bare = "the bare base"
    for name, below in trained_on.items():
        if below != on:
            hint = "Fuse tasks that were trained on the same."
            if len(set(trained_on.values())) == 1:
                hint = f'Add --on "{below}".' if below else "Leave out --on."
            raise CompositionError(
                f"'{name}' was trained on {below or bare}, and would be fused on {on or bare}.", hint=hint
            )


def _block(method: Method | str) -> Expression | None:
    """Return the composition that a method is written as, such as fuse(a, b); None for a plain method."""
    if not isinstance(method, str) or "(" not in method:
        return None
    word = method.partition("(")[0].strip()
    return compose.parse(method) if word in compose.BLOCKS else None


def _with_versions(expression: Expression, tasks: Tasks, parents: dict[str, Task]) -> Expression:
    """Return an expression with a version behind every name, adding its tasks to `parents`."""
    names: dict[str, str] = {}
    for name in expression.names:
        task = tasks[name]
        names[name] = task.record.reference
        parents[task.record.reference] = task
    return expression.renamed(names)
