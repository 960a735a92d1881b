"""One pass of a base for the rows of several plans: each plan acts on its own slice of the batch.

Below the lowest layer that any of them touches equal rows run once; there the batch is spread out to one row for each
plan that asks. A probe compares the bits with those of each plan alone before this is trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from adaptree.compose.merge import steps_of
from adaptree.data.batch import collate
from adaptree.data.encode import Encoder, Encoding
from adaptree.methods import Action, Before, Entry, Plan
from adaptree.methods.method import Inputs
from adaptree.models.hooks import HookedModel

Lanes = Sequence[tuple[str, Sequence[Encoding]]]
"""The rows of each plan in a batch, one plan after the other."""
Place = tuple[Any, ...]
"""Where a tensor is among a layer's arguments."""


class NotShareable(Exception):
    """Why some plans cannot go through this base together."""


class Ground(Protocol):
    """A base, as far as its passes need it."""

    @property
    def hooked(self) -> HookedModel: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def device(self) -> str: ...
    @property
    def embeddings(self) -> Tensor: ...


class Passes:
    """Passes through a base of rows that several plans act on, each on its own."""

    def __init__(self, base: Ground, plans: Mapping[str, Plan]) -> None:
        self.base, self.plans = base, plans
        sites = base.hooked.sites
        touched = (sites.layer_of(f"{path}.") for plan in plans.values() for path in plan)
        self.lowest = min(touched, default=sites.depth)
        """The layer below which no plan acts."""
        if any(site.calls > 1 for site in sites.sites):  # a layer that runs again and again is below nothing
            self.lowest = 0
        self._carry: dict[Place, bool] = {}

    def states(self, lanes: Lanes) -> tuple[Tensor, Tensor]:
        """Last hidden states and mask of the rows of a batch, which are of one canonical length."""
        hooked, rows = self.base.hooked, [row for _, of in lanes for row in of]
        run, spread = _distinct(rows) if self.lowest else (rows, list(range(len(rows))))
        inputs = collate(run, self.base.encoder.pad_id, self.base.device)
        plan = _sliced([(len(of), self.plans[name]) for name, of in lanes])
        once = len(run) < len(rows)
        index = torch.tensor(spread, device=self.base.device)
        if once:
            for path in hooked.sites.layers[self.lowest :]:
                plan[path] = (Before(self._spread(path, index, len(run))), *steps_of(plan.get(path, ())))
        with torch.inference_mode(), hooked.running(plan):
            hidden: Tensor = hooked.backbone(**inputs).last_hidden_state
            mask = inputs["attention_mask"]
            if once and self.lowest == hooked.sites.depth:
                hidden = hidden[index]
            if len(hidden) != len(rows):
                raise NotShareable("a row was lost on the way")
            return hidden, mask[index] if once else mask

    def probe(self, names: Sequence[str]) -> None:
        """Compare the bits of several parts in one pass with those of each alone; raise NotShareable if they differ."""
        hooked = self.base.hooked
        said = f"{hooked.sites.architecture} gives other answers to several tasks at once"
        some = self._some(2)
        try:
            if 0 < self.lowest < hooked.sites.depth:
                self._carry = self._carried()
            together, _ = self.states([(name, some) for name in names])
            for i, name in enumerate(names):
                with torch.inference_mode(), hooked.running(self.plans[name]):
                    inputs = collate(some, self.base.encoder.pad_id, self.base.device)
                    alone = hooked.backbone(**inputs).last_hidden_state
                if not self._same(alone, together[2 * i : 2 * i + 2]):
                    raise NotShareable(said)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:  # what a layer says to a batch of two shapes
            raise NotShareable(f"{said} ({type(error).__name__})") from error

    def _same(self, one: Tensor, other: Tensor) -> bool:
        """To the bit on a processor; other devices choose their kernels by the size of a batch."""
        if one.device.type == "cpu":
            return torch.equal(one, other)
        return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4)

    def _some(self, count: int) -> list[Encoding]:
        """Rows of one canonical length, some of them padded, in any vocabulary."""
        rows = []
        for i in range(count):
            ids = np.arange(10 + i, 22 + i + 4 * (i % 2), dtype=np.int32) % len(self.base.embeddings)
            ids[ids == self.base.encoder.pad_id] += 1
            rows.append(Encoding(ids, np.zeros_like(ids) if self.base.encoder.types else None, False))
        return rows

    def _carried(self) -> dict[Place, bool]:
        """Which arguments of the upper layers hold something for each row: those that grow with the batch."""
        hooked, counts = self.base.hooked, (2, 3)
        sizes: list[dict[Place, int]] = []
        for count in counts:
            seen: dict[Place, int] = {}

            plan = {path: Before(_noted(path, seen)) for path in hooked.sites.layers[self.lowest :]}
            with torch.inference_mode(), hooked.running(plan):
                hooked.backbone(**collate(self._some(count), self.base.encoder.pad_id, self.base.device))
            sizes.append(seen)
        return {place: tuple(of.get(place) for of in sizes) == counts for place in sizes[0].keys() | sizes[1].keys()}

    def _spread(self, path: str, index: Tensor, n: int) -> Callable[..., Inputs]:
        """Repeat what a layer is given for each of n rows, as often as the index says; what is spread already stays."""

        def change(place: Place, tensor: Tensor) -> Tensor:
            if len(tensor) != n:
                return tensor
            if (carries := self._carry.get((path, *place))) is None:
                raise NotShareable(f"{self.base.hooked.sites.architecture} gives its layers other things now and then")
            return tensor[index] if carries else tensor

        return lambda module, args, kwargs: _mapped(change, (args, kwargs))


