"""Real tasks from a folder of datasets: rows to train on and rows to test on, always cut in the same way."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from adaptree.analysis.compare.files import writing
from adaptree.data.squad import read_squad
from adaptree.errors import DataError, UsageError, near


@dataclass(frozen=True)
class Asked:
    """What a user asks of an experiment."""

    data: Path
    out: Path
    tasks: Sequence[str] = ()
    """Only these; all when there are none."""
    seeds: int | None = None
    """None: as many as the experiment says."""
    base: str | Path = "minilm"
    threads: int | None = None
    command: str = ""
    on_event: Callable[[dict[str, Any]], None] = lambda event: None


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)
TEST = 1000
"""At most so many rows to test on: a sample, drawn with seed 0."""


@dataclass(frozen=True)
class Task:
    """A dataset: FOLDER/{train,test}, or one file of which a part is held out to test on."""

    name: str
    train: str = "train"
    test: str | None = None
    """None: rows of the training file that nobody trains on."""


def whole(name: str) -> Task:
    """A dataset in one file."""
    return Task(name, train="all")


def files(task: Task, data: Path, out: Path) -> tuple[Path, Path]:
    """The task's rows as OUT/NAME-train.jsonl and OUT/NAME-test.jsonl."""
    folder = data / task.name
    rows = _lines(folder / f"{task.train}.jsonl.xz")
    if task.test is None:
        random.Random(0).shuffle(rows)
        test, rows = rows[:TEST], rows[TEST:]
    else:
        test = _lines(folder / f"{task.test}.jsonl.xz")
        test = random.Random(0).sample(test, TEST) if len(test) > TEST else test
    out.mkdir(parents=True, exist_ok=True)
    paths = out / f"{task.name}-train.jsonl", out / f"{task.name}-test.jsonl"
    for path, lines in zip(paths, (rows, test), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def _lines(path: Path) -> list[str]:
    """The file's rows with a label, each as one line; columns that are no text and no label are left out."""
    kept = ("text", "text_a", "text_b", "label")
    rows = [json.loads(line) for line in lines_of(path)]
    return [json.dumps({key: row[key] for key in kept if key in row}) for row in rows if row.get("label") is not None]


def lines_of(path: Path) -> list[str]:
    """The lines of a packed file that are not blank; of SQuAD's JSON one for each question."""
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


def named(names: Sequence[str], tasks: Sequence[T]) -> list[T]:
    """Those of `tasks` that are asked for; all when none is."""
    known = {task.name: task for task in tasks}
    for name in names:
        if name not in known:
            raise UsageError(f"no task '{name}' in this experiment.", hint=near(name, known) or ", ".join(known))
    return [known[name] for name in names] if names else list(tasks)


def rows_in(path: Path) -> int:
    """How many lines a file has."""
    with path.open() as file:
        return sum(1 for _ in file)


def kept_page(page: str, out: Path) -> str:
    """A page, which stands in OUT/table.md from now on."""
    with writing(out / "table.md"):
        (out / "table.md").write_text(page)
    return page
