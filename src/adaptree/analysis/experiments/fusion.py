"""AdapterFusion on real data: does a small task gain from what larger ones have learned?

A store of single-task adapters and one of jointly trained ones; on each target the head alone, full fine-tuning, an
adapter of its own, the joint adapter, and the fusion of either kind. A cell is one command, and its JSON is kept.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.files import write as write_json
from adaptree.analysis.experiments import figures
from adaptree.analysis.experiments.commands import said, trained
from adaptree.analysis.experiments.tasks import Asked, Task, files, kept_page, named, rows_in, whole

ROWS = 600
"""Of each task, to train on."""
METHOD = "pfeiffer:48"
OPTIONS = ("--max-length", "128", "--precision", "bf16")
EPOCHS = 5
COLUMNS = ("head", "full", "adapter", "joint", "fusion", "fusion of joint")


@dataclass(frozen=True)
class Target(Task):
    """A task that others may help, and over how many seeds."""

    seeds: int = 1


TARGETS = (
    Target("rte", test="validation", seeds=3),
    Target("cb", test="validation", seeds=3),
    Target("sick", test="test"),
    Target("mrpc", test="test"),
)
SOURCES = (
    Task("mnli", test="validation_matched"),
    Task("qqp", test="validation_from_train"),
    Task("sst2", test="validation"),
    Task("qnli", test="validation"),
    Task("cola", test="validation"),
    whole("crowdflower_airline"),
    *TARGETS,
)


def run(asked: Asked) -> str:
    """Train what is missing, and write the table and the figure."""
    out, store = asked.out, asked.out / "store"
    targets = named(asked.tasks, TARGETS)
    rows = {task.name: _rows(task, asked.data, out / "rows") for task in SOURCES}
    for task in SOURCES:
        _single(task.name, 0, rows, store, out, asked)
    joint = [rows[task.name][0] for task in SOURCES]
    trained(
        out / "joint.json", joint, "joint", store,
        ["--joint", "--temperature", "2", "--method", METHOD, "--epochs", str(EPOCHS), *OPTIONS], asked,
    )  # fmt: skip
    for target in targets:
        for seed in range(asked.seeds or target.seeds):
            _cells(target.name, seed, rows, store, out, asked)
    return kept_page(table(out, asked.command), out)


def _rows(task: Task, data: Path, out: Path) -> tuple[Path, Path]:
    """A task's rows to train and to test on, those to train on drawn with seed 0."""
    train, test = files(task, data, out)
    lines = train.read_text().splitlines()
    lines = random.Random(0).sample(lines, ROWS) if len(lines) > ROWS else lines
    path = out / f"{task.name}.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path, test


def _single(name: str, seed: int, rows: Mapping[str, Any], store: Path, out: Path, asked: Asked) -> dict[str, Any]:
    return _trained(name, "adapter", seed, METHOD, f"single-{seed}/{name}", rows, store, out, asked)


def _cells(name: str, seed: int, rows: Mapping[str, Any], store: Path, out: Path, asked: Asked) -> None:
    for column, method in (("head", "head"), ("full", "full")):
        _trained(name, column, seed, method, f"{column}-{seed}/{name}", rows, store, out, asked)
    _single(name, seed, rows, store, out, asked)
    test = rows[name][1]
    said(out / name / "joint-0.json", ["evaluate", f"joint/{name}", test, "--store", store], asked)
    others = [task.name for task in SOURCES if task.name != name]
    for column, first, prefix in (
        ("fusion", f"single-{seed}/{name}", "single-0"), ("fusion of joint", f"joint/{name}", "joint")
    ):  # fmt: skip
        expression = f"fuse({', '.join([first, *(f'{prefix}/{other}' for other in others)])})"
        fused = f"{column.replace(' ', '-')}-{seed}/{name}"
        _trained(name, column, seed, expression, fused, rows, store, out, asked)
        path = out / name / f"{column.replace(' ', '-')}-attention-{seed}.json"
        said(path, ["explain", fused, "--file", test, "--mask", "--store", store], asked)


def _trained(
    name: str,
    column: str,
    seed: int,
    method: str,
    task: str,
    rows: Mapping[str, Any],
    store: Path,
    out: Path,
    asked: Asked,
) -> dict[str, Any]:
    train, test = rows[name]
    options = ["--test", test, "--method", method, "--epochs", str(EPOCHS), "--seed", str(seed), *OPTIONS]
    path = out / name / f"{column.replace(' ', '-')}-{seed}.json"
    return trained(path, train, task, store, options, asked, train_rows=rows_in(train), test_rows=rows_in(test))


def scores(out: Path) -> dict[str, dict[str, list[float]]]:
    """The test accuracies that are there, in points: by target, by column, one for each seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for target in TARGETS:
        for column in COLUMNS:
            cells = sorted((out / target.name).glob(f"{column.replace(' ', '-')}-[0-9].json"))
            if cells:
                read = [json.loads(cell.read_text()) for cell in cells]
                found.setdefault(target.name, {})[column] = [100 * cell["metrics"]["test"]["accuracy"] for cell in read]
    return found


def table(out: Path, command: str) -> str:
    """Every cell that is done, and the heatmap of what the fusions attend to."""
    found = scores(out)
    lines = [
        "# AdapterFusion on real data",
        "",
        "Test accuracy in points; where there are several seeds, their mean ± standard deviation. Adapters are "
        f"{METHOD}; a task has at most {ROWS:,} training rows, of which a fifth chose the best of {EPOCHS} epochs; "
        "texts are cut at 128 tokens, steps are in bf16. The joint adapters are one set for all tasks, drawn at "
        "temperature 2, one seed; their fusion attends over copies of one adapter: only V and the head can make a "
        "difference.",
        "",
        f"| target | {' | '.join(COLUMNS)} |",
        f"|{'---|' * (1 + len(COLUMNS))}",
        *(f"| {name} | {' | '.join(_cell(row.get(column)) for column in COLUMNS)} |" for name, row in found.items()),
        "",
    ]
    looked = _attention(out)
    if looked:
        figures.attention(looked, out / "attention.png")
        lines += [
            "What the fusions of single-task adapters attend to, on the test rows, seed 0:",
            "",
            "![attention](attention.png)",
            "",
        ]
        lines += _masks(out)
    write_json(out / "summary.json", {"scores": found, "command": command})
    return "\n".join([*lines, *([f"Made by `{command}`."] if command else [])]) + "\n"


def _cell(values: Sequence[float] | None) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _attention(out: Path) -> dict[str, dict[str, Any]]:
    """What is told of each target's first fusion."""
    paths = {target.name: out / target.name / "fusion-attention-0.json" for target in TARGETS}
    return {name: json.loads(path.read_text()) for name, path in paths.items() if path.is_file()}


def _masks(out: Path) -> list[str]:
    """Whether the most attended adapter is missed more than the least, in each seed."""
    lines = ["| target | seed | masked | adapter | accuracy | change |", "|---|---|---|---|---|---|"]
    for target in TARGETS:
        for seed, path in enumerate(sorted((out / target.name).glob("fusion-attention-[0-9].json"))):
            told = json.loads(path.read_text())["masked"]
            for which, each in zip(("nothing", "the most attended", "the least attended"), told, strict=False):
                change = f"{100 * each['change']:+.1f}" if each["adapter"] else ""
                cells = [target.name, str(seed), which, each["adapter"] or "", f"{100 * each['score']:.1f}", change]
                lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
