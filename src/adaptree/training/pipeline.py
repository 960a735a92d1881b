"""The one pipeline from data to a task, whatever starts it: `train`, `train --joint`, `compose --train`, `compare`.

load      read the files, find the parent tasks, hold out validation rows
resolve   load the base and choose everything that the run leaves open
fit       search for settings if the run has a search, then train the weights
package   score the weights and make tasks of them, kept in the store
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptree import kinds
from adaptree.data.check import send_notes
from adaptree.data.dataset import Dataset
from adaptree.data.events import Event, Listener, note, silent
from adaptree.data.parts import own_parts
from adaptree.data.read import rows as read_rows
from adaptree.data.split import split, split_again, split_by_column
from adaptree.data.stem import stem
from adaptree.errors import DataError, TrainingError, UsageError, near
from adaptree.kinds import as_text
from adaptree.kinds.reading import open_data
from adaptree.methods import Method, parse
from adaptree.models.evaluate import Part, result, whole
from adaptree.models.opening import base_of
from adaptree.tasks.names import check_name
from adaptree.tasks.record import SAW, STREAM
from adaptree.tasks.runs import remember
from adaptree.training import distributed
from adaptree.training.objective import choose
from adaptree.training.parents import Parents, find_parents
from adaptree.training.run import Run, Source, checkpoint_folder
from adaptree.training.settings import CONTRASTIVE, Settings
from adaptree.training.work.interrupt import ctrl_c, shielded

if TYPE_CHECKING:
    from torch import Tensor

    from adaptree.kinds import Kind
    from adaptree.models.base import Base
    from adaptree.models.bound import Bound
    from adaptree.tasks.store import Store
    from adaptree.tasks.task import Task
    from adaptree.training.encoded import EncodedDataset
    from adaptree.training.result import Fit
    from adaptree.training.search import Trial

    Rows = tuple[EncodedDataset, np.ndarray[Any, Any]]
    """A dataset and some of its rows."""

Array = np.ndarray[Any, Any]
KIND_OPTIONS = ("windows", "whole_words", "as_text", "template", "cut")
"""Settings that are fields of some kinds."""
ALL_ROWS = "all"
"""The folder, in a run's, of the checkpoint of its training on all rows."""
REFITTED = "refitted"
"""In a record's settings: whether the weights were trained again on all rows, after the scores were taken."""
JOINT = "joint"
"""In a record's extra: the tasks that were trained together, and the temperature."""


@dataclass(frozen=True)
class TaskData:
    """A task's name and its rows: "train", "validation" and, where there is a test file, "test"."""

    name: str
    parts: dict[str, Part]

    @property
    def dataset(self) -> Dataset:
        """The dataset that is trained on."""
        return self.parts["train"].dataset


@dataclass(frozen=True)
class Loaded:
    """The result of `load`: the method, its parents, and the data of each task (of several only in a joint run)."""

    store: Store | None
    method: Method
    parents: Parents
    tasks: list[TaskData]


@dataclass(frozen=True)
class Resolved:
    """The result of `resolve`: a run with nothing left open."""

    base: Base
    parents: Parents
    method: Method
    """The method as the task's record will have it."""
    settings: Settings
    kind: Kind
    encoded: list[list[EncodedDataset]]
    """Each task's datasets of training and validation rows: one, unless there is a validation file."""
    training: Rows
    validation: Rows

    @property
    def holds_out(self) -> bool:
        """Whether the validation rows were held out of the file that is trained on."""
        return self.training[0] is self.validation[0]

    @cached_property
    def trained(self) -> Method:
        """The method over its parents: what is really trained."""
        return self.parents.combine(self.method, self.base.device)


@dataclass(frozen=True)
class Fitted:
    """The result of `fit`: the weights, and the plan with the method and settings that a search chose."""

    plan: Resolved
    fit: Fit
    trials: list[Trial]


