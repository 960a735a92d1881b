"""Every way of tuning on seven real tasks: score against trained parameters, as in the paper's figures 1 and 3.

Full fine-tuning, the top layers, norms, the head, TF-IDF, Houlsby's adapters of three sizes, Pfeiffer's, LoRA, BitFit
and the two sparse ones; each task's rows are the same for all. Three seeds on the smallest tasks, one elsewhere.
"""

from __future__ import annotations

from adaptree.analysis.experiments import summary
from adaptree.analysis.experiments.corpora import Corpus, one_file
from adaptree.analysis.experiments.grid import Grid

grid = Grid(
    title="Every way of tuning, on seven tasks",
    tasks=(
        Corpus("sick", test="test"),
        one_file("sms_spam"),
        Corpus("stsb", test="test"),
        one_file("crowdflower_airline"),
        one_file("crowdflower_corporate_messaging"),
        Corpus("mrpc", test="test"),
        Corpus("rte", test="validation"),
    ),
    methods=(
        "full", "top", "norms", "head", "tfidf", "houlsby:8", "houlsby:64", "houlsby:256", "pfeiffer", "lora", "bitfit",
        "lt_sft", "diff_pruning",
    ),
    reference="full",
    rows=500,
    epochs=5,
    more_seeds={"crowdflower_corporate_messaging": 3, "rte": 3},
    draw=lambda rows, path: summary.tradeoff(rows, path, title="Every way of tuning, 500 rows a task", tasks=7),
)  # fmt: skip
run = grid.run
