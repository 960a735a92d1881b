"""Every kind of task on real data: adapters beside full fine-tuning and a head alone.

SQuAD's answers, entities in English and Swahili, two of multiple choice, and Quechua's words. A cell is one `adaptree
train` in a process of its own, and its JSON is what is kept.
"""

from __future__ import annotations

import json
import lzma
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptree.compare.files import read, write, writing
from adaptree.errors import DataError
from adaptree.experiments.tasks import named

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
    Work("masakhaner-swa", "masakhaner/swa.train.jsonl.xz", "masakhaner/swa.test.jsonl.xz", epochs=5),
    Work("winogrande-m", "winogrande/train_m.jsonl.xz", "winogrande/validation.jsonl.xz", epochs=5),
    Work("commonsenseqa", "commonsenseqa/train.jsonl.xz", "commonsenseqa/validation.jsonl.xz", epochs=5, rows=2000),
    Work("quechua", "quechua_text/quy_open.txt.xz", None, epochs=5, rows=6000, options=("--kind", "mlm"),
         methods=("head", "houlsby:64")),
    Work("squad", "squad/train_subset.json.xz", "squad/validation.json.xz", epochs=3, test_rows=2000,
         methods=("houlsby:64", "full")),
)  # fmt: skip


class _Kinds:
    """What the experiment's module offers, as the others do with their grids."""

    def run(
        self,
        data: Path,
        out: Path,
        *,
        tasks: Sequence[str],
        seeds: int | None,
        base: str | Path,
        threads: int | None,
        command: str,
        on_event: Callable[[dict[str, Any]], None],
    ) -> str:
        for work in named(tasks, WORKS):
            train, test = cut(work, data, out / "rows")
            for method in work.methods:
                path = out / work.name / f"{method.replace(':', '-')}.json"
                if read(path).get("metrics") is None:
                    on_event({"event": "note", "text": f"{work.name}, {method}"})
                    _train(work, method, train, test, path, base, threads)
        page = table(out, command)
        with writing(out / "table.md"):
            (out / "table.md").write_text(page)
        return page


grid = _Kinds()


def cut(work: Work, data: Path, out: Path) -> tuple[Path, Path]:
    """The work's rows to train and to test on, as files of their own: samples drawn with seed 0."""
    source = data / work.train
    rows = _rows(source)
    if work.test is None:
        random.Random(0).shuffle(rows)
        held = work.test_rows or len(rows) // 10
        test, rows = rows[:held], rows[held:]
    else:
        test = _sample(_rows(data / work.test), work.test_rows)
    suffix = ".txt" if ".txt" in source.suffixes else ".jsonl"
    out.mkdir(parents=True, exist_ok=True)
    paths = out / f"{work.name}-train{suffix}", out / f"{work.name}-test{suffix}"
    for path, lines in zip(paths, (_sample(rows, work.rows), test), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def _sample(rows: list[str], most: int | None) -> list[str]:
    return rows if most is None or len(rows) <= most else random.Random(0).sample(rows, most)


def _rows(path: Path) -> list[str]:
    """The lines of a file; of SQuAD's JSON one for each question."""
    from adaptree.data.squad import read_squad

    try:
        with lzma.open(path, "rt") as file:
            if ".json" in path.suffixes:
                return [json.dumps(row) for _, row in read_squad(json.load(file))]
            return [line.strip() for line in file if line.strip()]
    except OSError as error:
        raise DataError(
            f"{path.parent.name}/{path.name} is not there: {error.strerror or error}.",
            hint="Give the folder of the datasets: --data DIR, or ADAPTREE_DATA.",
        ) from None


def _train(work: Work, method: str, train: Path, test: Path, path: Path, base: str | Path, threads: int | None) -> None:
    words = [
        sys.executable, "-m", "adaptree", "train", str(train), "--test", str(test), "--name", work.name,
        "--method", method, "--epochs", str(work.epochs), "--base", str(base), "--format", "json", "--quiet",
        "--store", str(path.parent / "store"), *work.options, *(("--threads", str(threads)) if threads else ()),
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise DataError(f"{work.name} with {method}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    write(path, {**json.loads(done.stdout), "train_rows": _count(train), "test_rows": _count(test)})


def _count(path: Path) -> int:
    with path.open() as file:
        return sum(1 for _ in file)


def table(out: Path, command: str) -> str:
    """Every cell that is done."""
    lines = [
        "# Every kind of task, on minilm",
        "",
        "Test scores with 95 % bootstrap intervals; one seed. A fifth of the training rows chose the best epoch.",
        "",
        "| task | kind | rows to train, to test | method | scores on test | trained | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in WORKS:
        for method in work.methods:
            found = read(out / work.name / f"{method.replace(':', '-')}.json")
            if "metrics" not in found:
                continue
            spans = found["intervals"]["test"]
            scores = ", ".join(
                f"{name.replace('_', ' ')} {value:.3f}"
                + (f" ({spans[name][0]:.3f}-{spans[name][1]:.3f})" if name in spans else "")
                for name, value in found["metrics"]["test"].items()
            )
            rows = f"{found['train_rows']:,}, {found['test_rows']:,}"
            cells = [work.name, found["kind"], rows, method, scores, f"{found['trained_percent']:.2f} %"]
            lines.append(f"| {' | '.join([*cells, format(found['seconds'], '.0f')])} |")
    return "\n".join([*lines, "", *([f"Made by `{command}`."] if command else [])]) + "\n"