def train(run: Run, on_event: Listener = silent, *, jobs: int = 1, cluster: str | None = None) -> list[Bound]:
    """Train what a run specifies and return its tasks on their base: one, or in a joint run one for each file.

    The trials of a search run in `jobs` processes at a time, or on a `cluster` ("ray", or its address).
    """
    from adaptree.training import memory
    from adaptree.training.trials import check_spread

    check_spread(run, jobs, cluster)
    loaded = load(run, on_event)
    plan = resolve(run, loaded, on_event)
    try:
        with ctrl_c(), memory.explained(plan.settings, _folder(run, loaded)):
            fitted = fit(run, loaded, plan, on_event, jobs=jobs, cluster=cluster)
            try:
                tasks = package(run, loaded, fitted, on_event)
            except BaseException:
                fitted.fit.keep()
                raise
    except BaseException as error:
        on_event({"event": "failed", "why": str(error) or type(error).__name__})
        raise
    on_event({"event": "end", "finished": fitted.fit.finished, "results": [result(task) for task in tasks]})
    return [plan.base.bind(task) for task in tasks]


def load(run: Run, on_event: Listener = silent) -> Loaded:
    """Read a run's files and find the tasks that it builds on; the base is not loaded yet."""
    from adaptree.tasks.store import Store

    sources = _name_tasks(run) if run.joint else {check_name(run.name): run.data}
    store = Store(run.store) if isinstance(run.store, str | Path) else run.store
    if store is not None:
        for name in sources:
            store.check_room(name)
    elif run.resume and run.checkpoints is None:
        raise UsageError("only a run in a store can be resumed.", hint="Pass the store that it was started with.")
    method, parents = find_parents(run.method, run.on, store)
    if run.joint:
        _check_joint(run, method)
    tasks = [TaskData(name, read(run, source, method, on_event)) for name, source in sources.items()]
    return Loaded(store, method, parents, tasks)


def read(run: Run, source: Any, method: Method, on_event: Listener) -> dict[str, Part]:
    """Open a task's files; where there is no validation part, hold a fifth of the rows out."""
    if run.joint:  # its tasks are validated and tested together, or not at all
        source, validation, test = own_parts(source, on_event=on_event, use=("train",))[0], None, None
    else:
        source, validation, test = own_parts(source, run.validation, run.test, on_event)
    if run.split is not None and isinstance(source, Iterator):
        source = list(source)  # it is read twice
    dataset = open_data(
        source,
        text=run.text,
        pair=run.text_pair,
        label=run.label,
        kind=run.kind,
        encoding=run.encoding,
        no_header=run.no_header,
        merge_labels=run.merge_labels,
        weight=run.weight,
        aside=run.split,
        on_event=on_event,
    )
    _check_data(run, dataset, method)
    others: dict[str, Dataset] = {}
    for part, other in (("validation", validation), ("test", test)):
        if other is None:
            continue
        try:
            others[part] = open_data(
                other, encoding=run.encoding, no_header=run.no_header, like=dataset.schema, on_event=on_event
            )
        except DataError as error:
            if part == "validation" or run.test is not None:
                raise
            note(on_event, f"the dataset's own test part is not used: {error.what}")  # GLUE's have no labels
    send_notes(dataset, others.get("validation"), others.get("test"), on_event)
    parts = {part: whole(other) for part, other in others.items()}
    if "validation" in parts:
        return {"train": whole(dataset), **parts}
    if run.split is not None:
        again = read_rows(source, encoding=run.encoding, no_header=run.no_header)
        rows, held = split_by_column(dataset, (row for _, row in again), run.split)
    else:
        rows, held = split(dataset, seed=run.settings.seed)
    return {"train": Part(dataset, rows), "validation": Part(dataset, held), **parts}


