"""AdapterFusion on real data: does a small task gain from what larger ones have learned?

On each target: the head alone, full fine-tuning, an adapter of its own, the fusion of that with the sources' adapters,
and as its control the same adapter trained as long again, since a fusion is a second training; the two with adapters
of another form; an adapter that was trained on all tasks jointly, and the fusion of those. All have the same number of
steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis import explain
from adaptree.analysis.compare.files import digest, file_digest
from adaptree.analysis.experiments import figures, ledger, sweep, trainings
from adaptree.analysis.experiments.corpora import Corpus, count_lines, one_file, parts
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.analysis.experiments.trainings import Trainer, Training
from adaptree.models.evaluate import evaluate
from adaptree.reports.markdown import table
from adaptree.tasks.store import Store
from adaptree.training.pipeline import train
from adaptree.training.predict import inputs_of
from adaptree.training.run import Run

if TYPE_CHECKING:
    from adaptree.models.bound import Bound

ROWS, VALIDATION = 3000, 400
"""Rows of a task at most, to train on and to choose the epoch."""
STEPS, BATCH, MAX_LENGTH, SEEDS, TEMPERATURE = 400, 16, 128, 3, 2
PFEIFFER, HOULSBY = "pfeiffer:48", "houlsby_feedforward(size=48, norms=false)"
"""A fusion takes one adapter a layer, without norms of its own: of Houlsby's the one after the feed-forward block."""
HEAD, FULL, ADAPTER, AGAIN, FUSION = "head", "full", "adapter", "trained again", "fusion"
HOULSBY_ADAPTER, HOULSBY_FUSION = "houlsby adapter", "houlsby fusion"
JOINT, FUSION_OF_JOINT = "joint", "fusion of joint"
COLUMNS = (HEAD, FULL, ADAPTER, AGAIN, FUSION, HOULSBY_ADAPTER, HOULSBY_FUSION, JOINT, FUSION_OF_JOINT)
TARGETS = (
    Corpus("rte", test="validation"),
    Corpus("cb", test="validation"),
    Corpus("sick", test="test"),
    Corpus("mrpc", test="test"),
)
SOURCES = (
    Corpus("mnli", test="validation_matched"),
    Corpus("qqp", test="validation_from_train"),
    Corpus("sst2", test="validation"),
    Corpus("qnli", test="validation"),
    Corpus("cola", test="validation"),
    one_file("crowdflower_airline"),
    *TARGETS,
)


def run(setup: Setup) -> str:
    """Train the cells that are missing; return the page over all that are done."""
    found = ledger.alike(ledger.read(setup.out), "base", "recipe") if setup.redraw else ledger.run(_cells(setup), setup)
    return write_page(_page(found, setup.out), setup.out, setup.command)


def _cells(setup: Setup) -> list[Cell]:
    """Return the cells of all columns, those that others build on first; of the joint adapters there is one seed."""
    targets = select(setup.tasks, TARGETS)
    files = {c.name: parts(c, setup.data, setup.out / "rows", ROWS, VALIDATION) for c in SOURCES}
    trainer = Trainer.of(setup, BATCH, MAX_LENGTH, rows=ROWS, steps=STEPS)
    epochs = {name: trainer.epochs(own, STEPS) for name, own in files.items()}
    singles = {
        (column, name, seed): trainer.cell(column, name, own, method, epochs[name], seed)
        for column, method in ((ADAPTER, PFEIFFER), (HOULSBY_ADAPTER, HOULSBY))
        for name, own in files.items()
        for seed in range((setup.seeds or SEEDS) if name in {target.name for target in targets} else 1)
    }
    joint = _joint(trainer, files, [target.name for target in targets])
    found: list[Cell] = [*singles.values(), joint]
    for name in (target.name for target in targets):
        others = [other for other in files if other != name]
        for seed in range(setup.seeds or SEEDS):
            make = partial(trainer.cell, task=name, files=files[name], epochs=epochs[name], seed=seed)
            # A head alone is solved: nothing in it is random.
            found += [make(column, method=column, keep=False) for column in (HEAD, FULL) if column != HEAD or not seed]
            own = singles[ADAPTER, name, seed]
            found.append(make(AGAIN, method=PFEIFFER, start=own, keep=False))
            for column, of in ((FUSION, ADAPTER), (HOULSBY_FUSION, HOULSBY_ADAPTER)):
                fused = [singles[of, name, seed], *(singles[of, other, 0] for other in others)]
                look = partial(_attention, test=files[name]["test"], names=[name, *others])
                found.append(make(column, method="fusion", fuse=fused, then=look))
            fused = [replace(joint, name=f"{joint.key}/{each}") for each in (name, *others)]
            found.append(make(FUSION_OF_JOINT, method="fusion", fuse=fused))
    return found


