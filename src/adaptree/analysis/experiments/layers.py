"""What --fast rests on: score and time against the layers that are trained, from the top, on six real tasks."""

from __future__ import annotations

from adaptree.analysis.experiments import figures
from adaptree.analysis.experiments.corpora import Corpus, one_file
from adaptree.analysis.experiments.grid import Grid

TOPS = (1, 2, 3, 4)

grid = Grid(
    title="Score and time against the layers trained",
    tasks=(
        one_file("sms_spam"),
        Corpus("sst2", test="validation"),
        Corpus("sick", test="test"),
        one_file("crowdflower_airline"),
        one_file("crowdflower_corporate_messaging"),
        Corpus("mrpc", test="test"),
    ),
    methods=(*(f"houlsby(size=64, layers=top:{k})" for k in TOPS), "houlsby:64"),
    reference="houlsby:64",
    rows=600,
    epochs=10,
    seeds=3,
    draw=lambda rows, path: figures.layers(rows, path, (*TOPS, 6)),
)
run = grid.run