def resolve(run: Run, loaded: Loaded, on_event: Listener = silent) -> Resolved:
    """Load the base, and choose the settings, the kind and the encodings that a run leaves open."""
    from adaptree.training.contrastive import RATE
    from adaptree.training.fast import preset
    from adaptree.training.multitask import MEAN

    trust = {"trust_remote_code": run.trust_remote_code, "allow_pickle": run.allow_pickle}
    writes = kinds.writes(loaded.tasks[0].dataset.kind)
    base = base_of(run.base, run.device, run.threads, writes=writes, **trust)
    method, settings, parents = loaded.method, run.settings, loaded.parents
    parents.check_base(base)
    if run.fast:
        method, settings = preset(method, settings, base, loaded.tasks[0].dataset, parents, on_event)
    method.chosen(base.hooked.sites)
    metric = [settings.metric or kinds.get(t.dataset.kind).metrics[0] for t in loaded.tasks]
    parts, rows = loaded.tasks[0].parts, sum(len(task.parts["train"]) for task in loaded.tasks)
    held_out = parts["validation"].dataset is parts["train"].dataset
    objective, why = choose(run, settings, method, parts["train"].dataset, rows + held_out * len(parts["validation"]))
    if why:
        note(on_event, f"contrastive training, then a solved head: {why}. Another way: --objective.")
    settings = replace(settings, metric=MEAN if run.joint else metric[0]).resolved(
        rows=rows,
        lr=method.lr * (RATE if objective == CONTRASTIVE else 1),
        limit=base.limit,
        metric=metric[0],
        pooling=kinds.check_pooling(settings.pooling or base.pooling),
        objective=objective,
        dropout=method.base_dropout,
    )
    kind, encoded, training, validation = _encode(run, loaded, base, settings, metric)
    if run.descriptions is not None:
        described = training[0].described(descriptions_of(run, loaded, settings))
        same = training[0] is validation[0]
        training = described, np.concatenate([training[1], described.more])
        validation = (described, validation[1]) if same else validation
        note(on_event, f"{len(described.more)} descriptions of labels are learned from, too.")
    return Resolved(
        base=base,
        parents=parents,
        method=method,
        settings=settings,
        kind=kind,
        encoded=encoded,
        training=training,
        validation=validation,
    )


def _encode(
    run: Run, loaded: Loaded, base: Base, settings: Settings, metric: list[str]
) -> tuple[Kind, list[list[EncodedDataset]], Rows, Rows]:
    """Return the kind, each task's encoded datasets, and the rows to train and to validate on.

    The tasks of a joint run are put together as one.
    """
    from adaptree.training.encoded import EncodedDataset
    from adaptree.training.multitask import MultiTaskDataset, MultiTaskKind

    each: list[Kind] = []
    encoded: list[list[EncodedDataset]] = []
    for task in loaded.tasks:
        rows = task.parts["train"].rows
        options = {name: getattr(settings, name) for name in KIND_OPTIONS}
        kind = kinds.for_data(task.dataset, rows, base.encoder, **options)
        held = task.parts["validation"].dataset
        datasets = [task.dataset] if held is task.dataset else [task.dataset, held]
        each.append(kind)
        encoded.append([EncodedDataset(some, kind, base.encoder, settings.max_length or 0) for some in datasets])
    training, validation = ([task.parts[part].rows for task in loaded.tasks] for part in ("train", "validation"))
    if not run.joint:
        return each[0], encoded, (encoded[0][0], training[0]), (encoded[0][-1], validation[0])
    together = MultiTaskDataset([of_task[0] for of_task in encoded], run.temperature)
    joint = MultiTaskKind(tuple(each), tuple(task.name.rpartition("/")[2] for task in loaded.tasks), tuple(metric))
    return joint, encoded, (together, together.rows(training)), (together, together.rows(validation))


def descriptions_of(run: Run, loaded: Loaded, settings: Settings) -> dict[str, str]:
    """Return the descriptions of labels to learn from; raise UsageError where they are of no use."""
    from adaptree.models.zero_shot import read_labels

    dataset = loaded.tasks[0].dataset
    if run.joint or not dataset.labels or dataset.values is None or dataset.columns.get("pair"):
        raise UsageError("descriptions are for a task with one label for each text.", hint="Leave out --descriptions.")
    if settings.objective != CONTRASTIVE:
        raise UsageError(
            f"descriptions of labels are for few rows a label, and here the objective is {settings.objective}.",
            hint="--objective contrastive, or leave out --descriptions.",
        )
    given = run.descriptions
    found = dict(given) if isinstance(given, Mapping) else read_labels(str(given))
    known = [str(label) for label in dataset.labels]
    for name in found:
        if name not in known:
            hint = near(name, known) or f"The labels are: {', '.join(known[:20])}."
            raise UsageError(f"there is no label '{name}' in '{dataset.name}'.", hint=hint)
    return {name: text.removeprefix(f"{name}: ") for name, text in found.items()}


