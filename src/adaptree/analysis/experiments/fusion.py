"""AdapterFusion on real data: does a small task gain from what larger ones have learned?

A store of single-task adapters and one of jointly trained ones; on each target the head alone, full fine-tuning, an
adapter of its own, the joint adapter, and the fusion of either kind. A cell is one command, whose JSON is kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.files import read
from adaptree.analysis.compare.files import write as write_json
from adaptree.analysis.experiments import commands, figures
from adaptree.analysis.experiments.corpora import Corpus, count_lines, cut, one_file, sample, write_lines
from adaptree.analysis.experiments.setup import Setup, select, write_page

ROWS = 600
"""Training rows of each task."""
METHOD = "pfeiffer:48"
OPTIONS = ("--max-length", "128", "--precision", "bf16")
EPOCHS = 5
COLUMNS = ("head", "full", "adapter", "joint", "fusion", "fusion of joint")


@dataclass(frozen=True)
class Target(Corpus):
    """A small task that others may help, and with how many seeds it is trained."""

    seeds: int = 1


TARGETS = (
    Target("rte", test="validation", seeds=3),
    Target("cb", test="validation", seeds=3),
    Target("sick", test="test"),
    Target("mrpc", test="test"),
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
    targets = select(setup.tasks, TARGETS)
    cells = _Cells(setup, {corpus.name: _rows(corpus, setup.data, setup.out / "rows") for corpus in SOURCES})
    for corpus in SOURCES:
        cells.single(corpus.name, 0)
    cells.joint()
    for target in targets:
        for seed in range(setup.seeds or target.seeds):
            cells.of_target(target.name, seed)
    return table(setup.out, setup.command)


def _rows(corpus: Corpus, data: Path, out: Path) -> tuple[Path, Path]:
    """Return the files of a corpus's rows to train on, at most ROWS, and to test on."""
    train, test = cut(corpus, data, out)
    return write_lines(out / f"{corpus.name}.jsonl", sample(train.read_text().splitlines(), ROWS)), test


class _Cells:
    """Trains and keeps the cells of the experiment; a cell that is there is not run again."""

    def __init__(self, setup: Setup, rows: Mapping[str, tuple[Path, Path]]) -> None:
        self.setup, self.rows = setup, rows
        self.out, self.store = setup.out, setup.out / "store"

    def single(self, name: str, seed: int) -> None:
        """Train an adapter on a task alone."""
        self._train(name, "adapter", seed, METHOD, f"single-{seed}/{name}")

    def joint(self) -> None:
        """Train one adapter on all tasks together."""
        options = ["--joint", "--temperature", "2", "--method", METHOD, "--epochs", str(EPOCHS), *OPTIONS]
        files = [train for train, _ in self.rows.values()]
        commands.train(self.out / "joint.json", files, "joint", self.store, options, self.setup)

    def of_target(self, name: str, seed: int) -> None:
        """Train every column of a target, and look at what its fusions attend to."""
        for column in ("head", "full"):
            self._train(name, column, seed, column, f"{column}-{seed}/{name}")
        self.single(name, seed)
        test = self.rows[name][1]
        self._run(self.out / name / "joint-0.json", "evaluate", f"joint/{name}", test)
        others = [other for other in self.rows if other != name]
        for column, first, prefix in (
            ("fusion", f"single-{seed}/{name}", "single-0"), ("fusion of joint", f"joint/{name}", "joint")
        ):  # fmt: skip
            expression = f"fuse({', '.join([first, *(f'{prefix}/{other}' for other in others)])})"
            fused = f"{_file(column)}-{seed}/{name}"
            self._train(name, column, seed, expression, fused)
            path = self.out / name / f"{_file(column)}-attention-{seed}.json"
            self._run(path, "explain", fused, "--file", test, "--mask")

    def _run(self, path: Path, *words: str | Path) -> None:
        commands.run_command(path, [*words, "--store", self.store], self.setup)

    def _train(self, name: str, column: str, seed: int, method: str, task: str) -> None:
        train, test = self.rows[name]
        options: list[str | Path] = ["--test", test, "--method", method, "--epochs", str(EPOCHS)]
        options += ["--seed", str(seed), *OPTIONS]
        path = self.out / name / f"{_file(column)}-{seed}.json"
        counts = {"train_rows": count_lines(train), "test_rows": count_lines(test)}
        commands.train(path, train, task, self.store, options, self.setup, **counts)


def _file(column: str) -> str:
    return column.replace(" ", "-")


def scores(out: Path) -> dict[str, dict[str, list[float]]]:
    """Return the test accuracies of the cells that are done, in points: by target and column, one per seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for target in TARGETS:
        for column in COLUMNS:
            cells = [read(path) for path in sorted((out / target.name).glob(f"{_file(column)}-[0-9].json"))]
            if cells:
                accuracies = [100 * cell["metrics"]["test"]["accuracy"] for cell in cells]
                found.setdefault(target.name, {})[column] = accuracies
    return found


def table(out: Path, command: str) -> str:
    """Write the page with every cell that is done, and the heatmap of what the fusions attend to; return the page."""
    found = scores(out)
    lines = [
        "# AdapterFusion on real data",
        "",
        "Test accuracy in points; where there are several seeds, their mean ± standard deviation. Adapters are "
        f"{METHOD}; a task has at most {ROWS:,} training rows, of which a fifth chose the best of {EPOCHS} epochs; "
        "texts are cut at 128 tokens, steps are in bf16. The joint adapters are one set for all tasks, sampled at "
        "temperature 2, one seed; their fusion attends over copies of one adapter: only V and the head can make a "
        "difference.",
        "",
        f"| target | {' | '.join(COLUMNS)} |",
        f"|{'---|' * (1 + len(COLUMNS))}",
        *(f"| {name} | {' | '.join(_cell(row.get(column)) for column in COLUMNS)} |" for name, row in found.items()),
        "",
    ]
    attention = _attention(out)
    if attention:
        figures.attention(attention, out / "attention.png")
        lines += [
            "What the fusions of single-task adapters attend to, on the test rows, seed 0:",
            "",
            "![attention](attention.png)",
            "",
        ]
        lines += _masks(out)
    write_json(out / "summary.json", {"scores": found, "command": command})
    return write_page(lines, out, command)


def _cell(values: Sequence[float] | None) -> str:
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def _attention(out: Path) -> dict[str, dict[str, Any]]:
    """Return what `explain` found in each target's first fusion."""
    paths = {target.name: out / target.name / "fusion-attention-0.json" for target in TARGETS}
    return {name: read(path) for name, path in paths.items() if path.is_file()}


def _masks(out: Path) -> list[str]:
    """Return the table of what masking the most and the least attended adapter costs, for each seed."""
    lines = ["| target | seed | masked | adapter | accuracy | change |", "|---|---|---|---|---|---|"]
    for target in TARGETS:
        for seed, path in enumerate(sorted((out / target.name).glob("fusion-attention-[0-9].json"))):
            masked = read(path)["masked"]
            for which, each in zip(("nothing", "the most attended", "the least attended"), masked, strict=False):
                change = f"{100 * each['change']:+.1f}" if each["adapter"] else ""
                cells = [target.name, str(seed), which, each["adapter"] or "", f"{100 * each['score']:.1f}", change]
                lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]
