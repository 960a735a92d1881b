"""How much more of some labels a short linear probe explains with a task's adapters than with the bare base."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import compose
from adaptree.compose import Parts, Tasks
from adaptree.core import ridge
from adaptree.data.events import Listener, silent
from adaptree.data.table import Table
from adaptree.errors import AdaptreeError, DataError
from adaptree.kinds import bootstrap
from adaptree.tasks.task import NEEDS, Task
from adaptree.training.settings import Settings

if TYPE_CHECKING:
    from adaptree.data.encode import Encoding
    from adaptree.models.base import Base

Array = np.ndarray[Any, Any]

FOLDS = 5
FEWEST = 20
"""Rows below which nothing can be said."""
START, PER_LABEL, STEP = 50, 8, 3
"""All tasks are tried on so many rows at least, and on so many for each label; a third of them on three times more."""
CLEAR, LIKELY, UNSURE, NO = "clear", "likely", "unsure", "no"


@dataclass(frozen=True)
class Gain:
    """How much more of the labels a probe explains with a task's adapters than with the bare base."""

    task: str
    gain: float
    """What the probe explains of the labels' variance on rows that it has not seen, less what `bare` is."""
    low: float
    high: float
    """The 95 % interval over the rows."""
    sure: str
    """clear: above zero even counting how many tasks were tried; likely: its interval is; unsure; no: it is below."""
    bare: float
    """What the same probe explains on the bare base."""
    rows: int


@dataclass(frozen=True)
class Ranking:
    """Tasks by what they help, the best first; those that were tried on more rows come before the others."""

    gains: list[Gain]
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a task was not tried."""


def ranking(
    table: Table,
    names: Sequence[str],
    tasks: Tasks,
    base: Base,
    *,
    rows: int = 450,
    top: int | None = None,
    seed: int = 0,
    on_event: Listener = silent,
) -> Ranking:
    """The gain of each of some tasks on a sample of a table's rows.

    With `top`, successive halving: all are tried on few rows, the better third on three times as many, and so on; at
    least twice as many as `top` come to the end. Without it all of them see all of the sample.
    """
    probe = _Probe(table, base, rows, seed)
    adapted: dict[str, Array] = {}
    skipped: dict[str, str] = {}
    owners: dict[str, str] = {}
    done: list[Gain] = []
    left = list(dict.fromkeys(names))
    tried = len(left)
    for count in probe.stages(len(left), top):
        on_event({"event": "stage", "tasks": len(left), "rows": count})
        found: list[Gain] = []
        for number, name in enumerate(left, 1):
            try:
                task = tasks[name]
                if (other := owners.setdefault(_key(task), name)) != name:
                    skipped[name] = f"has the same adapters as '{other}'"
                    continue
                before = adapted.get(name)
                adapted[name] = probe.vectors(compose.of_task(task, device=base.device).parts, before, count)
            except (AdaptreeError, KeyError) as error:
                skipped[name] = error.what if isinstance(error, AdaptreeError) else f"lacks the weight {error}"
                continue
            if not np.isfinite(adapted[name]).all():
                skipped[name] = "makes vectors of these texts that are no numbers"
                continue
            found.append(probe.gain(name, adapted[name], tried))
            on_event({"event": "probe", "number": number, "tasks": len(left), **asdict(found[-1])})
        found.sort(key=lambda gain: (-gain.gain, gain.task))
        kept = len(found) if top is None else max(2 * top, -(-len(found) // STEP))
        last = count == probe.rows
        done = (found if last else found[kept:]) + done
        left = [] if last else [gain.task for gain in found[:kept]]
        adapted = {name: adapted[name] for name in left}
    return Ranking(done, skipped)


class _Probe:
    """A sample of a table, encoded once, and what a ridge regression explains of its labels."""

    def __init__(self, table: Table, base: Base, rows: int, seed: int) -> None:
        self.base, self.seed = base, seed
        order, folds = _sample(table, rows, seed)
        if len(order) < FEWEST:
            raise DataError(f"'{table.name}' has {len(order)} texts, and at least {FEWEST} are needed.")
        self.rows = len(order)
        self._folds = folds
        self._encoded = base.encoder.encode(table.texts(order), Settings().longest(base.limit))
        targets = table.values[order]
        self.labels = len(table.labels) if table.kind == "classify" else 0
        self._y = np.eye(self.labels)[targets] if self.labels else _standardised(targets)[:, None]
        self._bare: dict[int, Array] = {}
        self._base_vectors: Array | None = None

    def stages(self, tasks: int, top: int | None) -> list[int]:
        """How many rows are looked at, time after time."""
        found = [self.rows]
        if top is not None and tasks > 2 * top:
            least = max(START, PER_LABEL * self.labels)
            while found[0] // STEP >= least and tasks > 2 * top:
                found.insert(0, found[0] // STEP)
                tasks //= STEP
        return found

    def vectors(self, parts: Parts, before: Array | None, count: int) -> Array:
        """(count, width): the sample's first texts under some methods; those `before` are known already."""
        start = 0 if before is None else len(before)
        fresh = vectors(self.base, self._encoded[start:count], parts)
        return fresh if before is None else np.concatenate([before, fresh])

    def gain(self, name: str, adapted: Array, tried: int) -> Gain:
        """A task's, from the vectors of the first texts."""
        n = len(adapted)
        null, bare, error = self._nothing(n), self._without(n), self._errors(adapted)
        total = null.sum() or 1.0
        better = bare - error
        gain, spread = float(better.sum() / total), float(better.std() * np.sqrt(n) / total)
        low, high = bootstrap.intervals(
            np.stack([better, null], 1),
            lambda sums: {"gain": sums[:, 0] / np.maximum(sums[:, 1], 1e-12)},
            seed=self.seed,
        )["gain"]
        return Gain(name, gain, low, high, _sure(gain, low, high, spread, tried), float(1 - bare.sum() / total), n)

    def _errors(self, x: Array) -> Array:
        n = len(x)
        return np.asarray(((self._y[:n] - ridge.held_out(x, self._y[:n], self._folds[:n])) ** 2).sum(1))

    def _nothing(self, n: int) -> Array:
        """The errors of the other folds' mean."""
        return self._errors(np.zeros((n, 1)))

    def _without(self, n: int) -> Array:
        """The errors on the bare base."""
        if n not in self._bare:
            self._base_vectors = self.vectors((), self._base_vectors, n)
            self._bare[n] = self._errors(self._base_vectors)
        return self._bare[n]


