"""Peak memory of training above the loaded base, at equal batch."""

from __future__ import annotations

import dataclasses

from benchmarks.runs import OURS, Setup, bottlenecks, memory, training
from benchmarks.table import Amount, Table

QUICK = True
EPOCHS = 2
"""Enough for the peak; runs of their own, apart from those that are timed."""


def tables(setup: Setup) -> list[Table]:
    full = "adaptree, full fine-tuning"
    setup = dataclasses.replace(setup, epochs=EPOCHS)
    runs = {
        full: training(setup, "ours", "full"),
        OURS: training(setup, "ours"),
        "adaptree --fast": training(setup, "ours", more=("--fast",)),
        **{label: run for label, run in bottlenecks(setup).items() if label != OURS},
    }
    return [
        Table(
            title="Peak memory above the loaded base, batches of 32",
            unit="MB",
            amounts={label: Amount((run,), memory) for label, run in runs.items()},
            reference=full,
            aims={OURS: "<= 0.7", "adaptree --fast": "<= 0.35"},
            scale=1e-6,
            note="Runs of two epochs; the base's weights are read before counting begins. Pages of mapped files, such "
            "as the activation cache, count while they are held.",
        )
    ]
