"""Fit methods that do not use the base, such as tfidf: directly, without epochs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from adaptree.data.events import Listener
from adaptree.kinds import Kind
from adaptree.methods import Method
from adaptree.training.encoded import EncodedDataset
from adaptree.training.result import Fit, evaluate_output
from adaptree.training.settings import Settings

Array = np.ndarray[Any, Any]


def fit_standalone(
    method: Method,
    kind: Kind,
    training: tuple[EncodedDataset, Array],
    validation: tuple[EncodedDataset, Array],
    settings: Settings,
    on_event: Listener,
) -> Fit:
    """Fit the method and return the result, reported as one epoch."""
    began = time.monotonic()
    (source, rows), (other, held) = training, validation
    v = method.learn(source.dataset.inputs(rows), *kind.bag_targets(source.targets(rows)))
    logits = method.logits(v, other.dataset.inputs(held))
    scores, loss, calibrated = evaluate_output(kind, other.targets(held), logits, [])
    seconds = time.monotonic() - began
    entry = {"epoch": 1, "rows": len(rows), "train_loss": 0.0, "validation_loss": loss, **scores}
    entry["seconds"] = round(seconds, 3)
    on_event({"event": "epoch", "epochs": 1, "best": 1, "metric": settings.metric, **entry})
    return Fit(v, calibrated, [entry], 1, seconds, True, out=logits)
