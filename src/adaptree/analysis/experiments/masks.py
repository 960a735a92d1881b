"""Which weights change: where the masks of lt_sft and diff_pruning lie, by layer and kind of weight.

Both keep half a per cent of the base's weights, chosen freely. A share of 2 means that such weights are kept twice as
often as in a uniform mask.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.cells import full_spelling
from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import figures, ledger
from adaptree.analysis.experiments.corpora import Corpus, count_lines, parts
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.methods import parse
from adaptree.methods.sparse import changed
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table
from adaptree.training.pipeline import train
from adaptree.training.run import Run

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.sites import Sites

TASKS = (Corpus("sst2", test="validation"), Corpus("sick", test="test"))
METHODS = ("lt_sft", "diff_pruning")
ROWS, VALIDATION, STEPS, BATCH, MAX_LENGTH = 1000, 400, 300, 16, 128
ROLES = {
    "query": "query", "key": "key", "value": "value", "qkv": "query, key, value", "output": "attention output",
    "cross_query": "cross query", "cross_key": "cross key", "cross_value": "cross value",
    "cross_output": "cross output", "gate": "feed-forward gate", "up": "feed-forward in", "down": "feed-forward out",
}  # fmt: skip
"""The kinds of a layer's linear maps, by their roles."""
NORMS, BIASES, EMBEDDINGS, OTHERS = "norms", "biases", "embeddings", "others"
KINDS = (*ROLES.values(), NORMS, BIASES, EMBEDDINGS, OTHERS)
OUTSIDE = "embeddings"
"""In the place of a layer: the tables below the lowest one, and their norm."""


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page over all that are done."""
    found = ledger.read(setup.out) if setup.redraw else ledger.run(_cells(setup), setup)
    return write_page(_page(found, setup), setup.out, setup.command)


def _cells(setup: Setup) -> list[Cell]:
    base = base_of(setup.base, "auto", setup.threads)
    return [
        _cell(corpus.name, method, seed, parts(corpus, setup.data, setup.out / "rows", ROWS, VALIDATION), base)
        for corpus in select(setup.tasks, TASKS)
        for method in METHODS
        for seed in range(setup.seeds or 1)
    ]


def _cell(task: str, method: str, seed: int, files: Mapping[str, Path], base: Base) -> Cell:
    rows = count_lines(files["train"])
    epochs = -(-STEPS * BATCH // rows)
    asked = {
        "task": task, "base": base.name, "method": full_spelling(method), "epochs": epochs, "seed": seed,
        "lr": parse(method).lr, "batch_size": BATCH, "max_length": MAX_LENGTH, "fingerprint": base.fingerprint,
        "rows": {part: file_digest(path) for part, path in files.items()},
    }  # fmt: skip
    tokens = 20 * epochs * rows * parse(method).stages
    return Cell(asked, partial(_train, method, epochs, seed, files, base), tokens, method)


def _train(method: str, epochs: int, seed: int, files: Mapping[str, Path], base: Base) -> dict[str, Any]:
    """Return the scores of a training, and for each layer and kind how many weights there are and how many are kept."""
    began = time.process_time()
    run = Run.of(
        files["train"], validation=files["validation"], test=files["test"], base=base, method=method, epochs=epochs,
        seed=seed, batch_size=BATCH, max_length=MAX_LENGTH, baselines=False, objective="cross-entropy",
    )  # fmt: skip
    task = train(run)[0].task
    frozen, sites = base.hooked.frozen, base.hooked.sites
    kept: Counter[tuple[str, str]] = Counter()
    of: Counter[tuple[str, str]] = Counter()
    for name, count in changed(frozen, task.weights).items():
        group = group_of(name, sites)
        kept[group] += count
        of[group] += frozen[name].numel()
    return {
        **task.record.metrics,
        "groups": [{"layer": key[0], "kind": key[1], "kept": kept[key], "of": count} for key, count in of.items()],
        "seconds": task.record.seconds, "cpu_seconds": round(time.process_time() - began, 2),
    }  # fmt: skip


def group_of(name: str, sites: Sites) -> tuple[str, str]:
    """Return the layer (or `OUTSIDE`) and the kind of one of the backbone's parameters."""
    inside = any(name.startswith(f"{path}.") for path in sites.layers)
    layer = str(sites.layer_of(name)) if inside else OUTSIDE
    roles = {f"{linear.path}.weight": linear.role for linear in sites.linears}
    if name in roles:
        return layer, ROLES.get(roles[name], OTHERS)
    if any(name.startswith(f"{norm.path}.") for norm in sites.norms):
        return layer, NORMS
    if name.endswith("bias"):
        return layer, BIASES
    return layer, OTHERS if inside else EMBEDDINGS


def shares(cells: Sequence[Found], *by: str) -> dict[tuple[str, ...], float]:
    """Return how often weights are kept relative to a uniform mask, by `layer`, `kind` or both, over all cells."""
    kept: Counter[tuple[str, ...]] = Counter()
    of: Counter[tuple[str, ...]] = Counter()
    for group in (group for cell in cells for group in cell["found"]["groups"]):
        key = tuple(group[name] for name in by)
        kept[key] += group["kept"]
        of[key] += group["of"]
    density = kept.total() / of.total()
    return {key: kept[key] / count / density for key, count in of.items()}


def _page(cells: Sequence[Found], setup: Setup) -> list[str]:
    """Return the lines of the page, and draw the figure."""
    found: dict[tuple[str, str], list[Found]] = {}
    for cell in cells:
        if "found" in cell:
            found.setdefault((cell["asked"]["task"], cell["asked"]["method"].partition("(")[0]), []).append(cell)
    seeds = len({cell["asked"]["seed"] for cell in cells})
    lines = [
        "# Which weights change",
        "",
        f"Base: {setup.base}. At most {ROWS:,} training rows, {STEPS} batches of {BATCH} in each of two stages, "
        f"{seeds} seed(s). How often weights are kept, relative to a uniform mask of the same size: 2 is "
        "twice as often.",
        "",
    ]
    if not found:
        return [*lines, "No cell is done yet.", ""]
    groups = [group for some in found.values() for group in some[0]["found"]["groups"]]
    layers = sorted({group["layer"] for group in groups}, key=lambda layer: -1 if layer == OUTSIDE else int(layer))
    kinds = sorted({group["kind"] for group in groups}, key=KINDS.index)
    for by, names in (("kind", kinds), ("layer", layers)):
        body = [
            [task, method, *(f"{shares(some, by)[name,]:.2f}" for name in names), f"{_score(some):.1f}"]
            for (task, method), some in found.items()
        ]
        shown = [f"layer {name}" if name.isdecimal() else name for name in names]
        lines += [table(("task", "method", *shown, "test accuracy"), body), ""]
    drawn = {f"{task}, {method}": shares(some, "layer", "kind") for (task, method), some in found.items()}
    figures.masks(drawn, layers, kinds, setup.out / "figure.png")
    return [*lines, "![Shares by layer and kind of weight](figure.png)", ""]


def _score(cells: Sequence[Found]) -> float:
    return 100 * sum(float(cell["found"]["test"]["accuracy"]) for cell in cells) / len(cells)
