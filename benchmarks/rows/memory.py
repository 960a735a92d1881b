"""Peak memory of training above the loaded base, at equal batch."""

from __future__ import annotations

from benchmarks.runs import OURS, Setup, bottlenecks, memory, training
from benchmarks.table import Amount, Table

QUICK = True


def tables(setup: Setup) -> list[Table]:
    full = "adaptree, full fine-tuning"
    epochs = min(2, setup.epochs)
    runs = {
        full: training(setup, "ours", "full", epochs=epochs),
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
            note="Pages of mapped files, such as the trunk cache, count while they are held.",
        )
    ]
