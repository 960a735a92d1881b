"""The result of training: the best weights with the history, and how they are scored on validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from adaptree.kinds import Example, Kind, Out


@dataclass
class Fit:
    """The best epoch's weights and the history of all epochs."""

    v: dict[str, Tensor]
    kind: Kind
    """With what it chose on validation."""
    history: list[dict[str, Any]]
    best: int
    """The number of the best epoch, from 1; 0 before the first is done."""
    seconds: float
    finished: bool
    chose_nothing: bool = False
    """Whether the weights would be the same with other validation rows: these may be learned from, too."""
    used: dict[str, Any] = field(default_factory=dict)
    """What was used: how many layers came from the activation cache, the number of processes, the device."""
    out: Out | None = None
    """The best epoch's output on validation, if it has the very bits that the task will give."""
    warnings: Callable[[], list[str]] = list
    """Return what the user should know of how the training went; may score the initial weights for it."""
    keep: Callable[[], None] = lambda: None
    """Write a checkpoint, so that nothing is lost if the rest of the run fails."""


def evaluate_output(
    kind: Kind, targets: Any, out: Out, examples: Sequence[Example]
) -> tuple[dict[str, float], float, Kind]:
    """Return the scores, the loss and the calibrated kind for the head's output on validation."""
    loss = float(kind.loss(out, examples, targets).double().mean())
    calibrated = kind.calibrated(out, examples, targets)
    return calibrated.score(targets, calibrated.decode(out, examples)), loss, calibrated