def fit(
    run: Run,
    loaded: Loaded,
    plan: Resolved,
    on_event: Listener = silent,
    *,
    jobs: int = 1,
    cluster: str | None = None,
) -> Fitted:
    """Train the weights, after a search for settings if the run asks for one; its trials as `train` says."""
    from adaptree.training import checkpoint, loop
    from adaptree.training.search import check_search

    folder = _folder(run, loaded)
    counts = plan.trained.count(plan.base.hooked.sites, plan.base.hooked.backbone)  # raises if it does not fit
    if plan.settings.adapter_drop:
        _check_adapter_drop(plan, counts)
    halves: Halves | None = None
    if run.search is not None:
        check_search(plan.method)
        halves = Halves.of(plan, loaded)

    def prepare() -> bool:
        if folder is not None:
            checkpoint.prepare(folder, anew=not run.resume)
            if not run.resume:
                checkpoint.remove(folder / ALL_ROWS)
        return _can_resume(run, folder, on_event)

    # No error of usage after this line: an older run may be cleared.
    resume = distributed.ProcessGroup(plan.base.device).by_first(prepare)
    on_event(_start(run, loaded, plan))
    _note_joint(run, loaded, on_event)
    trials: list[Trial] = []
    if halves is not None:
        plan, trials = _search(run, loaded, halves, folder, on_event, jobs, cluster)
    fitted = loop.fit(
        plan.base, plan.trained, plan.kind, plan.training, plan.validation, plan.settings,
        folder=folder, resume=resume, start=_start_weights(run, plan), head=_head_weights(run, plan), on_event=on_event,
    )  # fmt: skip
    if fitted.finished and fitted.chose_nothing and plan.holds_out:
        fitted = _refit(run, plan, fitted, folder, on_event)
    if run.stream and not fitted.finished:  # the next version of a task is there when it is finished
        raise KeyboardInterrupt
    if not fitted.best:
        nothing = "there are no tasks yet" if run.joint else "there is no task yet"
        raise TrainingError(
            f"stopped before the first epoch was done: {nothing}.", hint="Go on with --resume." if folder else ""
        )
    if not fitted.finished:
        note(on_event, "stopping: the best epoch so far becomes the task; Ctrl-C again stops at once, and can resume.")
    return Fitted(plan, fitted, trials)


def _check_adapter_drop(plan: Resolved, counts: Mapping[str, int]) -> None:
    """Raise UsageError if no adapters can be left out in a step, or all of them could."""
    most, method, sites = plan.settings.adapter_drop, plan.method, plan.base.hooked.sites
    if method.standalone or type(method).weights is not Method.weights or not counts["adapters"]:
        raise UsageError(
            f"--adapter-drop leaves out adapters of the lowest layers, and {method.name} has none.",
            hint="Leave it out, or choose a method with adapters, such as pfeiffer.",
        )
    if most >= sites.depth:
        raise UsageError(
            f"--adapter-drop {most} would leave out all adapters: this base has {sites.depth} layers.",
            hint=f"--adapter-drop {sites.depth - 1}" if sites.depth > 1 else "Leave it out.",
        )
    if most <= (lowest := plan.trained.lowest(sites)):
        raise UsageError(
            f"--adapter-drop {most} leaves out nothing: the lowest adapters are in layer {lowest}.",
            hint="Leave it out, or leave out --layers and --fast.",
        )


def _start_weights(run: Run, plan: Resolved) -> dict[str, Tensor] | None:
    """Return the weights that a run starts from, without the head; raise UsageError if they are not of its method."""
    if run.start is None:
        return None
    record = run.start.record
    if not parse(record.method).alike(plan.trained) or plan.trained.stages > 1:
        raise UsageError(
            f"'{record.name}' was trained with {record.method}, and cannot be where {plan.trained} starts.",
            hint="Start from a task of the same method; of those in two stages there is no way on.",
        )
    plan.base.check(run.start)
    return {name: tensor for name, tensor in run.start.weights.items() if not name.startswith("head.")}


