"""A method outside the base, such as tfidf: it learns by itself, at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from adaptree.kinds import Kind
from adaptree.kinds.encoded import Encoded
from adaptree.methods import Method
from adaptree.training.result import Event, Fit, scored
from adaptree.training.settings import Settings

Array = np.ndarray[Any, Any]


def learn(
    method: Method,
    kind: Kind,
    training: tuple[Encoded, Array],
    validation: tuple[Encoded, Array],
    settings: Settings,
    on_event: Callable[[Event], None],
) -> Fit:
    """What comes of it, told as one epoch."""
    began = time.monotonic()
    (source, rows), (checker, held) = training, validation
    v = method.learn(source.dataset.inputs(rows), *kind.bag_targets(source.targets(rows)))
    logits = method.logits(v, checker.dataset.inputs(held))
    scores, loss, settled = scored(kind, checker.targets(held), logits, [])
    seconds = time.monotonic() - began
    entry = {"epoch": 1, "rows": len(rows), "train_loss": 0.0, "validation_loss": loss, **scores}
    entry["seconds"] = round(seconds, 3)
    on_event({"event": "epoch", "epochs": 1, "best": 1, "metric": settings.metric, **entry})
    return Fit(v, settled, [entry], 1, seconds, True, out=logits)
