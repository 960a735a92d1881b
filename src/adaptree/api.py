"""The functions that commands, notebooks and services call. Each is thin: the work is done in the rooms below."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Event, Listener, silent
from adaptree.data.read import Source
from adaptree.errors import UsageError
from adaptree.models.evaluate import evaluate, result
from adaptree.training.predict import predict_lines, predict_rows
from adaptree.training.run import Run
from adaptree.training.settings import Settings

if TYPE_CHECKING:
    from adaptree.analysis.ablate import Ablation
    from adaptree.analysis.attribution import Explanations
    from adaptree.analysis.clean import Cleaning
    from adaptree.analysis.explain import Attention
    from adaptree.analysis.report import Report
    from adaptree.analysis.suggest import Suggestion
    from adaptree.compose import Expression
    from adaptree.data.check import Report as DataReport
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store
    from adaptree.tasks.task import Task

__all__ = [
    "Event", "Listener", "Source", "ablate", "check", "clean", "compare", "compose", "evaluate", "explain", "methods",
    "predict_lines", "predict_rows", "rebase", "report", "result", "suggest", "train", "train_jointly",
]  # fmt: skip


def check(
    data: Source,
    *,
    validation: Source | None = None,
    base: Base | str | Path = "minilm",
    kind: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    no_header: bool = False,
    merge_labels: bool = False,
    max_length: int | None = None,
    windows: bool = False,
    seed: int = 0,
    on_event: Listener = silent,
) -> DataReport:
    """Return what is in a file, what `train` would do with it, and what looks wrong."""
    from adaptree import kinds
    from adaptree.data.check import check as inspect_data
    from adaptree.data.parts import own_parts
    from adaptree.kinds.reading import open_data
    from adaptree.models.opening import encoder_of

    data, validation, _ = own_parts(data, validation, on_event=on_event, use=("train", "validation"))
    reading: dict[str, Any] = {"encoding": encoding, "no_header": no_header, "on_event": on_event}
    dataset = open_data(data, text=text, pair=text_pair, label=label, kind=kind, merge_labels=merge_labels, **reading)
    found = kinds.get(dataset.kind)
    kinds.check_options(found, {"windows": windows})
    other = None if validation is None else open_data(validation, like=dataset.schema, **reading)
    encoder, limit = encoder_of(base)
    longest = Settings(max_length=max_length, seed=seed).longest(limit)
    return inspect_data(
        dataset, validation=other, lengths=encoder.lengths, limit=limit, max_length=longest, seed=seed,
        windowed=windows or found.reads_whole, can_window=kinds.can_window(dataset),
    )  # fmt: skip


def _takes_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Show the options of a run in a function's signature, for `help()` and notebooks."""
    shown = inspect.signature(function)
    own = [p for p in shown.parameters.values() if p.kind is not p.VAR_KEYWORD]
    taken = {"data", "settings", *shown.parameters}
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
        for f in (*fields(Run), *fields(Settings))
        if f.name not in taken
    ]
    function.__signature__ = shown.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function


def train(data: Source, *, on_event: Listener = silent, **options: Any) -> Bound:
    """Train a task on labelled data and return it on its base, ready to predict.

    `options` are the fields of `adaptree.training.run.Run` (name, base, method, on, kind, text, label, validation,
    test, store, fast, search, …) and of `adaptree.training.settings.Settings` (epochs, lr, batch_size, seed, …).
    With a `store` the task is kept there, and a run that was stopped can be resumed. `on_event` is called with a dict
    for every step and epoch.
    """
    from adaptree.training.pipeline import train as run_pipeline

    run = Run.of(data, **options)
    if run.joint:
        raise UsageError("several files become several tasks.", hint="Call train_jointly(files, …).")
    return run_pipeline(run, on_event)[0]


def train_jointly(
    files: Sequence[str | Path] | Mapping[str, Source], *, name: str, on_event: Listener = silent, **options: Any
) -> list[Bound]:
    """Train one set of adapters on several files at once; return a task NAME/FILE for each, with a head of its own.

    `files` may be a dict, whose keys are the tasks' names. An epoch has as many rows as the files together, of a file
    of n rows a number in proportion to n^(1/temperature): at 1 each row once, the larger the more even. It is judged by
    the mean of the tasks' main metrics. The other `options` are those of `train`.
    """
    from adaptree.training.pipeline import train as run_pipeline

    return run_pipeline(Run.of(files, name=name, joint=True, **options), on_event)


_takes_options(train)
_takes_options(train_jointly)