def _head_weights(run: Run, plan: Resolved) -> dict[str, Tensor]:
    """Return the head that a run takes from another task; raise UsageError if that is not of its kind."""
    if run.head is None:
        return {}
    record = run.head.record
    if record.kind != plan.kind.name:
        raise UsageError(
            f"'{record.name}' is of kind {record.kind}: its head is not one for kind {plan.kind.name}.",
            hint=f"Take the head of a task of kind {plan.kind.name}.",
        )
    plan.base.check(run.head)
    return {name: tensor for name, tensor in run.head.weights.items() if name.startswith("head.")}


def _refit(run: Run, plan: Resolved, scored: Fit, folder: Path | None, on_event: Listener) -> Fit:
    """Train on for a while, or solve the head again, with the held-out rows too; keep the scores of the first training.

    With few rows a label every one counts. Nothing was chosen on those that were held out.
    """
    from adaptree.training import checkpoint, loop

    source = plan.training[0]
    rows = np.sort(np.concatenate([plan.training[1], plan.validation[1]]))
    note(on_event, f"the score is known: now the task learns from all {len(rows):,} rows.")
    folder = None if folder is None else folder / ALL_ROWS
    resume = run.resume and folder is not None and (folder / checkpoint.FILE).is_file()
    fitted = loop.fit(
        plan.base, plan.trained, plan.kind, (source, rows), (source, rows[:0]), plan.settings,
        folder=folder, resume=resume, start=scored.v, on_event=on_event,
    )  # fmt: skip
    if folder is not None and fitted.finished:
        checkpoint.remove(folder)
    if not fitted.best:  # stopped: the first weights are a task, too
        return replace(scored, finished=False)
    seconds = scored.seconds + fitted.seconds
    return replace(scored, v=fitted.v, seconds=seconds, used={**fitted.used, REFITTED: True})


def _folder(run: Run, loaded: Loaded) -> Path | None:
    """Return where the run keeps its checkpoint, if it has a store or a folder for it."""
    if run.checkpoints is not None:
        return run.checkpoints
    return None if loaded.store is None else checkpoint_folder(loaded.store, run.name, run.joint)


def _can_resume(run: Run, folder: Path | None, on_event: Listener) -> bool:
    """Return whether a run that is to be resumed has a checkpoint; send a note if it has left nothing at all."""
    from adaptree.training import checkpoint

    if not run.resume or folder is None:
        return False
    saved = (folder / checkpoint.FILE).is_file()
    if not saved and not (folder / checkpoint.SEARCH).is_file():  # it may have ended in a trial
        others = [other.name.replace(".", "/") for other in folder.parent.iterdir() if checkpoint.kept(other)]
        text = f"nothing was saved of a run '{run.name}' to resume: it starts from the beginning. "
        note(on_event, (text + near(run.name, others)).rstrip())
    return saved


@dataclass(frozen=True)
class Halves:
    """The two parts of a plan's training rows that the trials of a search train and are scored on."""

    plan: Resolved
    first: Array
    held: Array

    @classmethod
    def of(cls, plan: Resolved, loaded: Loaded) -> Halves:
        """Return those of a plan, for the seed of its settings."""
        return cls(plan, *split_again(loaded.tasks[0].dataset, plan.training[1], seed=plan.settings.seed))

    def identity(self) -> tuple[Any, ...]:
        """Return what must be the same for the trials of two searches to have the same results."""
        plan = self.plan
        rows = self.first.tobytes(), self.held.tobytes()
        return plan.training[0].digest, *rows, plan.base.fingerprint, repr(plan.trained)

    def run(self, method: Method, settings: Settings, on_event: Listener) -> Fit:
        """Train with a method and settings that a search tries."""
        from adaptree.training import loop

        plan, source = self.plan, self.plan.training[0]
        cover = (plan.training, plan.validation)  # one activation cache for the search and for what follows it
        trained, training, validation = replace(plan, method=method).trained, (source, self.first), (source, self.held)
        return loop.fit(plan.base, trained, plan.kind, training, validation, settings, cover=cover, on_event=on_event)


