"""What the command line, a notebook and a service call: check, train, evaluate and predict, over files or rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import kinds
from adaptree.compose import Expression, Name
from adaptree.data.check import Report, tell
from adaptree.data.check import check as look
from adaptree.data.dataset import Dataset, Schema
from adaptree.data.read import name_of
from adaptree.data.read import rows as read_rows
from adaptree.data.split import split, split_again
from adaptree.errors import TrainingError, UsageError
from adaptree.kinds.reading import Reader, open_data
from adaptree.methods import Method
from adaptree.models.opening import EVALUATED, REBASED, base_of, encoder_of
from adaptree.tasks.names import check_name
from adaptree.tasks.runs import remember, run_folder
from adaptree.tasks.store import Store
from adaptree.tasks.task import Task
from adaptree.training import distributed
from adaptree.training.settings import Settings, known_settings

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.models.several import MultiTask
    from adaptree.training.package import Part
    from adaptree.training.result import Fit
    from adaptree.training.search import Trial

Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
Event = dict[str, Any]
CHUNK = 4096
"""Rows that are predicted together from a file: it may be longer than memory."""


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
    max_length: int | None = None,
    seed: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Report:
    """What is in this file, what `train` would do with it, and what looks wrong."""
    table = open_data(data, text=text, pair=text_pair, label=label, kind=kind, encoding=encoding, on_event=on_event)
    other = (
        None if validation is None else open_data(validation, encoding=encoding, like=table.schema, on_event=on_event)
    )
    encoder, limit = encoder_of(base)
    longest = Settings(max_length=max_length, seed=seed).longest(limit)
    return look(table, validation=other, lengths=encoder.lengths, limit=limit, max_length=longest, seed=seed)


def train(
    data: Source,
    *,
    name: str = "task",
    base: Base | str | Path = "minilm",
    method: Method | str | Expression = "houlsby",
    on: str | Expression | None = None,
    kind: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    encoding: str = "utf-8",
    store: Store | str | Path | None = None,
    resume: bool = False,
    fast: bool = False,
    search: int | None = None,
    baselines: bool = True,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
    **settings: Any,
) -> Bound:
    """Turn labelled data into a task over a base; with a `store` it is kept there and a stopped run can be resumed.

    `on` names tasks of the store, or a composition of them, that the new one is trained on top of; a `method` that is
    spelled fuse(a, b) learns attention over theirs. `fast` trains fewer layers in quicker steps, for a little less
    score if any. `search` first tries so many settings on a part of the training rows. `settings` are the fields of
    `adaptree.training.settings.Settings`. Events (dicts) tell `on_event` how it goes.
    """
    from adaptree.training.parents import ground

    check_name(name)
    leads = distributed.rank() == 0  # of several processes that train together, one writes
    if isinstance(store, str | Path):
        store = Store(store)
    if store is not None:
        store.check_room(name)
    asked = Settings(**known_settings(settings))
    how, below = ground(method, on, store)
    table = open_data(data, text=text, pair=text_pair, label=label, kind=kind, encoding=encoding, on_event=on_event)
    if resume and store is None:
        raise UsageError("only a run in a store can be resumed.", hint="Pass the store that it was started with.")
    _check_fits(table, how, asked)
    other = (
        None if validation is None else open_data(validation, encoding=encoding, like=table.schema, on_event=on_event)
    )
    tester = None if test is None else open_data(test, encoding=encoding, like=table.schema, on_event=on_event)
    tell(table, other, tester, on_event)

    from adaptree.kinds.encoded import Encoded
    from adaptree.training import checkpoint
    from adaptree.training.fast import preset
    from adaptree.training.loop import fit
    from adaptree.training.package import finish
    from adaptree.training.search import ready
    from adaptree.training.search import search as run_search

    parts = _parts(table, other, tester, asked.seed)
    base = base_of(base, device, threads, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    below.check(base.fingerprint, base.name)
    if fast:
        under = partial(below.under, device=base.device)
        how, asked = preset(how, asked, base, table, lambda text: on_event(_note(text)), under)
    how.chosen(base.hooked.sites)
    whole = below.under(how, base.device)
    chosen = asked.resolved(
        rows=len(parts["train"]),
        lr=how.lr,
        limit=base.limit,
        metric=kinds.get(table.kind).metrics[0],
        pooling=kinds.check_pooling(asked.pooling or base.pooling),
    )
    assert chosen.max_length is not None
    goal = kinds.for_data(
        table, parts["train"].rows, base.encoder, windows=chosen.windows, whole_words=chosen.whole_words
    )
    source = Encoded(table, goal, base.encoder, chosen.max_length)
    checker = source if other is None else Encoded(other, goal, base.encoder, chosen.max_length)
    if search is not None:
        ready(search, how)
        first, held = split_again(table, parts["train"].rows, seed=chosen.seed)
    folder = None if store is None else run_folder(store, name)
    if folder is not None and leads:  # nothing is refused from here on, so a run that was stopped may be cleared away
        checkpoint.prepare(folder, anew=not resume)
    on_event(
        {
            "event": "start",
            "name": name,
            "kind": table.kind,
            "why": table.why,
            "labels": table.labels,
            "columns": table.columns,
            "base": base.name,
            "method": str(whole),
            "train": len(parts["train"]),
            "validation": len(parts["validation"]),
            "settings": chosen.to_dict(),
        }
    )
    train_part, validation_part = (source, parts["train"].rows), (checker, parts["validation"].rows)
    tried: list[Trial] = []
    if search is not None:

        def trial(method: Method, settings: Settings, watch: Callable[[Event], None]) -> Fit:
            rest = (train_part, validation_part)  # one trunk for the search and for what follows it
            trained = below.under(method, base.device)
            return fit(base, trained, goal, (source, first), (source, held), settings, cover=rest, on_event=watch)

        same = (table.digest, first.tobytes(), held.tobytes(), base.fingerprint, repr(whole))
        how, chosen, tried = run_search(
            search, how, chosen, base.width, trial, identity=same, device=base.device, folder=folder, resume=resume,
            on_event=on_event,
        )  # fmt: skip
        resume = resume and folder is not None and (folder / checkpoint.FILE).is_file()  # it may have ended in a trial
        whole = below.under(how, base.device)
    fitted = fit(
        base,
        whole,
        goal,
        train_part,
        validation_part,
        chosen,
        folder=folder,
        resume=resume,
        on_event=on_event,
    )
    if not fitted.best:
        raise TrainingError(
            "stopped before the first epoch was done: there is no task yet.",
            hint="Go on with --resume." if folder else "",
        )
    cut = source.truncated + (0 if other is None else checker.truncated)
    if cut:
        on_event(_note(f"{cut:,} texts are longer than {chosen.max_length} tokens and were cut (--max-length)."))
    extra = fitted.kind.extra() | below.extra | ({"search": [asdict(each) for each in tried]} if tried else {})
    task = finish(
        name, base, whole, fitted, chosen, parts, truncated=cut, extra=extra,
        compare=baselines and leads, spelled=str(how), made_on=below.tasks,
    )  # fmt: skip
    if store is not None and folder is not None and leads:
        task = store.add(task)
        remember(store, base)
        if fitted.finished:
            checkpoint.remove(folder)
    return base.bind(task)


def _check_fits(table: Dataset, how: Method, asked: Settings) -> None:
    """Refuse a method, a metric or weights that this file is not for."""
    kind = kinds.get(table.kind)
    if how.standalone and (not kind.linear_outside or asked.windows):
        raise UsageError(
            f"{how.name} is for one label or one number a text, read at once.",
            hint="Choose another method, or houlsby.",
        )
    if asked.metric is not None:
        kind.check_metric(asked.metric, table.labels)
    if asked.class_weights and not kind.weighs_classes:
        raise UsageError(
            "class weights are for rows of one label each, and this file has others.", hint="Leave --class-weights out."
        )


def _parts(table: Dataset, other: Dataset | None, tester: Dataset | None, seed: int) -> dict[str, Part]:
    """The rows to train on, to validate on and, if there are such, to test on."""
    from adaptree.training.package import Part

    if other is None:
        training, held = split(table, seed=seed)
        parts = {"train": Part(table, training), "validation": Part(table, held)}
    else:
        parts = {"train": Part(table, np.arange(len(table))), "validation": Part(other, np.arange(len(other)))}
    if tester is not None:
        parts["test"] = Part(tester, np.arange(len(tester)))
    return parts


def evaluate(
    bound: Bound | MultiTask,
    data: Source,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    store: Store | None = None,
) -> dict[str, Any]:
    """A task's scores on labelled data, with 95 % intervals; in its `store` a rebased one then counts as evaluated."""
    from adaptree.models.several import MultiTask
    from adaptree.training.package import Part, score

    if isinstance(bound, MultiTask):
        raise UsageError(
            f"{bound.expression!r} gives several answers, and a row of a file is labelled for one.",
            hint=f'Evaluate each part: adaptree evaluate "{next(iter(bound.parts))}" DATA',
        )
    like = Schema.of_task(bound.task.record)
    table = open_data(data, text=text, pair=text_pair, label=label, encoding=encoding, like=like, unknown=True)
    scores, spans = score(bound, Part(table, np.arange(len(table))))
    itself = isinstance(bound.composition.expression, Name) and len(bound.composition.tasks) == 1
    if store is not None and REBASED in bound.task.record.extra and itself and bound.task.record.reference in store:
        store.mark(bound.task.record.reference, EVALUATED)
    said = _result_of(bound)
    del said["baselines"]  # those are of other rows
    if bound.int8:
        said["int8"] = True
    if table.unknown:
        said["unknown_labels"] = table.unknown
    return {**said, "rows": len(table), "metrics": {"test": scores}, "intervals": {"test": spans}}


