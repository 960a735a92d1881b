"""What comes of a run: the best weights with the whole course, and how they are scored on validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from adaptree.kinds import Example, Kind, Out

Event = dict[str, Any]
"""What is told while a run goes on."""


@dataclass
class Fit:
    """What came of a run: the best epoch's weights and the whole course."""

    v: dict[str, Tensor]
    kind: Kind
    """With what was chosen on validation."""
    history: list[dict[str, Any]]
    best: int
    """Number of the best epoch, from 1; 0 before the first is done."""
    seconds: float
    finished: bool
    used: dict[str, Any] = field(default_factory=dict)
    """What it was really done with: the depth of the trunk, the number of processes, the device."""
    out: Out | None = None
    """The best epoch's on the validation inputs, where they are the very bits that the task gives."""


def scored(kind: Kind, targets: Any, out: Out, examples: Sequence[Example]) -> tuple[dict[str, float], float, Kind]:
    """The scores and the loss on validation, and the kind with what was chosen there."""
    loss = float(kind.loss(out, examples, targets).double().mean())
    settled = kind.calibrated(out, examples, targets)
    return settled.score(targets, settled.decode(out, examples)), loss, settled