def _search(
    run: Run,
    loaded: Loaded,
    halves: Halves,
    folder: Path | None,
    on_event: Listener,
    jobs: int,
    cluster: str | None,
) -> tuple[Resolved, list[Trial]]:
    """Return the plan with the best method and settings of a search on two parts of the training rows."""
    from adaptree.training.search import search
    from adaptree.training.trials import elsewhere

    plan = halves.plan
    with elsewhere(run, loaded, halves, jobs, cluster, on_event) as run_all:
        method, settings, trials = search(
            run.search or 0, plan.method, plan.settings, plan.base.width, halves.run, run_all=run_all,
            identity=halves.identity(), device=plan.base.device, folder=folder, resume=run.resume, on_event=on_event,
        )  # fmt: skip
    return replace(plan, method=method, settings=settings), trials


def package(run: Run, loaded: Loaded, fitted: Fitted, on_event: Listener = silent) -> list[Task]:
    """Make a task of the weights for each of the run's datasets, and keep them in the store if there is one."""
    from adaptree.training import checkpoint
    from adaptree.training.multitask import MultiTaskKind, fit_of
    from adaptree.training.package import make_task

    plan, leads = fitted.plan, distributed.rank() == 0  # of several processes, one writes
    truncated = [sum(each.truncated for each in encoded) for encoded in plan.encoded]
    if any(truncated):
        longest = f"{plan.settings.max_length} tokens"
        note(on_event, f"{sum(truncated):,} texts are longer than {longest} and were truncated (--max-length).")
    more: dict[str, Any] = {"search": [asdict(trial) for trial in fitted.trials]} if fitted.trials else {}
    if run.stream:
        more[STREAM] = run.stream
    if run.descriptions is not None:
        more["descriptions"] = descriptions_of(run, loaded, plan.settings)
    if run.joint:
        seen = {task.dataset.digest: task.name for task in loaded.tasks}
        more[JOINT] = {"tasks": [task.name for task in loaded.tasks], "temperature": run.temperature}
        more[SAW] = {**plan.parents.extra.get(SAW, {}), **seen}
    tasks = []
    warnings = fitted.fit.warnings()
    for i, data in enumerate(loaded.tasks):
        own, mine = fitted.fit, plan
        if isinstance(plan.kind, MultiTaskKind):
            own = fit_of(fitted.fit, i)
            mine = replace(plan, settings=replace(plan.settings, metric=plan.kind.judged[i]))
        extra = own.kind.extra() | plan.parents.extra | more
        wanted = run.baselines and leads
        task = make_task(
            data, mine, own, truncated=truncated[i], extra=extra, with_baselines=wanted, warnings=warnings,
            own_head=run.head is None,
        )  # fmt: skip
        tasks.append(task)
        _note_rescored(task, on_event)
    if loaded.store is not None and leads:
        with shielded():
            tasks = [loaded.store.add(task) for task in tasks]
            remember(loaded.store, plan.base)
            if fitted.fit.finished and (folder := _folder(run, loaded)) is not None:
                checkpoint.remove(folder)
    return tasks


def _note_rescored(task: Task, on_event: Listener) -> None:
    """Send a note if the best epoch's score was not quite the task's own, as with an activation cache in fp16."""
    from adaptree.training.package import RESCORED

    metric = str(task.record.settings["metric"])
    for epoch in task.record.history:
        if metric in (before := epoch.get(RESCORED, {})):
            own = f"epoch {epoch['epoch']} has {metric} {epoch[metric]:.4f} as the task computes it"
            note(on_event, f"{own}, {before[metric]:.4f} as it was computed in training.")


def _start(run: Run, loaded: Loaded, plan: Resolved) -> Event:
    """Return the event that says what is about to be trained."""
    first = loaded.tasks[0].dataset
    about = {"kind": first.kind, "why": first.why, "labels": first.labels, "columns": dict(first.columns)}
    if run.joint:
        files = {task.name: task.dataset.name for task in loaded.tasks}
        about = {"kind": JOINT, "why": "", "labels": (), "columns": files}
    return {
        "event": "start",
        "name": run.name,
        **about,
        "base": plan.base.name,
        "method": str(plan.trained),
        "train": len(plan.training[1]),
        "validation": len(plan.validation[1]),
        "settings": plan.settings.to_dict(),
    }


