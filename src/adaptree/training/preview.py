"""What a run would do with its data, before the base is loaded: the checks of `train`, and what it would choose."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.data.check import Report
from adaptree.data.check import check as inspect_data
from adaptree.data.read import rows as read_rows
from adaptree.training.run import Run
from adaptree.training.settings import CONTRASTIVE, Settings

if TYPE_CHECKING:
    from adaptree.data.dataset import Dataset
    from adaptree.data.encode import Encoder
    from adaptree.training.pipeline import Loaded

SHOWN, WIDEST = 10, 300
"""Rows of a preview, and characters of a cell."""
FLOPS = 1.2e11
"""Multiplications and additions that two processor cores do in a second of training, about."""


@dataclass(frozen=True)
class Preview:
    """What would be trained."""

    report: Report
    settings: dict[str, Any]
    """As they would be used, with what was left open filled in."""
    why: dict[str, str]
    """A sentence for each setting that was chosen."""
    columns: list[str]
    first_rows: list[dict[str, str]]
    parts: dict[str, int]
    """Rows to train on, of the validation part, and of the test part if there is one."""
    objective_why: str
    estimate_seconds: float

    @property
    def rows(self) -> int:
        return self.report.rows


def report_on(
    dataset: Dataset, settings: Settings, encoder: Encoder, limit: int, *, validation: Dataset | None = None
) -> Report:
    """Return what `adaptree check` shows of a dataset, read by a base's encoder, whose longest input is `limit`."""
    found = kinds.get(dataset.kind)
    kinds.check_options(found, {"windows": settings.windows})
    return inspect_data(
        dataset, validation=validation, lengths=encoder.lengths, limit=limit, max_length=settings.longest(limit),
        seed=settings.seed, windowed=settings.windows or found.reads_whole, can_window=kinds.can_window(dataset),
    )  # fmt: skip


def preview(run: Run, encoder: Encoder, limit: int, pooling: str, parameters: int) -> Preview:
    """Return what a run of one task would do; raise the error that it would end with.

    `limit`, `pooling` and `parameters` (without embeddings) are those of the base.
    """
    from adaptree.training.contrastive import RATE
    from adaptree.training.objective import choose
    from adaptree.training.pipeline import descriptions_of, load

    loaded = load(run)
    dataset, method, parts = loaded.tasks[0].dataset, loaded.method, loaded.tasks[0].parts
    apart = parts["validation"].dataset if parts["validation"].dataset is not dataset else None
    report = report_on(dataset, run.settings, encoder, limit, validation=apart)
    rows, held = (len(parts[part]) for part in ("train", "validation"))
    objective, why = choose(run, run.settings, method, dataset, rows + (held if apart is None else 0))
    metric = run.settings.metric or kinds.get(dataset.kind).metrics[0]
    settings = run.settings.resolved(
        rows=rows,
        lr=method.lr * (RATE if objective == CONTRASTIVE else 1),
        limit=limit,
        metric=metric,
        pooling=kinds.check_pooling(run.settings.pooling or pooling),
        objective=objective,
        dropout=method.base_dropout,
    )
    if run.descriptions is not None:
        descriptions_of(run, loaded, settings)
    columns, first_rows = _first_rows(run)
    return Preview(
        report=report,
        settings={"method": str(method), "kind": dataset.kind, **settings.to_dict()},
        why=_reasons(run, loaded, settings, why),
        columns=columns,
        first_rows=first_rows,
        parts={part: len(found) for part, found in parts.items()},
        objective_why=why or _why_not_few(run, settings),
        estimate_seconds=_seconds(report, settings, rows, held, len(dataset.labels), parameters),
    )


def _reasons(run: Run, loaded: Loaded, settings: Settings, objective: str) -> dict[str, str]:
    """Return why each setting that the run leaves open has the value that it has."""
    dataset, method, rows = loaded.tasks[0].dataset, loaded.method, len(loaded.tasks[0].parts["train"])
    found = {
        "kind": dataset.why,
        "epochs": f"{rows:,} rows to train on make {settings.epochs} passes worth it",
        "patience": f"after {settings.patience} epochs without a better score it stops early",
        "lr": f"it is what {method.name} works well with",
        "max_length": "longer texts are rare, or the base takes no more",
        "metric": f"it is what kind {dataset.kind} is judged by",
        "pooling": "the base was pretrained so",
        "objective": objective or _why_not_few(run, settings),
    }
    columns = {"text": run.text, "text_pair": run.text_pair, "label": run.label}
    names = {"text": "text", "text_pair": "pair", "label": "label"}
    for option, asked in columns.items():
        column = dataset.columns.get(names[option])
        if asked is None and column:
            found[option] = f"'{column}' looks like it"
    given = {f.name for f in fields(Settings) if getattr(run.settings, f.name) != f.default}
    given |= {"kind"} if run.kind else set()
    return {name: why for name, why in found.items() if name not in given and why}


def _why_not_few(run: Run, settings: Settings) -> str:
    if run.settings.objective is not None:
        return "it was asked for"
    return "" if settings.objective == CONTRASTIVE else "there are enough rows a label to learn from each of them"


def _first_rows(run: Run) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of a file's columns, and its first rows as texts."""
    stream = read_rows(run.data, encoding=run.encoding, no_header=run.no_header)  # type: ignore[arg-type]
    found = [row for _, row in itertools.islice(stream, SHOWN)]
    columns = list(dict.fromkeys(name for row in found for name in row))
    return columns, [{name: str(value)[:WIDEST] for name, value in row.items() if value is not None} for row in found]


def _seconds(report: Report, settings: Settings, rows: int, held: int, labels: int, parameters: int) -> float:
    """Return about how long the training takes on two cores: a pass forward and one back over each token."""
    from adaptree.training.contrastive import BATCH, OF_LABEL, PASSES, STEPS

    length = min(report.lengths.mean if report.lengths else 32.0, settings.max_length or 256)
    shown = rows * (settings.epochs or 1)
    if settings.objective == CONTRASTIVE:
        size = min(rows, max(BATCH, OF_LABEL * labels))
        shown = size * (settings.max_steps or max(STEPS, -(-PASSES * rows // max(size, 1)))) * 2
    elif settings.max_steps:
        shown = min(shown, settings.max_steps * settings.batch_size)
    scored = held * (settings.epochs or 1)
    return round(5.0 + parameters * length * (6 * shown + 2 * scored) / FLOPS, 1)


def command_line(file: str, options: dict[str, Any]) -> str:
    """Return the command that trains the same: adaptree train reviews.csv --name reviews …"""
    words = ["adaptree", "train", file]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is False:
            words.append(f"--no-{flag[2:]}")
        elif value is not None:
            words += [flag, str(value)]
    return shlex.join(words)
