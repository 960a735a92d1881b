"""A linear probe: how much more of the labels' variance a task's vectors explain than the bare base's.

Each text is one vector, pooled from the base's last layer with a task's adapters in it. Ridge regression predicts the
labels from the vectors, cross-validated; the gain of a task is its explained variance minus that of the bare base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import compose
from adaptree.compose import Parts, Tasks
from adaptree.core import ridge
from adaptree.data.dataset import Dataset
from adaptree.data.events import Listener, silent
from adaptree.errors import AdaptreeError, DataError
from adaptree.kinds import bootstrap
from adaptree.tasks.record import NEEDS
from adaptree.tasks.task import Task
from adaptree.training.settings import Settings

if TYPE_CHECKING:
    from adaptree.data.encode import Encoding
    from adaptree.models.base import Base

Array = np.ndarray[Any, Any]

FOLDS = 5
FEWEST = 20
"""The least number of texts for a probe."""
START, PER_LABEL, STEP = 50, 8, 3
"""Successive halving: the first stage has at least START rows and PER_LABEL per label; each next has STEP times as many
rows and a STEP-th of the tasks."""
CLEAR, LIKELY, UNSURE, NO = "clear", "likely", "unsure", "no"


@dataclass(frozen=True)
class Gain:
    """How much more of the labels' variance a probe explains with a task's adapters than with the bare base."""

    task: str
    gain: float
    """The explained share of the variance on held-out rows, minus `bare`."""
    low: float
    high: float
    """The 95 % interval over the rows."""
    sure: str
    """clear: above zero, corrected for the number of tasks tried; likely: the interval is above zero; unsure: it holds
    zero; no: it is below."""
    bare: float
    """The share that the probe explains on the bare base."""
    rows: int


@dataclass(frozen=True)
class Ranking:
    """Tasks by gain, the best first; those that were tried on more rows come before the others."""

    gains: list[Gain]
    skipped: dict[str, str] = field(default_factory=dict)
    """Why a task was not tried."""


def ranking(
    table: Dataset,
    names: Sequence[str],
    tasks: Tasks,
    base: Base,
    *,
    rows: int = 450,
    top: int | None = None,
    seed: int = 0,
    on_event: Listener = silent,
) -> Ranking:
    """Return the gains of some tasks on a sample of a table's rows.

    With `top`, by successive halving: all are tried on few rows, the best third on three times as many, and so on; at
    least 2·`top` reach the last stage. Without it every task is tried on the whole sample.
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
                skipped[name] = "gives vectors that are not finite for these texts"
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
    """A sample of a table, encoded once, with the ridge regression that predicts its labels from vectors."""

    def __init__(self, table: Dataset, base: Base, rows: int, seed: int) -> None:
        self.base, self.seed = base, seed
        order, folds = _sample(table, rows, seed)
        if len(order) < FEWEST:
            raise DataError(f"'{table.name}' has {len(order)} texts, and at least {FEWEST} are needed.")
        self.rows = len(order)
        self._folds = folds
        self._encoded = base.encoder.encode(table.texts(order), Settings().longest(base.limit))
        targets = table.targets(order)
        self.labels = len(table.labels)
        self._y = np.eye(self.labels)[targets] if self.labels else _standardised(targets)[:, None]
        self._bare: dict[int, Array] = {}
        self._base_vectors: Array | None = None

    def stages(self, tasks: int, top: int | None) -> list[int]:
        """Return the number of rows of each stage, ascending."""
        found = [self.rows]
        if top is not None and tasks > 2 * top:
            least = max(START, PER_LABEL * self.labels)
            while found[0] // STEP >= least and tasks > 2 * top:
                found.insert(0, found[0] // STEP)
                tasks //= STEP
        return found

    def vectors(self, parts: Parts, before: Array | None, count: int) -> Array:
        """Return the vectors of the sample's first `count` texts, (count, width), of which `before` has the first."""
        start = 0 if before is None else len(before)
        fresh = vectors(self.base, self._encoded[start:count], parts)
        return fresh if before is None else np.concatenate([before, fresh])

    def gain(self, name: str, adapted: Array, tried: int) -> Gain:
        """Return the gain of a task from its vectors of the first texts; `tried` is how many tasks are compared."""
        n = len(adapted)
        null, bare, error = self._errors_of_mean(n), self._errors_of_base(n), self._errors(adapted)
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
        """Return the squared error of each text, predicted from the other folds."""
        n = len(x)
        return np.asarray(((self._y[:n] - ridge.held_out(x, self._y[:n], self._folds[:n])) ** 2).sum(1))

    def _errors_of_mean(self, n: int) -> Array:
        """Return the errors of predicting the mean of the other folds."""
        return self._errors(np.zeros((n, 1)))

    def _errors_of_base(self, n: int) -> Array:
        """Return the errors on the vectors of the bare base."""
        if n not in self._bare:
            self._base_vectors = self.vectors((), self._base_vectors, n)
            self._bare[n] = self._errors(self._base_vectors)
        return self._bare[n]


def vectors(base: Base, rows: Sequence[Encoding], parts: Parts) -> Array:
    """Return the pooled vectors of encoded texts, (n, width), with some methods in the base, or with none."""
    from adaptree.models.forward import vectors as pooled

    plan, weights = compose.together(base.hooked.sites, base.hooked.frozen, parts)
    hooked = base.hooked.copy(weights) if weights else base.hooked
    with hooked.running(plan):
        found: Array = pooled(base, rows, base.pooling, hooked=hooked).numpy()
    return found


def _sample(table: Dataset, rows: int, seed: int) -> tuple[Array, Array]:
    """Return rows of distinct texts, ordered so that every prefix is stratified by label, and their folds."""
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
    """Return the values with mean 0 and standard deviation 1."""
    values = values.astype(np.float64)
    return np.asarray((values - values.mean()) / (values.std() or 1.0))


def _sure(gain: float, low: float, high: float, spread: float, tried: int) -> str:
    """Return how sure a gain is (`Gain.sure`); CLEAR is a z-test with Bonferroni's correction."""
    if high < 0:
        return NO
    if low <= 0:
        return UNSURE
    return CLEAR if gain > NormalDist().inv_cdf(1 - 0.025 / max(tried, 1)) * spread else LIKELY


def _key(task: Task) -> str:
    """Return a digest of a task's adapters without its head: joint training makes tasks with the same adapters."""
    digest = hashlib.sha256(repr((task.record.method, task.record.extra.get(NEEDS))).encode())
    for name, tensor in sorted(task.weights.items()):
        if not name.startswith("head."):
            digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()
