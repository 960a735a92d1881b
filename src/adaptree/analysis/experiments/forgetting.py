"""Tasks one after the other: full fine-tuning of one model, which forgets, against adapters, which cannot.

After each arrival every earlier task is scored again on its test rows. In sequence, the weights are carried on from
task to task, and each task keeps its own head. Adapters leave the base as it is: their answers after every arrival
must be the first ones, bit for bit, or the experiment fails. Beside both: a whole model for each task, and one model
that is fine-tuned on all tasks at once. Penalties that hold weights near earlier ones, such as EWC, are not tried.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.analysis.compare.cells import full_spelling
from adaptree.analysis.compare.files import file_digest
from adaptree.analysis.experiments import figures, ledger
from adaptree.analysis.experiments.corpora import Corpus, count_lines, one_file, parts
from adaptree.analysis.experiments.ledger import Cell, Found
from adaptree.analysis.experiments.setup import Setup, select, write_page
from adaptree.data.dataset import Schema
from adaptree.errors import TrainingError
from adaptree.kinds.reading import open_data
from adaptree.methods import parse
from adaptree.models.evaluate import decode, whole
from adaptree.models.opening import base_of
from adaptree.reports.markdown import table
from adaptree.tasks.task import Task
from adaptree.training.pipeline import train
from adaptree.training.run import Run

if TYPE_CHECKING:
    from adaptree.models.base import Base

TASKS = (
    one_file("crowdflower_airline"),
    Corpus("sst2", test="validation"),
    one_file("crowdflower_corporate_messaging"),
    one_file("sms_spam"),
    Corpus("sick", test="test"),
)
SEQUENCE, ADAPTERS, ALONE, JOINT = "full, in sequence", "adapters", "full, a model each", "full, all at once"
WAYS = {SEQUENCE: "full", ADAPTERS: "houlsby:64", ALONE: "full", JOINT: "full"}
ROWS, VALIDATION, STEPS, BATCH, MAX_LENGTH = 1000, 400, 300, 16, 128
METRIC = "accuracy"

Files = Mapping[str, Mapping[str, Path]]
"""The parts of each task, in the order in which the tasks arrive."""
Curves = dict[str, dict[int, float]]
"""A task's score in points after each arrival, which are counted from 1."""


def run(setup: Setup) -> str:
    """Run the cells that are missing; return the page. The tasks arrive in the order in which `setup` names them."""
    found = ledger.alike(ledger.read(setup.out), "tasks", "base") if setup.redraw else _run(setup)
    check_unchanged(found)
    return write_page(_page(found, setup), setup.out, setup.command)


def _run(setup: Setup) -> list[Found]:
    """Run the cells that are missing; return all that are done."""
    base = base_of(setup.base, "auto", setup.threads)
    files = {
        corpus.name: parts(corpus, setup.data, setup.out / "rows", ROWS, VALIDATION)
        for corpus in select(setup.tasks, TASKS)
    }
    cells = [_cell(way, seed, files, base) for seed in range(setup.seeds or 1) for way in WAYS]
    return ledger.run(cells, setup)


def _cell(way: str, seed: int, files: Files, base: Base) -> Cell:
    method = WAYS[way]
    asked = {
        "way": way, "tasks": list(files), "base": base.name, "method": full_spelling(method), "seed": seed,
        "lr": parse(method).lr, "steps": STEPS, "batch_size": BATCH, "max_length": MAX_LENGTH,
        "fingerprint": base.fingerprint,
        "rows": {name: {part: file_digest(path) for part, path in own.items()} for name, own in files.items()},
    }  # fmt: skip
    learn = partial(_train_jointly, files, base, seed) if way == JOINT else partial(_train, way, files, base, seed)
    return Cell(asked, learn, 20 * STEPS * BATCH * len(files), way)