def _note_joint(run: Run, loaded: Loaded, on_event: Listener) -> None:
    """Send notes with the number of rows that an epoch of a joint run has of each file."""
    from adaptree.training.multitask import rows_per_epoch

    if run.joint:
        sizes = [len(task.parts["train"]) for task in loaded.tasks]
        for task, size, count in zip(loaded.tasks, sizes, rows_per_epoch(sizes, run.temperature), strict=True):
            note(on_event, f"{task.name}: {task.dataset.kind}, {size:,} rows to train on, {count:,} an epoch.")


def _check_data(run: Run, dataset: Dataset, method: Method) -> None:
    """Raise UsageError if the data does not suit the method, the metric or the settings of a run."""
    settings, kind = run.settings, kinds.get(dataset.kind)
    chosen = {name: getattr(settings, name) for name in (*KIND_OPTIONS, "class_weights", "pooling")}
    kinds.check_options(kind, chosen)
    if settings.as_text:
        as_text.check_settings(settings, method, run.joint)
    if settings.windows and not kinds.can_window(dataset):
        raise UsageError("windows are for single texts, and this file has pairs.", hint="Leave out --windows.")
    if method.standalone and (not kind.linear_outside or settings.windows):
        raise UsageError(
            f"{method.name} is for one label or one number a text, read at once.",
            hint="Choose another: --method houlsby",
        )
    if kind.generates and method.name == "head":
        raise UsageError(
            "a task that writes texts has no head to train: the output layer is the base's own.",
            hint="Choose another method: --method lora",
        )
    if method.standalone and run.weight is not None:
        raise UsageError(f"{method.name} weighs every row the same.", hint="Leave out --weight, or --method houlsby.")
    if run.joint and kind.resamples:
        raise UsageError(
            f"'{dataset.name}' is of kind {kind.name}, whose inputs are sampled anew in every step: it has to be "
            "trained alone.",
            hint="Train it by itself, and the others on it: --on NAME",
        )
    if settings.metric is not None:
        kind.check_metric(settings.metric, dataset.labels)


NOT_JOINT = {
    "validation": "a fifth of each file is held out, and one more file cannot be for all of them",
    "test": "one file cannot be for all of the tasks; evaluate each on its own",
    "fast": "it is tuned for one task",
    "search": "its trials are of one task",
}


def _check_joint(run: Run, method: Method) -> None:
    """Raise UsageError for options that only a run of one task can have."""
    for option, why in NOT_JOINT.items():
        if getattr(run, option):
            raise UsageError(f"--{option} does not go with --joint: {why}.", hint=f"Leave out --{option}.")
    if run.settings.class_weights:
        raise UsageError("class weights are for one task at a time.", hint="Leave --class-weights out.")
    if method.standalone:
        raise UsageError(f"{method.name} does not use the base: it has no adapters to share.", hint="--method pfeiffer")


def _name_tasks(run: Run) -> dict[str, Source]:
    """Return the sources of a joint run by their tasks' names, NAME/FILE; raise UsageError if two are the same."""
    name, files = check_name(run.name), run.data
    if "/" in name:
        raise UsageError(
            f"'{name}' has a slash already, and the tasks of a joint training come behind one.",
            hint=f"--name {name.replace('/', '-')}",
        )
    sources = files if isinstance(files, Mapping) else list(files)  # type: ignore[arg-type]
    if len(sources) < 2:
        raise UsageError("joint training is for two files or more.", hint="Leave out --joint for one.")
    if isinstance(sources, Mapping):
        return {check_name(f"{name}/{own}"): source for own, source in sources.items()}
    found: dict[str, Source] = {}
    for source in sources:
        if not isinstance(source, str | Path):
            raise UsageError("rows have no file's name to call a task by.", hint='Give a dict: {"a": rows, "b": rows}.')
        own = f"{name}/{stem(source)}"
        if own in found:
            raise UsageError(
                f"'{found[own]}' and '{source}' would both be the task '{own}'.", hint="Rename one of the files."
            )
        found[own] = source
    return found
