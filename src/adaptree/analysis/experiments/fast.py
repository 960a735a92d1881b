"""What --fast costs: the default and --fast side by side on six real tasks, three seeds each."""

from __future__ import annotations

from adaptree.analysis.experiments import figures
from adaptree.analysis.experiments.grid import Grid
from adaptree.analysis.experiments.layers import grid as layers

grid = Grid(
    title="What --fast costs",
    tasks=layers.tasks,
    methods=("houlsby:64", "houlsby:64 --fast"),
    reference="houlsby:64",
    rows=layers.rows,
    epochs=layers.epochs,
    seeds=3,
    draw=figures.beside,
)
run = grid.run
