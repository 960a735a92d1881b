"""How long a run will take, estimated from its own first steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree.data.batch import POOL, canonical
from adaptree.data.events import Listener

if TYPE_CHECKING:
    from adaptree.training.encoded import EncodedDataset
    from adaptree.training.settings import Settings
    from adaptree.training.state import State

Array = np.ndarray[Any, Any]
STEPS, SECONDS = 2, 1.0
"""How many steps, and how much time, the estimate is from at least; the first step is slower and does not count."""
SAMPLE = 1000
"""Rows whose lengths stand for all."""
SCORING = 1 / 3
"""The time to score a text, in parts of the time to train on it: without a backward pass."""


@dataclass
class Estimate:
    """The time that a run still needs. It knows nothing of early stopping: that may end the run sooner."""

    settings: Settings
    stages: int
    total: int
    """Training rows of a stage, each as often as it is shown."""
    rows: int
    """Training rows of an epoch."""
    steps: int
    """Steps of an epoch."""
    tokens: float
    """Tokens of an epoch."""
    scored: float
    """Tokens that are scored after each epoch."""
    on_event: Listener
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._first: tuple[float, int, int, float] | None = None
        self._told = False

    def after_step(self, state: State) -> None:
        """Send the estimate of the whole run as an event, once, when some steps have been timed."""
        if self._first is None:
            self._first = self.now(), state.tokens, state.step, self._done(state)
        began, tokens, step, _ = self._first
        seconds = self.now() - began
        if self._told or seconds < SECONDS or state.step - step < STEPS:
            return
        self._told = True
        left = (1 - self._done(state)) * self._epochs() * (self.tokens + SCORING * self.scored)
        self.on_event({
            "event": "estimate", "seconds": left * seconds / max(state.tokens - tokens, 1), "rows": self.rows,
            "epochs": self.settings.epochs, "steps": self._steps(), "tokens": round(self._epochs() * self.tokens),
        })  # fmt: skip

    def left(self, state: State) -> float | None:
        """Return the seconds that are left at the end of an epoch, by the time since the first step; None before it."""
        if self._first is None:
            return None
        began, _, _, share = self._first
        done = self._done(state)
        return (self.now() - began) * (1 - done) / (done - share) if done > share else None

    def _steps(self) -> int:
        """Return how many steps the run has in all."""
        stage = round(self.total / max(self.rows, 1) * self.steps)
        return self.stages * min(stage, self.settings.max_steps or stage)

    def _epochs(self) -> float:
        """Return how many passes over the training rows the run has in all."""
        return self._steps() / max(self.steps, 1)

    def _done(self, state: State) -> float:
        """Return the share of the run that is done."""
        share = state.seen / max(self.total, 1)
        if self.settings.max_steps:
            share = max(share, state.step / self.settings.max_steps)
        return (state.stage + min(share, 1.0)) / self.stages


def lengths(source: EncodedDataset, rows: Array) -> tuple[float, Array]:
    """Return how many tokens the rows have in all, and of a sample of them the length of each, in its longest part."""
    examples = source.examples(rows[:: max(1, -(-len(rows) // SAMPLE))])
    counts = [[len(row.ids) for row in example] for example in examples]
    tokens = sum(map(sum, counts)) * len(rows) / max(len(counts), 1)
    return tokens, np.array([max(count) for count in counts])


def steps_of(longest: Array, rows: int, batch_size: int) -> int:
    """Return how many batches an epoch of so many rows has; a batch has rows of one length."""
    pools = -(-rows // POOL)
    _, counts = np.unique([canonical(length) for length in longest], return_counts=True)
    return int(pools * np.ceil(counts * (rows / pools / max(len(longest), 1)) / batch_size).sum())