def predict_rows(
    bound: Bound,
    data: Source,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    encoding: str = "utf-8",
    min_score: float | None = None,
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each row of a file as it stands, with the task's answer; in order and in bounded memory."""
    asked = {"text": text, "pair": text_pair, "label": None}
    chunk: list[tuple[int, dict[str, Any]]] = []
    reader: Reader | None = None
    name = name_of(data)
    for number, row in read_rows(data, encoding=encoding):
        reader = reader or bound.reader(row, asked)
        chunk.append((number, row))
        if len(chunk) == CHUNK:
            yield from _answers(bound, chunk, reader, name, min_score)
            chunk = []
    if chunk and reader:
        yield from _answers(bound, chunk, reader, name, min_score)


def _answers(
    bound: Bound, chunk: list[tuple[int, dict[str, Any]]], reader: Reader, name: str, min_score: float | None
) -> Iterator[tuple[dict[str, Any], Any]]:
    inputs = [reader(row, number, name) for number, row in chunk]
    return zip((row for _, row in chunk), bound.answer(inputs, min_score), strict=True)


def predict_lines(bound: Bound, lines: Iterable[str], *, min_score: float | None = None) -> Iterator[tuple[str, Any]]:
    """Each line that a user typed, with the answer to it; in order, and some at a time."""
    lines = iter(lines)
    while chunk := list(islice(lines, 1024)):
        yield from zip(chunk, bound.answer([bound.line(line) for line in chunk], min_score), strict=True)


def result(task: Task) -> dict[str, Any]:
    """A trained task as one object of plain numbers: the contract of `--format json`."""
    record = task.record
    return {
        "task": record.name,
        "version": record.version,
        "kind": record.kind,
        "base": record.base["name"],
        "method": record.method,
        "metrics": record.metrics,
        "intervals": record.intervals,
        "baselines": record.baselines,
        "parameters": record.parameters,
        "trained_percent": record.trained_percent,
        "bytes": task.bytes,
        "seconds": record.seconds,
        "seed": record.seed,
    }


def _result_of(bound: Bound) -> dict[str, Any]:
    """The same of what is bound: a composition is called by its text, and has the price of all tasks in it."""
    said = result(bound.task)
    expression = bound.composition.expression
    if isinstance(expression, Name):
        return said
    tasks = list(
        {(task.record.reference, task.record.digest or id(task)): task for task in bound.composition.tasks}.values()
    )
    records = [task.record for task in tasks]
    return {
        **said,
        "task": repr(expression),
        "version": None,
        "parts": [record.reference for record in records],
        "method": bound.spelling,
        "parameters": {
            **said["parameters"],
            **{
                part: sum(r.parameters.get(part, 0) for r in records)
                for part in ("adapters", "norms", "head", "trained")
            },
        },
        "trained_percent": sum(record.trained_percent for record in records),
        "bytes": sum(task.bytes for task in tasks),
        "seconds": sum(record.seconds for record in records),
        "seed": None,
    }


def methods(base: Base | str | Path = "minilm") -> list[dict[str, Any]]:
    """Every method at its defaults, from the fewest weights to the most: what it trains, when to choose it."""
    from adaptree.methods.method import METHODS, load_plugins

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


def _note(text: str) -> Event:
    return {"event": "note", "text": text}
