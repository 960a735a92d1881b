"""Every kind of task on real data: adapters beside full fine-tuning and a head alone.

SQuAD's answers, entities in English and Swahili, two of multiple choice, and Quechua's words. A cell is one `adaptree
train` in a process of its own, and its JSON is what is kept; one that was stopped is gone on with.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptree.analysis.compare.files import read
from adaptree.analysis.experiments.commands import trained
from adaptree.analysis.experiments.tasks import Asked, kept_page, lines_of, named, rows_in

METHODS = ("head", "houlsby:64", "full")


@dataclass(frozen=True)
class Work:
    """A dataset: its files, how many of their rows, and how it is trained."""

    name: str
    train: str
    test: str | None
    """None: rows of the training file that nobody trains on."""
    epochs: int
    rows: int | None = None
    test_rows: int | None = 1000
    options: tuple[str, ...] = ()
    methods: tuple[str, ...] = METHODS


WORKS = (
    Work("panx-en", "panx/en.train.jsonl.xz", "panx/en.validation.jsonl.xz", epochs=5, rows=3000),
    Work("masakhaner-swa", "masakhaner/swa.train.jsonl.xz", "masakhaner/swa.test.jsonl.xz", epochs=10),
    Work("winogrande-m", "winogrande/train_m.jsonl.xz", "winogrande/validation.jsonl.xz", epochs=3),
    Work("commonsenseqa", "commonsenseqa/train.jsonl.xz", "commonsenseqa/validation.jsonl.xz", epochs=3, rows=1000),
    Work("quechua", "quechua_text/quy_open.txt.xz", None, epochs=5, rows=6000, options=("--kind", "mlm"),
         methods=("head", "houlsby:64")),
    Work("squad", "squad/train_subset.json.xz", "squad/validation.json.xz", epochs=3, test_rows=2000,
         methods=("houlsby:64", "full")),
)  # fmt: skip


def run(asked: Asked) -> str:
    out = asked.out
    for work in named(asked.tasks, WORKS):
        train, test = cut(work, asked.data, out / "rows")
        for method in work.methods:
            for seed in range(asked.seeds or 1):
                _train(work, method, seed, train, test, cell(out, work, method, seed), asked)
    return kept_page(table(out, asked.command), out)


def cell(out: Path, work: Work, method: str, seed: int) -> Path:
    return out / work.name / f"{method.replace(':', '-')}-{seed}.json"


def cut(work: Work, data: Path, out: Path) -> tuple[Path, Path]:
    """The work's rows to train and to test on, as files of their own: samples drawn with seed 0."""
    source = data / work.train
    rows = lines_of(source)
    if work.test is None:
        random.Random(0).shuffle(rows)
        held = work.test_rows or len(rows) // 10
        test, rows = rows[:held], rows[held:]
    else:
        test = _sample(lines_of(data / work.test), work.test_rows)
    suffix = ".txt" if ".txt" in source.suffixes else ".jsonl"
    out.mkdir(parents=True, exist_ok=True)
    paths = out / f"{work.name}-train{suffix}", out / f"{work.name}-test{suffix}"
    for path, lines in zip(paths, (_sample(rows, work.rows), test), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def _sample(rows: list[str], most: int | None) -> list[str]:
    return rows if most is None or len(rows) <= most else random.Random(0).sample(rows, most)


def _train(work: Work, method: str, seed: int, train: Path, test: Path, path: Path, asked: Asked) -> None:
    options: list[str | Path] = ["--test", test, "--method", method, "--epochs", str(work.epochs), "--seed", str(seed)]
    options += ["--precision", "bf16", *work.options]
    rows = {"train_rows": rows_in(train), "test_rows": rows_in(test)}
    trained(path, train, path.stem, path.parent / "store", options, asked, **rows)


def table(out: Path, command: str) -> str:
    """Every cell that is done."""
    lines = [
        "# Every kind of task",
        "",
        "Test scores with 95 % bootstrap intervals. A fifth of the training rows chose the best epoch; "
        "training steps are in bf16, answers in fp32. By chance: 0.5 of winogrande, 0.2 of commonsenseqa.",
        "",
        "| task | kind | base | rows to train, to test | epochs | method | seed | scores on test | trained | seconds |",
        f"|{'---|' * 10}",
    ]
    for work in WORKS:
        for method in work.methods:
            done = itertools.takewhile(Path.is_file, (cell(out, work, method, seed) for seed in itertools.count()))
            lines += [_line(work, method, read(path)) for path in done]
    return "\n".join([*lines, "", *([f"Made by `{command}`."] if command else [])]) + "\n"


def _line(work: Work, method: str, found: Mapping[str, Any]) -> str:
    spans = found["intervals"]["test"]
    scores = ", ".join(
        f"{name.replace('_', ' ')} {value:.3f}"
        + (f" ({spans[name][0]:.3f}-{spans[name][1]:.3f})" if name in spans else "")
        for name, value in found["metrics"]["test"].items()
    )
    rows = f"{found['train_rows']:,}, {found['test_rows']:,}"
    cells = [work.name, found["kind"], found["base"], rows, str(work.epochs), method, str(found["seed"]), scores]
    return (
        f"| {' | '.join([*cells, format(found['trained_percent'], '.2f') + ' %', format(found['seconds'], '.0f')])} |"
    )
