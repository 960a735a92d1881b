"""Contrastive training for few rows a label: the vectors of texts with one label are drawn together, those of other
labels pushed apart (Khosla et al. 2020, supervised contrastive learning); then the head is solved on the vectors.

With k rows of a label there are k(k-1) pairs to learn from instead of k targets, and all of them are in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from adaptree.data.batch import group
from adaptree.kinds import Example
from adaptree.kinds.kind import pool
from adaptree.training.estimate import Estimate, lengths
from adaptree.training.loop import Array, Trainer
from adaptree.training.precision import computing_in

TEMPERATURE = 0.05
BATCH, OF_LABEL = 64, 4
"""Texts in a batch at most; more where that is less than OF_LABEL of each label."""
STEPS, PASSES = 15, 5
"""How many batches are learned from; more where that is less than PASSES over all rows."""
RATE = 2.0
"""The learning rate where the user gives none, in units of the method's: there are few steps, each with many pairs."""
CONTINUED = 3
"""A training that goes on from trained weights, on a few more rows, has a part of the steps: one in so many."""
MOST_TOKENS = 4096
"""Tokens that are computed at once with what their gradient needs; larger batches are computed twice, in parts."""


def contrastive_loss(vectors: Tensor, alike: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return the loss of each text, (n,): −Σ_p a_ip log softmax_p(z_i·z_p / τ) / Σ_p a_ip, over all other texts p.

    `vectors` (n, d) are normalised to z; `alike` (n, n) are the weights a, 1 for texts of one label. A text that is
    like no other has a loss of zero.
    """
    z = F.normalize(vectors, dim=-1)
    own = torch.eye(len(z), dtype=torch.bool, device=z.device)
    logits = (z @ z.t() / temperature).masked_fill(own, -torch.inf)
    alike = alike.to(z).masked_fill(own, 0)
    log_probability = logits.log_softmax(-1).masked_fill(own, 0)
    return -(alike * log_probability).sum(-1) / alike.sum(-1).clamp_min(1e-12)


class ContrastiveTrainer(Trainer):
    """A run of so many steps, scored once at its end: nothing is chosen on the validation rows."""

    @property
    def chooses_nothing(self) -> bool:
        return True

    @property
    def steps(self) -> int:
        """How many batches are learned from."""
        steps = self.settings.max_steps or max(STEPS, -(-PASSES * len(self.train_rows) // self.size))
        return -(-steps // CONTINUED) if self.continues else steps

    @property
    def size(self) -> int:
        """How many texts a batch has."""
        return min(len(self.train_rows), max(BATCH, OF_LABEL * self.kind.width))

    @property
    def total(self) -> int:
        return self.steps * self.size

    def _estimate(self) -> Estimate:
        tokens = lengths(self.source, self.train_rows)[0] * self.total / len(self.train_rows)
        scored = lengths(self.validation, self.validation_rows)[0]
        return Estimate(self.settings, 1, self.total, self.total, self.steps, tokens, scored, self.on_event)

    def batches(self, seed: Sequence[int]) -> Iterator[tuple[Array, list[Example]]]:
        """Yield the batches of all steps, as even in their labels as the rows allow."""
        rng = np.random.default_rng(list(seed))
        strata = self.source.strata(self.train_rows)
        order: list[int] = []
        for _ in range(self.steps):
            while len(order) < self.size:
                order += _spread(strata, rng)
            rows, order = self.train_rows[order[: self.size]], order[self.size :]
            yield rows, self.source.examples(rows)

    def _backward(self, indices: Array, examples: list[Example]) -> float:
        """Add the gradient of a batch; in parts, if it is large: first the loss's by vector, then each part's."""
        self._seed_step()
        alike = self.kind.alike(self.source.targets(indices)).to(self.base.device)
        parts = self._parts(examples)
        if len(parts) == 1:
            return self._add(contrastive_loss(self._embed(examples), alike), indices)
        with torch.no_grad():
            vectors = torch.cat([self._embed([examples[i] for i in part]) for part in parts])
        vectors.requires_grad_()
        order = np.concatenate(parts)
        value = self._add(contrastive_loss(vectors, alike[order][:, order]), indices[order])
        assert vectors.grad is not None
        each = vectors.grad.split([len(part) for part in parts])  # type: ignore[no-untyped-call]
        for part, gradient in zip(parts, each, strict=True):
            self._embed([examples[i] for i in part]).backward(gradient)  # type: ignore[no-untyped-call]
        return value

    def _add(self, losses: Tensor, indices: Array) -> float:
        """Add the gradient of the mean loss and the method's penalty; return the sum of the losses."""
        loss = self.source.weighted(losses, indices)
        penalty = self.method.penalty(self.v)
        whole = loss.mean() if penalty is None else loss.mean() + penalty
        whole.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach().sum())

    def _parts(self, examples: list[Example]) -> list[Array]:
        """Return the places of the examples in parts of similar lengths that are computed at once."""
        lengths = np.array([len(example[0].ids) for example in examples])
        order = np.argsort(lengths, kind="stable")
        most = self.settings.most_tokens or MOST_TOKENS
        tokens = np.cumsum(lengths[order])
        if self.settings.accumulate > 1:
            most = min(most, -(-int(tokens[-1]) // self.settings.accumulate))
        return [order[tokens // (most + 1) == k] for k in np.unique(tokens // (most + 1))]

    def _embed(self, examples: Sequence[Example]) -> Tensor:
        """Return the pooled vector of each example, (n, d)."""
        rows = [example[0] for example in examples]
        if self.method.dynamic:
            self._swap_weights()
        found: list[Tensor] = []
        order: list[Array] = []
        with computing_in(self.precision, self.device_type):
            for at in group([len(row.ids) for row in rows], len(rows)):
                hidden, mask = self.base.hidden([rows[i] for i in at], self.hooked)
                found.append(pool(hidden, mask, self.pooling).float())
                order.append(at)
        back = torch.from_numpy(np.argsort(np.concatenate(order))).to(self.base.device)
        return torch.cat(found)[back]

    def _close_epoch(self, **more: float) -> None:
        super()._close_epoch(penalty=self.solve_head(), steps=self.state.step, **more)


def _spread(strata: Array, rng: np.random.Generator) -> list[int]:
    """Return all places once, in a random order in which every stretch has all labels in equal shares, if it can."""
    order = rng.permutation(len(strata))
    turn = np.empty(len(strata))
    for stratum in np.unique(strata):
        mine = order[strata[order] == stratum]
        turn[mine] = (np.arange(len(mine)) + rng.random()) / len(mine)
    return [int(i) for i in order[np.argsort(turn[order], kind="stable")]]
