"""One forward pass for the rows of several plans: each plan acts on its own slice of the batch.

Below the lowest layer that any plan acts in, equal rows are computed once, and the pass goes on from there with one row
for each plan. `adaptree.models.bank` compares the numbers with those of each plan alone before this is trusted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from adaptree.compose.merge import combine, run_after, run_before
from adaptree.data.batch import collate
from adaptree.data.encode import Encoding
from adaptree.methods import Action, Before, Entry, Plan
from adaptree.methods.method import Inputs
from adaptree.models.hooks import HookedModel
from adaptree.models.restart import CannotRestart, check_restart, key_of, private_copy, restart, states_below

if TYPE_CHECKING:
    from adaptree.models.base import Base

RowsByPlan = Sequence[tuple[Plan, Sequence[Encoding]]]
"""A batch as plans with the rows that each acts on, one plan after the other."""


class NotShareable(Exception):
    """Some plans cannot share a forward pass of this base; the message says why."""


class Passes:
    """Forward passes of a base in which each of several plans acts on its own rows."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self._uppers: dict[int, HookedModel | None] = {}
        """Copies of the base that begin at a layer, where the base allows it."""
        self._making = threading.Lock()
        self._entering = threading.local()

    def states(self, batch: RowsByPlan, lowest: int) -> tuple[Tensor, Tensor]:
        """Return last hidden states and mask of the rows of a batch, which are of one canonical length.

        Below the layer `lowest` no plan acts.
        """
        hooked = self.base.hooked
        rows = [row for _, of in batch for row in of]
        distinct, index = _distinct(rows)
        once = len(distinct) < len(rows)
        plan = batch[0][0] if len(batch) == 1 else sliced([(len(of), plan) for plan, of in batch])
        with torch.inference_mode():
            if once and lowest == hooked.sites.depth:
                with hooked.running({}):
                    hidden, mask = (part[index] for part in self.base.hidden(distinct))
            else:
                if once and (upper := self._upper(lowest)) is not None:
                    self._entering.states = states_below(hooked, lowest, self._collate(distinct))[index]
                    hooked = upper
                with hooked.running(plan):
                    hidden, mask = self.base.hidden(rows, hooked)
        if len(hidden) != len(rows):
            raise NotShareable("the base returned fewer rows than it was given")
        return hidden, mask

    def _upper(self, lowest: int) -> HookedModel | None:
        """Return a copy of the base that begins at a layer; None where that is not possible."""
        with self._making:
            if lowest not in self._uppers:
                self._uppers[lowest] = self._restarted(lowest)
            return self._uppers[lowest]

    def _restarted(self, lowest: int) -> HookedModel | None:
        hooked = self.base.hooked
        if not 0 < lowest < hooked.sites.depth:
            return None
        try:
            form = check_restart(hooked, lowest)
        except CannotRestart:
            return None
        upper = private_copy(hooked)
        restart(upper, lowest, form, lambda: self._entering.states)
        return upper

    def _collate(self, rows: Sequence[Encoding]) -> dict[str, Tensor]:
        return collate(rows, self.base.encoder.pad_id, self.base.device)


def probe_rows(base: Base) -> list[Encoding]:
    """Return two rows of one canonical length, one of them padded, in any vocabulary."""
    rows = []
    for i in range(2):
        ids = np.arange(10 + i, 22 + i + 4 * i, dtype=np.int32) % len(base.embeddings)
        ids[ids == base.encoder.pad_id] += 1
        rows.append(Encoding(ids, np.zeros_like(ids) if base.encoder.types else None, False))
    return rows


def sliced(plans: Sequence[tuple[int, Plan]]) -> dict[str, Entry]:
    """Return one plan in which each of several acts on its number of rows of the batch, in their order."""
    ends = np.cumsum([count for count, _ in plans]).tolist()
    slices = [slice(end - count, end) for end, (count, _) in zip(ends, plans, strict=True)]
    plan: dict[str, Entry] = {}
    for path in dict.fromkeys(path for _, of in plans for path in of):
        entries = [of.get(path, ()) for _, of in plans]
        plan[path] = combine(entries, partial(_before, slices), partial(_after, slices))
    return plan


def _after(slices: Sequence[slice], steps: Sequence[Sequence[Action]]) -> Action:
    """Return a step that runs each plan's steps on its own rows of a module's output."""
    total = slices[-1].stop

    def act(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        if len(first) != total:  # DeBERTa v2 also maps one table of positions for all rows
            raise NotShareable("a module works on a tensor without a batch axis")
        outputs = []
        for at, mine in zip(slices, steps, strict=True):
            here = _of_rows(args, at, total) if mine else args
            outputs.append(run_after(mine, module, here, _of_rows(output, at, total)))
        return _joined(output, outputs, total)

    return act


def _before(slices: Sequence[slice], steps: Sequence[Sequence[Before]]) -> Callable[..., Inputs | None]:
    """Return a step that runs each plan's steps on its own rows of a module's inputs."""
    total = slices[-1].stop

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs | None:
        inputs, changed = [], False
        for at, mine in zip(slices, steps, strict=True):
            here: Inputs = _of_rows((args, kwargs), at, total)
            seen = run_before(mine, module, *here)
            inputs.append(here if seen is None else seen)
            changed = changed or seen is not None
        return _joined((args, kwargs), inputs, total) if changed else None

    return look


def _of_rows(value: Any, at: slice, total: int) -> Any:
    """Slice the tensors that have a batch axis; leave shared ones as they are."""
    if isinstance(value, Tensor):
        return value[at] if value.dim() and len(value) == total else value
    if type(value) in (tuple, list):
        return type(value)(_of_rows(each, at, total) for each in value)
    if type(value) is dict:
        return {key: _of_rows(each, at, total) for key, each in value.items()}
    return value


def _joined(whole: Any, slices: Sequence[Any], total: int) -> Any:
    """Concatenate what `_of_rows` has sliced out of `whole`."""
    if isinstance(whole, Tensor):
        return torch.cat(list(slices)) if whole.dim() and len(whole) == total else whole
    if type(whole) in (tuple, list):
        return type(whole)(_joined(each, [one[i] for one in slices], total) for i, each in enumerate(whole))
    if type(whole) is dict:
        return {key: _joined(each, [one[key] for one in slices], total) for key, each in whole.items()}
    return whole


def _distinct(rows: Sequence[Encoding]) -> tuple[list[Encoding], list[int]]:
    """Return the rows without repetitions, and for each row its place among those."""
    places: dict[bytes, int] = {}
    kept: list[Encoding] = []
    index = []
    for row in rows:
        at = places.setdefault(key_of(row), len(kept))
        if at == len(kept):
            kept.append(row)
        index.append(at)
    return kept, index
