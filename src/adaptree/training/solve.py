"""Solve a linear head exactly: the kind's own loss with an L2 penalty, minimised to convergence on fixed features.

For one label a text this is multinomial logistic regression, for numbers it is ridge regression. The strength of the
penalty is chosen by cross-validation on the training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptree.kinds.kind import Example, Kind, Out, Targets

Array = np.ndarray[Any, Any]
STRENGTHS = 10.0 ** np.arange(3, -2.5, -0.5)
"""Tried from the strongest: penalties on weights of features whose mean square is 1, in units of one row's loss."""
FOLDS = 5
MOST_ROWS = 2_000
"""Examples that the strength is chosen on at most; the head itself is solved on all."""
MOST_BYTES = 1 << 30
"""Features larger than this (in float64) are not held in memory."""
EXACT, ROUGH = {"maxiter": 1000, "gtol": 1e-6, "ftol": 1e-12}, {"maxiter": 100, "gtol": 1e-4, "ftol": 1e-7}
"""When L-BFGS ends: for the head, and while its strength is chosen."""
WORSE = 2
"""After this many weaker penalties in a row that are no better, no weaker one is tried."""


@dataclass(frozen=True)
class Problem:
    """What a head is solved on: some examples with what it reads of them, and their targets."""

    kind: Kind
    examples: Sequence[Example]
    parts: Sequence[Tensor]
    """Of each example a matrix (rows or tokens, d)."""
    targets: Targets
    class_weights: Tensor | None = None
    row_weights: Array | None = None
    """How much each example counts; None where all count the same."""

    def __len__(self) -> int:
        return len(self.parts)

    def select(self, rows: Array) -> Problem:
        """Return the problem of some of the examples."""
        return replace(
            self,
            examples=[self.examples[i] for i in rows],
            parts=[self.parts[i] for i in rows],
            targets=self.targets[rows] if isinstance(self.targets, np.ndarray) else [self.targets[i] for i in rows],
            row_weights=None if self.row_weights is None else self.row_weights[rows],
        )

    def read(self) -> Tensor:
        """Return what the head reads, all parts end to end, in float64."""
        return torch.cat([part.double() for part in self.parts])

    def loss(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the sum of the examples' losses for a head that reads `x`, all parts end to end."""
        out: Out = x @ weight.t() + bias
        if self.kind.reads_tokens:
            out = list(out.split([len(row.ids) for example in self.examples for row in example]))
        weights = None if self.class_weights is None else self.class_weights.double().cpu()
        losses = self.kind.loss(out, self.examples, self.targets, weights)
        return (losses if self.row_weights is None else losses * torch.from_numpy(self.row_weights)).sum()


def solve_head(problem: Problem, strata: Array, seed: int = 0) -> tuple[dict[str, Tensor], float]:
    """Return the head that minimises the mean loss with the best of `STRENGTHS`, and that strength.

    `strata` are spread evenly over the folds of the cross-validation.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="blas"):  # L-BFGS's own vectors are short: threads cost it more than they help
        strength = _choose(problem, _sampled(len(problem), strata, seed), strata, seed)
        ((weight, bias),) = _Solver(problem).path([strength], EXACT)
    return {"head.weight": weight.float(), "head.bias": bias.float()}, float(strength)


def _choose(problem: Problem, rows: Array, strata: Array, seed: int) -> float:
    """Return the strength with the least loss on rows that were left out."""
    folds = _folds(strata[rows], seed)
    pairs = [(rows[folds != fold], rows[folds == fold]) for fold in np.unique(folds)]
    if len(pairs) < 2:
        return 1.0
    losses = np.zeros((len(pairs), len(STRENGTHS)))
    for at, (train, test) in enumerate(pairs):
        solver, held = _Solver(problem.select(train)), problem.select(test)
        x = held.read()
        for place, (weight, bias) in enumerate(solver.path(STRENGTHS, ROUGH)):
            with torch.no_grad():
                losses[at, place] = float(held.loss(x, weight, bias))
            recent = losses[at, max(0, place - WORSE) : place + 1]
            if place >= WORSE and recent.argmin() == 0:  # the path has passed its best
                losses[at, place + 1 :] = np.inf
                break
    return float(STRENGTHS[int(losses.sum(0).argmin())])


class _Solver:
    """Minimises the loss on some rows; features are centred and scaled, which changes nothing but the conditioning."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        x = problem.read()
        self.mean = x.mean(0)
        self.x = x - self.mean
        self.scale = float(self.x.square().mean().sqrt()) or 1.0
        self.x /= self.scale
        self.turn: Tensor | None = None
        if len(x) < x.shape[1]:  # no weight outside the rows' span helps: solve within it, in fewer dimensions
            self.turn = torch.linalg.qr(self.x.t()).Q.t()
            self.x = self.x @ self.turn.t()
        self.width, self.d = problem.kind.width, self.x.shape[1]

    def path(self, strengths: Sequence[float] | Array, until: Mapping[str, float]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the weight and bias for each strength in turn, each solved from the one before."""
        flat = np.zeros(self.width * (self.d + 1))
        for strength in strengths:
            flat = self._minimise(flat, float(strength), until)
            weight, bias = self._shaped(torch.from_numpy(flat))
            weight = (weight if self.turn is None else weight @ self.turn) / self.scale
            yield weight, bias - weight @ self.mean

    def _shaped(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return flat[: -self.width].view(self.width, self.d), flat[-self.width :]

    def _minimise(self, start: Array, strength: float, until: Mapping[str, float]) -> Array:
        from scipy.optimize import minimize

        def value(flat: Array) -> tuple[float, Array]:
            here = torch.from_numpy(flat).requires_grad_()
            weight, bias = self._shaped(here)
            loss = self.problem.loss(self.x, weight, bias)
            whole = (loss + 0.5 * strength * weight.square().sum()) / len(self.problem)
            whole.backward()  # type: ignore[no-untyped-call]
            assert here.grad is not None
            return float(whole.detach()), here.grad.numpy()

        return np.asarray(minimize(value, start, jac=True, method="L-BFGS-B", options=dict(until)).x)


def _sampled(count: int, strata: Array, seed: int) -> Array:
    """Return the rows on which the strength is chosen: all, or of each stratum the same share."""
    if count <= MOST_ROWS:
        return np.arange(count)
    order = np.random.default_rng(seed).permutation(count)
    order = order[np.argsort(strata[order], kind="stable")]
    return np.sort(order[:: -(-count // MOST_ROWS)])


def _folds(strata: Array, seed: int) -> Array:
    """Return each row's fold: the rows of a stratum go round the folds in a random order."""
    order = np.random.default_rng(seed).permutation(len(strata))
    order = order[np.argsort(strata[order], kind="stable")]
    folds = np.empty(len(strata), dtype=np.int64)
    folds[order] = np.arange(len(strata)) % min(FOLDS, len(strata))
    return folds