def _train(way: str, files: Files, base: Base, seed: int) -> dict[str, Any]:
    """Train the tasks one after the other; return the scores of all that were learned after each arrival."""
    began = time.process_time()
    learned: dict[str, Task] = {}
    after = []
    for name, own in files.items():
        last = list(learned.values())[-1] if learned and way == SEQUENCE else None
        run = Run.of(
            own["train"], validation=own["validation"], base=base, method=WAYS[way], start=last, seed=seed,
            epochs=-(-STEPS * BATCH // count_lines(own["train"])), batch_size=BATCH, max_length=MAX_LENGTH,
            baselines=False, objective="cross-entropy",
        )  # fmt: skip
        learned[name] = train(run)[0].task
        if way == SEQUENCE:  # there is one model: the earlier tasks have only their heads
            learned = {task: _with_weights(earlier, learned[name]) for task, earlier in learned.items()}
        scored = learned if way != ALONE else {name: learned[name]}
        after.append({task: _score(base, each, files[task]["test"]) for task, each in scored.items()})
    return {"after": after, "cpu_seconds": round(time.process_time() - began, 2)}


def _with_weights(earlier: Task, latest: Task) -> Task:
    """Return a task with its own head, and everything else from the latest one."""
    head = {name: tensor for name, tensor in earlier.weights.items() if name.startswith("head.")}
    return Task(earlier.record, {n: t for n, t in latest.weights.items() if not n.startswith("head.")} | head)


def _train_jointly(files: Files, base: Base, seed: int) -> dict[str, Any]:
    """Train one model on all tasks at once; return their scores, as after one arrival."""
    began = time.process_time()
    rows = sum(count_lines(own["train"]) for own in files.values())
    run = Run.of(
        {name: own["train"] for name, own in files.items()}, name="joint", joint=True, base=base, method=WAYS[JOINT],
        seed=seed, epochs=-(-STEPS * BATCH * len(files) // rows), batch_size=BATCH, max_length=MAX_LENGTH,
        baselines=False, objective="cross-entropy",
    )  # fmt: skip
    tasks = {bound.task.record.name.removeprefix("joint/"): bound.task for bound in train(run)}
    scores = {name: _score(base, task, files[name]["test"]) for name, task in tasks.items()}
    return {"after": [scores], "cpu_seconds": round(time.process_time() - began, 2)}


def _score(base: Base, task: Task, test: Path) -> dict[str, Any]:
    """Return a task's score on its test rows, and a digest of the logits."""
    part = whole(open_data(test, like=Schema.of_task(task.record)))
    bound = base.bind(task)
    found = decode(bound, part, keep=len(part))
    score = bound.kind.score(part.dataset.targets(part.rows), found.answers)[METRIC]
    return {"score": score, "digest": hashlib.sha256(found.out.numpy().tobytes()).hexdigest()[:16]}


def check_unchanged(cells: Sequence[Found]) -> None:
    """Raise TrainingError if the logits of an adapter's task are not the same bits after every arrival."""
    for cell in cells:
        if cell["asked"]["way"] != ADAPTERS or "found" not in cell:
            continue
        first: dict[str, str] = {}
        for number, scores in enumerate(cell["found"]["after"], 1):
            for name, one in scores.items():
                if one["digest"] != first.setdefault(name, one["digest"]):
                    raise TrainingError(
                        f"the answers of '{name}' are not the same after arrival {number}: its base was changed.",
                        hint="This is a bug: adapters leave the base as it is.",
                    )


def curves(cells: Sequence[Found], way: str) -> Curves:
    """Return the mean over seeds of each task's score after each arrival."""
    found: dict[str, dict[int, list[float]]] = {}
    for cell in cells:
        if cell["asked"]["way"] == way and "found" in cell:
            for number, scores in enumerate(cell["found"]["after"], 1):
                for name, one in scores.items():
                    found.setdefault(name, {}).setdefault(number, []).append(100 * one["score"])
    return {name: {k: statistics.fmean(scores) for k, scores in curve.items()} for name, curve in found.items()}


def _page(cells: Sequence[Found], setup: Setup) -> list[str]:
    """Return the lines of the page, and draw the figure."""
    names = cells[0]["asked"]["tasks"] if cells else []
    seeds = len({cell["asked"]["seed"] for cell in cells})
    by = {way: found for way in WAYS if (found := curves(cells, way))}
    columns: dict[str, dict[str, float]] = {}
    for way, found in by.items():
        if way == SEQUENCE:
            columns[f"{way}: on arrival"] = {name: _first(curve) for name, curve in found.items()}
            columns[f"{way}: at the end"] = {name: _last(curve) for name, curve in found.items()}
        else:
            columns[way] = {name: _last(curve) for name, curve in found.items()}
    body = [[name, *(f"{column[name]:.1f}" for column in columns.values())] for name in names]
    means = [f"{statistics.fmean(column[name] for name in names):.1f}" for column in columns.values() if names]
    lines = [
        "# Tasks one after the other",
        "",
        f"Base: {setup.base}. The tasks arrive in the order of the table; at most {ROWS:,} training rows each, {STEPS} "
        f"batches of {BATCH}, {seeds} seed(s). Test accuracy in points. Adapters are {WAYS[ADAPTERS]}. The "
        "model that is trained on all tasks at once has a fifth of its training rows held out to choose the epoch.",
        *(["", "After every arrival the logits of all earlier adapters were the same bits."] if ADAPTERS in by else []),
        "",
        table(("task", *columns), [*body, ["mean", *means]]) if columns else "No cell is done yet.",
        "",
    ]
    shown = {way: by[way] for way in (SEQUENCE, ADAPTERS) if way in by}
    if shown:
        figures.forgetting(shown, names, setup.out / "figure.png")
        lines += ["![Score of each task after each arrival](figure.png)", ""]
    return lines


def _first(curve: Mapping[int, float]) -> float:
    return curve[min(curve)]


def _last(curve: Mapping[int, float]) -> float:
    return curve[max(curve)]
