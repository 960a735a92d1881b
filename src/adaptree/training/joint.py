"""One set of adapters trained on several tasks at once, with a head each; afterwards they are tasks like any other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.api import Event, Source
from adaptree.data.check import tell
from adaptree.data.dataset import Dataset
from adaptree.data.split import split
from adaptree.data.stem import stem
from adaptree.errors import TrainingError, UsageError
from adaptree.kinds.reading import open_data
from adaptree.methods import Method
from adaptree.models.opening import base_of
from adaptree.tasks.names import check_name
from adaptree.tasks.record import SAW
from adaptree.tasks.runs import remember, run_folder
from adaptree.training import distributed
from adaptree.training.settings import Settings, known_settings

if TYPE_CHECKING:
    from adaptree.compose import Expression
    from adaptree.kinds.joint import Joint
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store
    from adaptree.training.result import Fit

JOINT = "joint"
"""In a record's extra: the tasks that were trained at once, and the temperature."""


def train(
    files: Sequence[Source] | Mapping[str, Source],
    *,
    name: str,
    store: Store | str | Path | None = None,
    temperature: float = 1.0,
    base: Base | str | Path = "minilm",
    method: Method | str | Expression = "houlsby",
    on: str | Expression | None = None,
    kind: str | None = None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    encoding: str = "utf-8",
    resume: bool = False,
    baselines: bool = True,
    device: str = "auto",
    threads: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    on_event: Callable[[Event], None] = lambda event: None,
    **settings: Any,
) -> list[Bound]:
    """Train one set of adapters on several files at once; each becomes a task NAME/FILE with a head of its own.

    An epoch has as many rows as the files together, of a file of n rows a number in proportion to n^(1/temperature):
    at 1 each row once, the larger the more even. It is judged by the mean of the tasks' main metrics. `files` may be
    a dict, whose keys are the tasks' names; the rest is as in `api.train`.
    """
    from adaptree.tasks.store import Store
    from adaptree.training.parents import ground

    named = name_tasks(name, files)
    check_temperature(temperature)
    leads = distributed.rank() == 0
    if isinstance(store, str | Path):
        store = Store(store)
    if resume and store is None:
        raise UsageError("only a run in a store can be resumed.", hint="Pass the store that it was started with.")
    if store is not None:
        for called in named:
            store.check_room(called)
    asked = Settings(**known_settings(settings))
    if asked.class_weights:
        raise UsageError("class weights are for one task at a time.", hint="Leave --class-weights out.")
    how, below = ground(method, on, store)
    if how.standalone:
        raise UsageError(f"{how.name} leaves the base alone: it has no adapters to share.", hint="--method pfeiffer")
    tables: dict[str, Dataset] = {}
    for called, source in named.items():
        table = tables[called] = open_data(
            source, text=text, pair=text_pair, label=label, kind=kind, encoding=encoding, on_event=on_event
        )
        _check(table, asked.metric)
        tell(table, None, None, on_event)

    from adaptree.kinds.encoded import Encoded
    from adaptree.kinds.joint import MEAN, Joined, Joint, counts
    from adaptree.training import checkpoint
    from adaptree.training.loop import fit
    from adaptree.training.package import Part, finish

    halves = [split(table, seed=asked.seed) for table in tables.values()]
    base = base_of(base, device, threads, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    below.check(base.fingerprint, base.name)
    how.chosen(base.hooked.sites)
    sizes = [len(training) for training, _ in halves]
    judged = tuple(asked.metric or kinds.get(table.kind).metrics[0] for table in tables.values())
    chosen = replace(asked, metric=MEAN).resolved(
        rows=sum(sizes),
        lr=how.lr,
        limit=base.limit,
        metric=MEAN,
        pooling=kinds.check_pooling(asked.pooling or base.pooling),
    )
    assert chosen.max_length is not None
    singles = [
        kinds.for_data(table, training, base.encoder, windows=chosen.windows)
        for table, (training, _) in zip(tables.values(), halves, strict=True)
    ]
    goal = Joint(tuple(singles), tuple(called.rpartition("/")[2] for called in tables), judged)
    parts = [
        Encoded(table, single, base.encoder, chosen.max_length)
        for table, single in zip(tables.values(), singles, strict=True)
    ]
    joined = Joined(parts, temperature)
    training, validation = (joined.rows([half[i] for half in halves]) for i in (0, 1))
    trained = below.under(how, base.device)
    trained.count(base.hooked.sites, base.hooked.backbone)  # what has no place in this base is refused here
    folder = None if store is None else folder_of(store, name)
    if folder is not None and leads:  # from here on an earlier run of this name is lost
        checkpoint.prepare(folder, anew=not resume)
    on_event(
        {
            "event": "start",
            "name": name,
            "kind": JOINT,
            "why": "",
            "labels": (),
            "columns": {called: table.name for called, table in tables.items()},
            "base": base.name,
            "method": str(trained),
            "train": len(training),
            "validation": len(validation),
            "settings": chosen.to_dict(),
        }
    )
    for called, table, size, count in zip(tables, tables.values(), sizes, counts(sizes, temperature), strict=True):
        on_event(_note(f"{called}: {table.kind}, {size:,} rows to train on, {count:,} an epoch."))
    fitted = fit(
        base, trained, goal, (joined, training), (joined, validation), chosen, folder=folder, resume=resume,
        on_event=on_event,
    )  # fmt: skip
    if not fitted.best:
        raise TrainingError(
            "stopped before the first epoch was done: there are no tasks yet.",
            hint="Go on with --resume." if folder else "",
        )
    if joined.truncated:
        on_event(
            _note(f"{joined.truncated:,} texts are longer than {chosen.max_length} tokens and were cut (--max-length).")
        )
    learned = {table.digest: called for called, table in tables.items()}
    said = {
        JOINT: {"tasks": list(tables), "temperature": temperature},
        SAW: {**below.extra.get(SAW, {}), **learned},
    }
    tasks = []
    for i, (called, table) in enumerate(tables.items()):
        own = part_of(fitted, goal, i)
        tasks.append(
            finish(
                called, base, trained, own, replace(chosen, metric=judged[i]),
                {"train": Part(table, halves[i][0]), "validation": Part(table, halves[i][1])},
                truncated=parts[i].truncated, extra=own.kind.extra() | below.extra | said,
                compare=baselines and leads, spelled=str(how), made_on=below.tasks,
            )
        )  # fmt: skip
    if store is not None and folder is not None and leads:
        tasks = [store.add(task) for task in tasks]
        remember(store, base)
        if fitted.finished:
            checkpoint.remove(folder)
    return [base.bind(task) for task in tasks]


def part_of(fitted: Fit, goal: Joint, task: int) -> Fit:
    """One task of a joint run: the shared adapters, its own head, and its own scores in the course of the run."""
    from adaptree.kinds.joint import MEAN, Joint, head_of
    from adaptree.training.result import Fit

    shared = {name: tensor for name, tensor in fitted.v.items() if not name.startswith("head.")}
    mine, prefixes = f"{goal.names[task]}.", tuple(f"{name}." for name in goal.names)
    history = []
    for entry in fitted.history:
        own = {key.removeprefix(mine): value for key, value in entry.items() if key.startswith(mine)}
        rest = {key: value for key, value in entry.items() if not key.startswith(prefixes) and key != MEAN}
        history.append({**rest, **own, "joint_mean": entry[MEAN]})
    settled = fitted.kind
    assert isinstance(settled, Joint)
    return Fit(
        shared | head_of(fitted.v, task), settled.of(task), history, fitted.best, fitted.seconds, fitted.finished,
        fitted.used,
    )  # fmt: skip


def name_tasks(name: str, files: Sequence[Source] | Mapping[str, Source]) -> dict[str, Source]:
    """NAME/FILE for each of the files; two that would be one are refused."""
    check_name(name)
    if "/" in name:
        raise UsageError(
            f"'{name}' has a slash already, and the tasks of a joint training come behind one.",
            hint=f"--name {name.replace('/', '-')}",
        )
    if len(files) < 2:
        raise UsageError("joint training is for two files or more.", hint="Leave out --joint for one.")
    if isinstance(files, Mapping):
        return {check_name(f"{name}/{called}"): source for called, source in files.items()}
    found: dict[str, Source] = {}
    for source in files:
        if not isinstance(source, str | Path):
            raise UsageError("rows have no file's name to call a task by.", hint='Give a dict: {"a": rows, "b": rows}.')
        called = f"{name}/{stem(source)}"
        if called in found:
            raise UsageError(
                f"'{found[called]}' and '{source}' would both be the task '{called}'.", hint="Rename one of the files."
            )
        found[called] = source
    return found


def check_temperature(temperature: float) -> None:
    good = isinstance(temperature, int | float) and not isinstance(temperature, bool) and not math.isnan(temperature)
    if not good or temperature < 1:
        raise UsageError(
            f"temperature must be a number of at least 1, not {temperature}.",
            hint="1 takes each row once, larger ones take from the files more evenly.",
        )


def folder_of(store: Store, name: str) -> Path:
    """Where a joint run keeps its checkpoint; no task's run has such a folder."""
    return run_folder(store, f"{name}/+joint")


def _check(table: Dataset, metric: str | None) -> None:
    kind = kinds.get(table.kind)
    if kind.resamples:
        raise UsageError(
            f"'{table.name}' is of kind {kind.name}, whose inputs are drawn anew in every step: it has to be trained "
            "alone.",
            hint="Train it by itself, and the others on it: --on NAME",
        )
    if metric is not None:
        kind.check_metric(metric, table.labels)


def _note(text: str) -> Event:
    return {"event": "note", "text": text}
