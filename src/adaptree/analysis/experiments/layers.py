"""What --fast rests on: score and time against the layers that are trained, from the top, on six real tasks."""

from __future__ import annotations

from adaptree.analysis.experiments import figures
from adaptree.analysis.experiments.grid import Grid
from adaptree.analysis.experiments.tasks import Task, whole

TOPS = (1, 2, 3, 4)

grid = Grid(
    title="Score and time against the layers trained",
    tasks=(
        whole("sms_spam"),
        Task("sst2", test="validation"),
        Task("sick", test="test"),
        whole("crowdflower_airline"),
        whole("crowdflower_corporate_messaging"),
        Task("mrpc", test="test"),
    ),
    methods=(*(f"houlsby(size=64, layers=top:{k})" for k in TOPS), "houlsby:64"),
    reference="houlsby:64",
    rows=600,
    epochs=10,
    seeds=3,
    draw=lambda rows, path: figures.layers(rows, path, (*TOPS, 6)),
)
run = grid.run
