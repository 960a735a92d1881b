"""What a training stands on: the tasks below it or that it fuses, which stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adaptree import compose
from adaptree.compose import Expression, Fuse, Tasks
from adaptree.compose.blocks import Raised
from adaptree.errors import CompositionError, UsageError, WrongBase
from adaptree.methods import Method, parse
from adaptree.methods.fusion import Fusion, unfit
from adaptree.tasks.record import FUSES, NEEDS, ON, SAW
from adaptree.tasks.task import Task


@dataclass(frozen=True)
class Ground:
    """The tasks that a new one is made of, by version, and how its method is put on top of them."""

    said: Mapping[str, str] = field(default_factory=dict)
    """ON and FUSES: the expressions, each name with its version."""
    tasks: Mapping[str, Task] = field(default_factory=dict)

    def under(self, method: Method, device: str) -> Method:
        """What is trained: the method over those that it fuses, with those below it."""
        if FUSES in self.said:
            names = compose.parse(self.said[FUSES]).names
            method = method.over([compose.own(self.tasks[name], device) for name in names])
        if ON not in self.said:
            return method
        below = compose.compile_(compose.stack(self.said[ON]), self.tasks, device).parts
        return Raised(method, below, self.said[ON])

    def check(self, fingerprint: str, base: str) -> None:
        """Refuse tasks of another base."""
        for task in self.tasks.values():
            if task.record.base.get("fingerprint") != fingerprint:
                other = task.record.base.get("name")
                raise WrongBase(
                    f"'{task.record.name}' was trained on another base, {other}, not on {base}.",
                    hint=f"Load the one that it is of: --base {other}, or where that is.",
                )

    @property
    def extra(self) -> dict[str, Any]:
        """What the record keeps of it."""
        needs = {reference: task.record.digest for reference, task in self.tasks.items()}
        return {**self.said, NEEDS: needs, SAW: saw(self.tasks.values())} if needs else {}


def saw(tasks: Iterable[Task]) -> dict[str, str]:
    """What a task that is made of these has learned from."""
    return {digest: name for task in tasks for digest, name in task.record.learned_from.items()}


def ground(
    method: Method | str | Expression, on: str | Expression | None, tasks: Tasks | None
) -> tuple[Method, Ground]:
    """The method that is asked for, and what it stands on; names are looked up in `tasks`."""
    fused: Any = method if isinstance(method, Expression) else _block(method)
    if fused is None and on is None:
        return parse(method), Ground()  # type: ignore[arg-type]
    if tasks is None:
        raise UsageError("other tasks are needed for this, and there is no store.", hint="Pass the store they are in.")
    found: dict[str, Task] = {}
    said: dict[str, str] = {}
    if fused is not None:
        if not isinstance(fused, Fuse):
            raise CompositionError(
                f"{fused!r} cannot be trained: of the blocks, only fuse learns.",
                hint=f'Train a task on top of it: --on "{fused!r}".',
            )
        fused = _pinned(fused, tasks, found)
        for name in fused.names:
            if why := unfit(parse(found[name].record.method)):
                plain, within = name.partition("@")[0], found[name].record.extra.get(FUSES)
                raise CompositionError(
                    f"'{plain}' cannot be fused: {why}; fuse takes feed-forward adapters without norms.",
                    hint=f"Fuse the tasks that it is made of: {within}"
                    if within
                    else f"adaptree train DATA --name {plain} --method pfeiffer",
                )
        said[FUSES] = repr(compose.fuse(*fused.names))
    if on is not None:
        expression = _pinned(compose.parse(on), tasks, found)
        if expression.block in ("parallel", "rows", "fuse"):
            raise CompositionError(f"nothing can be trained on {expression!r}.", hint="Say a name, or stack(…).")
        said[ON] = repr(expression)
        if any(part.standalone for part, _ in compose.compile_(compose.stack(expression), found).parts):
            raise CompositionError(f"{expression!r} leaves the base alone: there is nothing to train on.")
    if fused is None:
        how = parse(method)  # type: ignore[arg-type]
        if how.standalone:
            raise CompositionError(
                f"{how.name} leaves the base alone: it cannot be trained on {said[ON]}.",
                hint="Leave out --on, or choose another method.",
            )
        return how, Ground(said, found)
    _check_home([found[name] for name in fused.names], said.get(ON))
    fusion = Fusion() if fused.regularisation is None else Fusion(regularisation=fused.regularisation)
    return fusion, Ground(said, found)


def _check_home(fused: Sequence[Task], on: str | None) -> None:
    """Refuse to fuse adapters on something else than what they were trained on, where each is at home."""
    homes = {task.record.reference: task.record.extra.get(ON) for task in fused}
    bare = "the bare base"
    for name, was in homes.items():
        if was != on:
            hint = "Fuse tasks that were trained on the same."
            if len(set(homes.values())) == 1:
                hint = f'Add --on "{was}".' if was else "Leave out --on."
            raise CompositionError(
                f"'{name}' was trained on {was or bare}, and would be fused on {on or bare}.", hint=hint
            )


def _block(method: Method | str) -> Expression | None:
    """Return the block that a method's text spells, such as fuse(a, b), or None."""
    if not isinstance(method, str) or "(" not in method:
        return None
    word = method.partition("(")[0].strip()
    return compose.parse(method) if word in compose.BLOCKS else None


def _pinned(expression: Expression, tasks: Tasks, found: dict[str, Task]) -> Expression:
    """The same with a version behind every name; the tasks are added to `found`."""
    names: dict[str, str] = {}
    for name in expression.names:
        task = tasks[name]
        names[name] = task.record.reference
        found[task.record.reference] = task
    return expression.renamed(names)