def _joint(trainer: Trainer, files: Mapping[str, Mapping[str, Path]], targets: Sequence[str]) -> Training:
    """Return the cell that trains one set of adapters on all tasks, as long as each has alone, and tests the targets.

    A fifth of each task's training rows chooses the epoch.
    """
    rows = sum(count_lines(own["train"]) for own in files.values())
    epochs = -(-STEPS * BATCH * len(files) // rows)
    asked = trainer.asked(
        what=JOINT, method=PFEIFFER, epochs=epochs, seed=0, temperature=TEMPERATURE, targets=list(targets),
        rows={name: file_digest(own["train"]) for name, own in files.items()},
    )  # fmt: skip
    key = digest(asked)

    def learn() -> dict[str, Any]:
        began = time.process_time()
        options = {"temperature": TEMPERATURE, "epochs": epochs, "batch_size": BATCH, "max_length": MAX_LENGTH}
        run = Run.of(
            {name: own["train"] for name, own in files.items()}, name=key, joint=True, base=trainer.base,
            method=PFEIFFER, store=Store(trainer.store), baselines=False, objective="cross-entropy", **options,
        )  # fmt: skip
        bound = {each.task.record.name.rpartition("/")[2]: each for each in train(run)}
        tests = {name: evaluate(bound[name], files[name]["test"])["metrics"]["test"] for name in targets}
        return {"tests": tests, "cpu_seconds": round(time.process_time() - began, 2)}

    tokens = 40 * rows * epochs
    return Training(asked, learn, tokens, JOINT, name=f"{key}/{next(iter(files))}", store=trainer.store)


def _attention(bound: Bound, test: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return what a fusion attends to on its test rows, and its scores without the most and the least attended."""
    attention = explain.attention(bound, (given for _, given in inputs_of(bound, test)))
    plain = dict(zip(attention.names, names, strict=True))
    scores = explain.masked(bound, test, [attention.most, attention.least])
    masked = [
        {"adapter": plain[each.adapter] if each.adapter else None, "score": each.score, "change": each.change}
        for each in scores
    ]
    found = {"adapters": list(names), "layers": list(attention.layers), "weights": attention.weights.tolist()}
    return {"attention": {**found, "masked": masked}}


Scores = dict[str, dict[str, list[float]]]
"""Test accuracies in points by target and column, one for each seed."""


def scores(cells: Sequence[Found]) -> Scores:
    """Return the test accuracies of the cells that are done; only targets, in their order."""
    found: Scores = {target.name: {} for target in TARGETS}
    for cell in cells:
        if "found" not in cell:
            continue
        asked, tests = cell["asked"], cell["found"].get("tests", {})
        tests = tests if asked["what"] == JOINT else {asked["task"]: cell["found"].get("test", {})}
        for name, test in tests.items():
            if name in found and "accuracy" in test:
                found[name].setdefault(asked["what"], []).append(100 * test["accuracy"])
    return {name: row for name, row in found.items() if set(row) - {ADAPTER, HOULSBY_ADAPTER, JOINT}}


def gains(found: Scores) -> dict[str, str]:
    """Return by column how far it is above the single adapter: the mean over targets with its interval."""
    texts = {}
    for column in COLUMNS:
        beside = HOULSBY_ADAPTER if column == HOULSBY_FUSION else ADAPTER
        both = [row for row in found.values() if column in row and beside in row]
        if both and column != beside:
            gain = [statistics.fmean(row[column]) - statistics.fmean(row[beside]) for row in both]
            low, high = sweep.mean_interval(gain)
            texts[column] = f"{statistics.fmean(gain):+.1f} ({low:+.1f} to {high:+.1f})"
    return texts


def _page(cells: Sequence[Found], out: Path) -> list[str]:
    """Return the lines of the page, and draw the heatmap of what the fusions attend to."""
    found = scores(cells)
    columns = [column for column in COLUMNS if any(column in row for row in found.values())]
    recipe = cells[0]["asked"]["recipe"] if cells else {"rows": ROWS, "steps": STEPS}
    batch = cells[0]["asked"]["batch_size"] if cells else BATCH
    length = trainings.length(recipe, batch)
    body = [[name, *(_cell(row.get(column)) for column in columns)] for name, row in found.items()]
    above = gains(found)
    lines = [
        "# AdapterFusion on real data",
        "",
        f"Test accuracy in points: mean ± standard deviation over seeds (their number). A task has at most "
        f"{recipe['rows']:,} training rows; a training has {length}. Adapters are {PFEIFFER}; texts are cut at "
        f"{MAX_LENGTH} tokens. The joint adapters are one set for all tasks, sampled at temperature {TEMPERATURE}, "
        "one seed; their fusion attends over copies of one adapter: only V and the head can make a difference.",
        *([f"Trained again: the single adapter, trained as long again with a new head, as a fusion is. Houlsby's "
           f"adapters: {HOULSBY}."] if AGAIN in columns else
          ["A fusion is a second training, for which there is no control here."]),
        "",
        table(("target", *columns), body) if columns else "No target is done yet.",
        "",
    ]  # fmt: skip
    if above:
        lines += [
            "Points above the single adapter (of the same form), mean over the targets with its 95 % interval:",
            "",
            table(("column", "above the single adapter"), list(above.items())),
            "",
        ]
    fusions = [cell for cell in cells if "attention" in cell.get("found", {})]
    if shown := {c["asked"]["task"]: c["found"]["attention"] for c in fusions if _first(c)}:
        figures.attention(shown, out / "attention.png")
        lines += ["What the fusions attend to, on the test rows, seed 0:", "", "![attention](attention.png)", ""]
    return [*lines, *_masks(fusions)]


def _first(cell: Found) -> bool:
    return (cell["asked"]["what"], cell["asked"]["seed"]) == (FUSION, 0)


def _cell(values: Sequence[float] | None) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({len(values)})"


def _masks(fusions: Sequence[Found]) -> list[str]:
    """Return the table of what masking the most and the least attended adapter costs, for each seed."""
    body = []
    ways = ("nothing", "the most attended", "the least attended")
    for cell in sorted(fusions, key=lambda cell: [cell["asked"][name] for name in ("what", "task", "seed")]):
        asked = cell["asked"]
        for which, each in zip(ways, cell["found"]["attention"]["masked"], strict=False):
            change = f"{100 * each['change']:+.1f}" if each["adapter"] else ""
            row = [asked["what"], asked["task"], str(asked["seed"]), which, each["adapter"] or ""]
            body.append([*row, f"{100 * each['score']:.1f}", change])
    if not body:
        return []
    return [table(("fusion", "target", "seed", "masked", "adapter", "accuracy", "change"), body), ""]
