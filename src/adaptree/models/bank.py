"""Many tasks on one base: their weights are stacked by method and shape, and a batch mixes the rows of any of them.

Each row of a batch picks the weights of its task, so that one forward pass serves them all: a product of many small
matrices in the place of one large one. A task with many rows in a batch has a slice of its own, which costs less.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from adaptree.compose.blocks import Block
from adaptree.compose.merge import Parts, plan_by_row, together
from adaptree.data.encode import Encoding
from adaptree.errors import MethodError
from adaptree.methods import Method, Params, Plan
from adaptree.models.passes import NotShareable, Passes, probe_rows, sliced
from adaptree.models.stacks import Stack

if TYPE_CHECKING:
    from adaptree.compose import Composition
    from adaptree.models.base import Base

OWN_SLICE = 8
"""Rows of one task in a batch from which on they are a slice of their own."""
ROOM = 1 << 36
"""Bytes of addresses that a stack reserves; it takes memory only for the tasks that are in it."""
CLOSE = 1e-5
"""By how much, relative to the largest, a mixed batch may differ from a task alone: sums are in another order."""


@dataclass(frozen=True, eq=False)
class Place:
    """Where a task's weights are in a bank: in a slot of its group's stack, or in a plan of its own."""

    lowest: int
    """The layer below which it changes nothing."""
    bytes: int
    group: Group | None = None
    slot: int = 0
    plan: Plan | None = None


@dataclass(eq=False)
class Group:
    """The tasks of one method, or of one stack of methods."""

    methods: tuple[Method, ...]
    stack: Stack
    lowest: int
    """The layer below which they change nothing."""
    plans: dict[int, Plan] = field(default_factory=dict)
    """The plan of a task alone, by its slot."""


class Bank:
    """The weights of many tasks, in memory once; the rows of a batch pick theirs."""

    def __init__(self, base: Base, room: int = ROOM) -> None:
        self.base, self.room = base, room
        self._groups: dict[str, Group | str] = {}
        """By methods; or why tasks of these methods cannot share a pass on this base."""
        self._passes = Passes(base)
        self._lock = threading.Lock()

    def add(self, composition: Composition) -> Place | str:
        """Take in the weights and return where they are; or why these tasks cannot share a pass with others.

        Weights that can be stacked are copied. The composition must fit the base (`Base.check`).
        """
        parts = composition.parts
        if any(isinstance(method, Block) or type(method).over is not Method.over for method, _ in parts):
            return self._with_plan(parts)
        weights = _named([_without_head(v) for _, v in parts])
        with self._lock:
            group = self._group(tuple(method.stacked_as() for method, _ in parts), weights)
            if isinstance(group, str):
                return group
            slots = group.stack.slots
            place = _in(group, group.stack.fill(weights))
            if group.stack.slots != slots:  # it has moved
                group.plans.clear()
            return place

    def _with_plan(self, parts: Parts) -> Place | str:
        """Return a place for what is made of several tasks: a slice of every batch, with weights of its own."""
        hooked = self.base.hooked
        plan, replaced = together(hooked.sites, hooked.frozen, parts)
        if replaced:
            return "it does not run on the base's own weights"
        lowest = min(method.lowest(hooked.sites) for method, _ in parts)
        size = sum(tensor.nbytes for _, v in parts for tensor in v.values())
        try:
            self._compare(plan, plan, 1, lowest)
        except NotShareable as reason:
            return str(reason)
        return Place(lowest, size, plan=plan)

    def remove(self, place: Place) -> None:
        """Free the memory of a task, which must be in no batch any more."""
        if place.group is not None:
            with self._lock:
                place.group.plans.pop(place.slot, None)
                place.group.stack.free(place.slot)

    def states(self, batch: Sequence[tuple[Place, Sequence[Encoding]]]) -> list[tuple[Tensor, Tensor]]:
        """Return last hidden states and mask of some tasks' rows, which are of one canonical length, task by task."""
        slices: list[tuple[Plan, list[int]]] = []
        gathered: dict[int, list[int]] = {}
        for i, (place, rows) in enumerate(batch):
            if place.group is None or len(rows) >= OWN_SLICE or len(batch) == 1:
                slices.append((self._alone(place), [i]))
            else:
                gathered.setdefault(id(place.group), []).append(i)
        for members in gathered.values():
            slices.append((self._mixed([batch[i] for i in members]), members))
        order = [i for _, members in slices for i in members]
        lowest = min(place.lowest for place, _ in batch)
        by_plan = [(plan, [row for i in members for row in batch[i][1]]) for plan, members in slices]
        hidden, mask = self._passes.states(by_plan, lowest)
        counts = [len(batch[i][1]) for i in order]
        by_task = zip(torch.split(hidden, counts), torch.split(mask, counts), strict=True)
        found = dict(zip(order, by_task, strict=True))
        return [found[i] for i in range(len(batch))]

    def plan(self, places: Sequence[Place]) -> Plan:
        """Return one plan for a batch, given each row's place; rows of one group that are neighbours share a step."""
        found: list[tuple[int, Plan]] = []
        for _, neighbours in groupby(places, lambda place: id(place.group or place)):
            some = list(neighbours)
            own = self._alone(some[0]) if all(each is some[0] for each in some) else self._by_row(some)
            found.append((len(some), own))
        return found[0][1] if len(found) == 1 else sliced(found)

    def _alone(self, place: Place) -> Plan:
        """Return the plan of one task for all rows."""
        group = place.group
        if group is None:
            assert place.plan is not None
            return place.plan
        if place.slot not in group.plans:
            weights = group.stack.of_task(place.slot)
            parts = [(method, _of_part(weights, i)) for i, method in enumerate(group.methods)]
            plan = plan_by_row(self.base.hooked.sites, parts)
            assert plan is not None
            group.plans[place.slot] = plan
        return group.plans[place.slot]

    def _mixed(self, batch: Sequence[tuple[Place, Sequence[Encoding]]]) -> Plan:
        """Return the plan of tasks of one group, in which each row has its task's weights."""
        return self._by_row([place for place, rows in batch for _ in rows])

    def _by_row(self, places: Sequence[Place]) -> Plan:
        """Return the plan of rows whose tasks are of one group, given each row's place."""
        group = places[0].group
        assert group is not None
        weights = group.stack.of_rows([place.slot for place in places])
        parts = [(method, _of_part(weights, i)) for i, method in enumerate(group.methods)]
        plan = plan_by_row(self.base.hooked.sites, parts)
        assert plan is not None
        return plan

    def _group(self, methods: tuple[Method, ...], weights: Params) -> Group | str:
        """Return the group of these methods, or why there is none; a new one is probed."""
        key = ", ".join(map(repr, methods))
        if key not in self._groups:
            self._groups[key] = self._new(methods, weights)
        return self._groups[key]

    def _new(self, methods: tuple[Method, ...], weights: Params) -> Group | str:
        hooked, spelled = self.base.hooked, ", ".join(map(str, methods))
        own = f"tasks of {spelled} have weights that cannot differ by row"
        try:
            if plan_by_row(hooked.sites, [(m, _of_part(weights, i)) for i, m in enumerate(methods)]) is None:
                return own
            shapes = _named([method.shapes(hooked.sites, hooked.backbone) for method in methods])
            if set(shapes) != set(weights) or len({dtype for _, dtype in shapes.values()}) > 1:
                return own
            if any(len(shape) != weights[name].dim() or None in shape for name, (shape, _) in shapes.items()):
                return own
            stack = Stack(shapes, self.room, self.base.device)
            group = Group(methods, stack, min(method.lowest(hooked.sites) for method in methods))
            self._probe(group, weights)
        except (NotShareable, MethodError) as reason:
            return str(reason)
        return group

    def _probe(self, group: Group, weights: Params) -> None:
        """Compare mixed rows with those of a task alone; raise NotShareable if this base gives other numbers."""
        places = [_in(group, group.stack.fill(weights)) for _ in range(2)]
        rows = probe_rows(self.base)
        try:
            mixed = self._mixed([(place, rows) for place in places])
            self._compare(self._alone(places[0]), mixed, 2, group.lowest)
        finally:
            for place in places:
                group.plans.pop(place.slot, None)
                group.stack.free(place.slot)

    def _compare(self, alone: Plan, mixed: Plan, times: int, lowest: int) -> None:
        """Compare a plan that acts on all rows with another one for `times` as many, beside rows of the bare base."""
        differs = f"{self.base.hooked.sites.architecture} gives other numbers when several tasks share a pass"
        rows = probe_rows(self.base)
        bare: Plan = {}
        try:
            hidden, _ = self._passes.states([(bare, rows), (mixed, rows * times)], lowest)
            expected = [self._passes.states([(plan, rows)], lowest)[0] for plan in (bare, *[alone] * times)]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:  # a layer does not take such a batch
            raise NotShareable(f"{differs} ({type(error).__name__})") from error
        for wanted, found in zip(expected, torch.split(hidden, len(rows)), strict=True):
            if (wanted - found).abs().max() > CLOSE * max(1.0, float(wanted.abs().max())):
                raise NotShareable(differs)


def _in(group: Group, slot: int) -> Place:
    return Place(group.lowest, group.stack.bytes, group, slot)


def _without_head(v: Params) -> Params:
    return {name: tensor for name, tensor in v.items() if not name.startswith("head.")}


def _named(parts: Sequence[Any]) -> dict[str, Any]:
    """Return the weights, or shapes, of several methods under names of their own."""
    return {f"{i}:{name}": value for i, v in enumerate(parts) for name, value in v.items()}


def _of_part(weights: Any, number: int) -> dict[str, Any]:
    prefix = f"{number}:"
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