def _noted(path: str, seen: dict[Place, int]) -> Callable[..., None]:
    """Note how long each tensor is that a layer is given."""

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def note(place: Place, tensor: Tensor) -> Tensor:
            seen[path, *place] = len(tensor)
            return tensor

        _mapped(note, (args, kwargs))

    return look


def _sliced(lanes: Sequence[tuple[int, Plan]]) -> dict[str, Entry]:
    """One plan of several, each of which acts on so many rows of a batch, in their order."""
    ends = np.cumsum([count for count, _ in lanes]).tolist()
    slices = [slice(end - count, end) for end, (count, _) in zip(ends, lanes, strict=True)]
    plan: dict[str, Entry] = {}
    for path in dict.fromkeys(path for _, of in lanes for path in of):
        steps: list[Any] = [steps_of(of.get(path, ())) for _, of in lanes]
        before = [[step for step in of if isinstance(step, Before)] for of in steps]
        after = [[step for step in of if not isinstance(step, Before)] for of in steps]
        plan[path] = (
            *([Before(_looks(slices, before))] if any(before) else []),
            *([_acts(slices, after)] if any(after) else []),
        )
    return plan


def _acts(slices: Sequence[slice], steps: Sequence[Sequence[Action]]) -> Action:
    total = slices[-1].stop

    def act(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        if len(first) != total:  # DeBERTa v2 also maps one table of positions for all rows
            raise NotShareable("a module works on what all rows of a batch share")
        given = []
        for at, mine in zip(slices, steps, strict=True):
            y = _of_rows(output, at, total)
            here = _of_rows(args, at, total) if mine else args
            for step in mine:
                y = step(module, here, y)
            given.append(y)
        return _joined(output, given, total)

    return act


def _looks(slices: Sequence[slice], steps: Sequence[Sequence[Before]]) -> Callable[..., Inputs | None]:
    total = slices[-1].stop

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs | None:
        given, changed = [], False
        for at, mine in zip(slices, steps, strict=True):
            here: Inputs = _of_rows((args, kwargs), at, total)
            for step in mine:
                if (seen := step.look(module, *here)) is not None:
                    here, changed = seen, True
            given.append(here)
        return _joined((args, kwargs), given, total) if changed else None

    return look


def _of_rows(value: Any, at: slice, total: int) -> Any:
    """What belongs to some rows of a batch; the rest is everyone's."""
    return _mapped(lambda place, tensor: tensor[at] if len(tensor) == total else tensor, value)


def _joined(whole: Any, given: Sequence[Any], total: int) -> Any:
    """The batch again, from what its slices have become."""
    if isinstance(whole, Tensor):
        return torch.cat(list(given)) if whole.dim() and len(whole) == total else whole
    if type(whole) in (tuple, list):
        return type(whole)(_joined(each, [one[i] for one in given], total) for i, each in enumerate(whole))
    if type(whole) is dict:
        return {key: _joined(each, [one[key] for one in given], total) for key, each in whole.items()}
    return whole


def _mapped(change: Callable[[Place, Tensor], Tensor], value: Any, place: Place = ()) -> Any:
    """The same nest of tuples, lists and dicts, each tensor in it changed."""
    if isinstance(value, Tensor):
        return change(place, value) if value.dim() else value
    if type(value) in (tuple, list):
        return type(value)(_mapped(change, each, (*place, i)) for i, each in enumerate(value))
    if type(value) is dict:
        return {key: _mapped(change, each, (*place, key)) for key, each in value.items()}
    return value


def _distinct(rows: Sequence[Encoding]) -> tuple[list[Encoding], list[int]]:
    """The rows without repetitions, and for each row which of them it is."""
    places: dict[bytes, int] = {}
    kept: list[Encoding] = []
    spread = []
    for row in rows:
        at = places.setdefault(key_of(row), len(kept))
        if at == len(kept):
            kept.append(row)
        spread.append(at)
    return kept, spread


def key_of(row: Encoding) -> bytes:
    """What two rows share that the base cannot tell apart."""
    return row.ids.tobytes() + (b"|" + row.types.tobytes() if row.types is not None else b"")