def vectors(base: Base, rows: Sequence[Encoding], parts: Parts) -> Array:
    """(n, width): encoded texts as the base pools them under some methods; without any, under no task."""
    import torch

    from adaptree.data.batch import group
    from adaptree.kinds.kind import pool
    from adaptree.models.hooks import HookedModel, share

    plan, weights = compose.together(base.hooked.sites, base.hooked.frozen, parts)
    tree = None
    if weights:
        tree = HookedModel(share(base.hooked.model), base.hooked.architecture)
        tree.swap(weights)
        tree.bind(plan)
    found = np.empty((len(rows), base.width), dtype=np.float32)
    with torch.inference_mode(), nullcontext() if tree else base.hooked.running(base.hooked.hook(plan)):
        for at in group([len(row.ids) for row in rows], 64):
            hidden, mask = base.hidden([rows[i] for i in at], tree)
            found[at] = pool(hidden, mask, base.pooling).float().cpu().numpy()
    return found


def _sample(table: Table, rows: int, seed: int) -> tuple[Array, Array]:
    """Rows of different texts in an order of which any beginning has its share of each label; and their folds."""
    _, first = np.unique(table.keys, return_index=True)
    shuffled = np.random.default_rng(seed).permutation(first)
    strata = table.strata()[shuffled]
    rank = np.empty(len(shuffled))
    number = np.empty(len(shuffled), dtype=np.int64)
    for stratum in np.unique(strata):
        at = np.flatnonzero(strata == stratum)
        number[at] = np.arange(len(at))
        rank[at] = (np.arange(len(at)) + 0.5) / len(at)
    order = np.argsort(rank, kind="stable")[:rows]
    return shuffled[order], (number[order] + strata[order]) % FOLDS


def _standardised(values: Array) -> Array:
    values = values.astype(np.float64)
    return np.asarray((values - values.mean()) / (values.std() or 1.0))


def _sure(gain: float, low: float, high: float, spread: float, tried: int) -> str:
    if high < 0:
        return NO
    if low <= 0:
        return UNSURE
    return CLEAR if gain > NormalDist().inv_cdf(1 - 0.025 / max(tried, 1)) * spread else LIKELY


def _key(task: Task) -> str:
    """The same for tasks with the same adapters, which a joint training makes."""
    digest = hashlib.sha256(repr((task.record.method, task.record.extra.get(NEEDS))).encode())
    for name, tensor in sorted(task.weights.items()):
        if not name.startswith("head."):
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