def compose(
    expression: str | Expression,
    *,
    name: str,
    store: Store | str | Path,
    data: Source | None = None,
    on_event: Listener = silent,
    **options: Any,
) -> Bound:
    """Keep a composition of stored tasks as a task of its own; fuse(…) is trained on `data` with options of `train`."""
    from adaptree.training.composing import compose as keep

    return keep(expression, name=name, store=store, data=data, on_event=on_event, **options)


def rebase(
    store: Store,
    reference: str,
    base: Base | str | Path,
    name: str | None = None,
    **options: Any,
) -> Task:
    """Put a stored task into another base of the same shape, as a new version of it or under another `name`.

    `options` are device, threads, trust_remote_code and allow_pickle (`adaptree.training.rebase.rebase`).
    """
    from adaptree.training.rebase import rebase as move

    return move(store, reference, base, name, **options)


def compare(data: Source, *, methods: Sequence[Any], out: str | Path, **options: Any) -> dict[str, Any]:
    """Train several methods on the same rows and return scores and prices (`adaptree.analysis.compare.compare`)."""
    from adaptree.analysis.compare import compare as run_comparison

    return run_comparison(data, methods=methods, out=out, **options)


def report(results: str | Path) -> Report:
    """Write report.html and report.md over all experiments of a results folder; return the report.

    Its `rows` are the papers' statements beside what was measured (`adaptree.analysis.report.report`).
    """
    from adaptree.analysis.report import report as gather

    return gather(results)


def suggest(data: Source, store: Store, base: Base | str | Path = "minilm", **options: Any) -> Suggestion:
    """Return which stored tasks help to learn new data (`adaptree.analysis.suggest.suggest`)."""
    from adaptree.analysis.suggest import suggest as probe

    return probe(data, store, base, **options)


def clean(data: Source, *, out: str | Path | None = None, **options: Any) -> Cleaning:
    """Return the rows whose labels are probably wrong, that repeat another row or contradict it.

    With `out`, all rows are written there as csv, with what was found in further columns. `options` are base, kind,
    text, text_pair, label, encoding, max_length, seed, device, … (`adaptree.analysis.clean.clean`).
    """
    from adaptree.analysis.clean import clean as judge

    return judge(data, out=out, **options)


def explain(bound: Bound, inputs: Any, *, by: str | None = None, target: str | None = None) -> Attention | Explanations:
    """Return which words the predictions for some inputs rest on (`adaptree.analysis.attribution.explain_words`).

    `by` is gradients, leave-one-out or attention: what a fused task attends to, which is the default of fused tasks
    (`adaptree.analysis.explain.attention`). `target` names a label, number or choice to explain instead of the
    predicted one.
    """
    from adaptree.analysis.attribution import explain_words
    from adaptree.analysis.explain import attention, default_way

    if (by or default_way(bound)) == "attention":
        return attention(bound, inputs)
    return explain_words(bound, inputs, by=by, target=target)


def ablate(bound: Bound, data: Source, *, out: str | Path | None = None, **options: Any) -> Ablation:
    """Score a task on labelled data without its adapters in every span of layers, and say which can go.

    Nothing is trained. `out` is a folder for figure.png, table.md and ablation.json. `options` are within (how many
    points may be lost), keep_norms, text, text_pair, label, encoding, … (`adaptree.analysis.ablate.ablate`).
    """
    from adaptree.analysis import ablate as analysis

    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)  # a folder that cannot be is known before the work
    found = analysis.ablate(bound, data, **options)
    if out is not None:
        analysis.write(found, out)
    return found


def methods(base: Base | str | Path = "minilm") -> list[dict[str, Any]]:
    """Return every method at its defaults, from the fewest weights to the most, with what it costs on a base."""
    from adaptree.methods.method import METHODS, load_plugins
    from adaptree.models.opening import base_of

    load_plugins()
    base = base_of(base, "cpu", None)
    total = sum(p.numel() for p in base.hooked.backbone.parameters())
    rows = []
    for name, kind in METHODS.items():
        method, refused = kind(), None
        try:
            count: int | None = sum(method.count(base.hooked.sites, base.hooked.backbone).values())
        except UsageError as error:
            count, refused = None, str(error)
        rows.append(
            {
                "method": name,
                "spelling": str(method),
                "trains": kind.trains,
                "parameters": None if kind.standalone else count,
                "percent": None if count is None or kind.standalone else 100 * count / total,
                "lr": kind.lr,
                "paper": kind.paper,
                "choose": kind.choose,
                "refused": refused,
            }
        )
    return sorted(rows, key=lambda row: (row["parameters"] is None, row["parameters"] or 0, row["method"]))
