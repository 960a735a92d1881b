"""Improve a task on a server: its data is kept, rows are chosen and labelled, and a candidate is trained beside it.

The candidate of `reviews` is the task `reviews-next`, which a job trains on the kept rows and the new labels. The rows
that the version in use was scored on stay held out, so that both have a score on the same rows, before the candidate
takes its place as the next version, or is discarded.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree import kinds
from adaptree.analysis.clean import csv_cell
from adaptree.data.read import rows as read_rows
from adaptree.errors import AdaptreeError, DataError, TaskNotFound, UsageError
from adaptree.serve.jobs.job import CANCELLED, DONE, FAILED, FileNotHere
from adaptree.serve.jobs.settings import run_of
from adaptree.tasks.record import STREAM, Record
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from adaptree.data.form import Form
    from adaptree.models.evaluate import Part
    from adaptree.serve.jobs import DataFile, Job, Jobs
    from adaptree.tasks.store import Store

NEXT = "-next"
SPLIT = "improve_split"
"""The column of a candidate's data that says which rows are held out."""
MARK = ".improve"
"""What the name of a candidate's file has before its ending, by which its job is known."""
LABELLED = ("classify", "multilabel", "regress")
"""Kinds whose rows can be labelled on the page."""
PARTS = ("validation", "test")
"""Files of a job whose rows both versions are scored on."""
LOOKED_AT = 200
"""Jobs of a task among which that of a version is looked for."""
MOST = 2000
"""Rows of an unlabelled file that are looked at, at random if it has more."""


@dataclass(frozen=True)
class Kept:
    """The data that a version was trained on, and the settings."""

    file: DataFile
    settings: Mapping[str, Any]
    more: Mapping[str, DataFile] = field(default_factory=dict)
    """Its validation and test files, if it had any."""

    @property
    def files(self) -> dict[str, DataFile]:
        return {"file": self.file, **self.more}


def kept_data(jobs: Jobs, record: Record, tenant: str) -> Kept | None:
    """Return what a version was trained on, if that was kept."""
    key = record.extra.get(STREAM)
    for name in (record.name, f"{record.name}{NEXT}"):
        for job in jobs.list(tenant=tenant, state=DONE, name=name, limit=LOOKED_AT):
            if job.key == key and job.keep_data:
                with suppress(FileNotHere):
                    parts = {part: id for part, id in job.more_files.items() if part in PARTS}
                    more = {part: jobs.files.get(id, tenant) for part, id in parts.items()}
                    return Kept(jobs.files.get(job.file, tenant), job.settings, more)
    return None


def held_out(kept: Kept, paths: Mapping[str, Path]) -> Part:
    """Return the rows that a version was scored on; `paths` are where its files are."""
    from adaptree.training.pipeline import load

    more = {part: path for part, path in paths.items() if part != "file"}
    return load(run_of(paths["file"], kept.settings, **more)).tasks[0].parts["validation"]


def settings_of(record: Record, kept: Kept | None) -> dict[str, Any]:
    """Return the settings with which a version's data is read and trained on again."""
    columns = record.columns
    label = columns.get("labels") if record.kind == "multilabel" else columns.get("label")
    found = dict(kept.settings) if kept else {"method": record.method, "seed": record.seed}
    read = {"kind": record.kind, "text": columns.get("text"), "text_pair": columns.get("pair"), "label": label}
    return {key: value for key, value in {**found, **read}.items() if value is not None}


# What is computed over the data: in a thread, or in a process of its own


def choose(
    where: str, reference: str, base: Any, pool: Path, labelled: Path | None, rows: int, skip: Sequence[int], seed: int
) -> dict[str, Any]:
    """Return the rows of a file to label next. `where` is the store, `base` the base or its location."""
    from adaptree.analysis.improve import improve
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    bound = open_task(Store(where), reference, base=base)
    same = labelled is not None and labelled == pool  # rows of it that have no label are what is chosen from
    found = improve(bound, pool, rows=rows, labelled=None if same else labelled, skip=skip, most=MOST, seed=seed)
    return found.to_dict()


def doubted(data: Path, base: Any, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of labelled data whose label is probably wrong, the worst first."""
    from adaptree.analysis.clean import clean

    names = ("kind", "text", "text_pair", "label", "encoding")
    found = clean(data, base=base, **{name: settings[name] for name in names if name in settings})
    return [each for each in found.to_dict()["findings"] if each["suggested"] is not None]


def scores(where: str, references: Sequence[str], base: Any, data: Path) -> list[dict[str, Any]]:
    """Return the scores of some versions on a labelled file."""
    from adaptree.models.evaluate import evaluate
    from adaptree.models.opening import open_task
    from adaptree.tasks.store import Store

    return [evaluate(open_task(Store(where), each, base=base, evaluating=True), data) for each in references]


# A candidate's data


def compose(
    record: Record,
    data: Path,
    settings: Mapping[str, Any],
    pool: Path | None,
    labels: Mapping[int, Any],
    corrections: Mapping[int, Any],
    *,
    apart: bool = False,
) -> tuple[bytes, str, dict[str, Any]]:
    """Return the rows of a candidate as a file, its ending, and the settings to train it with.

    `labels` are those of rows of the pool by number, `corrections` those of rows of the data that are to change. Rows
    that the version was scored on stay held out, if the data is what it was trained on; `apart` says that they are in a
    file of their own.
    """
    form = kinds.get(record.kind).form(dict(record.columns), "")
    held, same = (set(), False) if apart else _held_out(record, data, settings)
    rows = []
    for ordinal, (number, row) in enumerate(read_rows(data, **_reading(settings))):
        changed = _as_columns(record, corrections[number]) if number in corrections else {}
        rows.append({**row, **changed, SPLIT: "validation" if ordinal in held else "train"})
    new = _new_rows(record, form, pool, labels, settings)
    rows += [{**row, SPLIT: "train"} for row in new]
    if not new and not corrections:
        raise UsageError("there is no new label.", hint="Label some rows first.")
    options = {key: value for key, value in settings.items() if key not in ("encoding", "no_header", "split")}
    if same:
        options["split"] = SPLIT
    else:
        rows = [{key: value for key, value in row.items() if key != SPLIT} for row in rows]
    return (*_written(rows), options)


def _reading(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("encoding", "no_header") if name in settings}


def _held_out(record: Record, data: Path, settings: Mapping[str, Any]) -> tuple[set[int], bool]:
    """Return the places of the rows that a version was scored on; and whether the data is what it was trained on."""
    from adaptree.training.pipeline import load

    part = load(run_of(data, {**settings, "name": "task"})).tasks[0].parts["validation"]
    same = part.dataset.digest == record.data.get("digest")
    return ({int(i) for i in part.dataset.rows[part.rows]} if same else set()), same


def _new_rows(
    record: Record, form: Form, pool: Path | None, labels: Mapping[int, Any], settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    if not labels:
        return []
    if pool is None:
        raise UsageError("the file with the new texts is not here any more.", hint="Send it again.")
    found = []
    for number, row in read_rows(pool):
        if number in labels:
            given = form.read(row, number, pool.name)
            text = form.text(given)
            parts = [text] if isinstance(text, str) else list(text)
            names = [record.columns["text"], *([record.columns["pair"]] if len(parts) > 1 else [])]
            weight = {settings["weight"]: 1} if "weight" in settings else {}
            found.append({**dict(zip(names, parts, strict=True)), **_as_columns(record, labels[number]), **weight})
    if len(found) != len(labels):
        raise DataError("some of the labelled rows are not in the file.", hint="Send the file that they are from.")
    return found


def _as_columns(record: Record, label: Any) -> dict[str, Any]:
    """Return a label as the columns of the task's data have it; raise UsageError for one that cannot be."""
    columns = record.columns
    if record.kind == "regress":
        if isinstance(label, bool) or not isinstance(label, int | float):
            raise UsageError(f"'{label!s:.40}' is no number.")
        return {columns["label"]: label}
    known = {str(each): each for each in record.labels}
    given = label if isinstance(label, list) else [label]
    for each in given:
        if str(each) not in known:
            raise UsageError(f"the task has no label '{each!s:.40}'.")
    if record.kind == "classify":
        if len(given) != 1:
            raise UsageError("a text has one label here.")
        return {columns["label"]: known[str(given[0])]}
    if columns["separator"] is None:
        return {name: int(name in map(str, given)) for name in columns["labels"].split(",")}
    return {columns["labels"]: columns["separator"].join(map(str, given)) if columns["separator"] else given}


def _written(rows: Sequence[Mapping[str, Any]]) -> tuple[bytes, str]:
    """Return rows as csv, or as JSON Lines where a cell is a list or an object."""
    if any(isinstance(value, list | dict) for row in rows for value in row.values()):
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows).encode(), ".jsonl"
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue().encode(), ".csv"


# A candidate


@dataclass(frozen=True)
class Candidate:
    """The next version of a task, on its way or there."""

    job: Job
    record: Record | None
    """None until its job is done."""

    @property
    def same_rows(self) -> bool:
        """Whether it was scored on the rows that the version in use was scored on."""
        return self.job.settings.get("split") == SPLIT or "validation" in self.job.more_files


def improves(job: Job) -> str:
    """Return the task that a job trains a candidate for; '' for any other job."""
    ours = Path(job.file_name).stem.endswith(MARK) and job.name.endswith(NEXT)
    return job.name.removesuffix(NEXT) if ours else ""


def candidate(store: Store, jobs: Jobs, name: str, tenant: str) -> Candidate | None:
    """Return the newest candidate of a task, if it was neither taken nor discarded."""
    for job in jobs.list(tenant=tenant, name=f"{name}{NEXT}", limit=1):
        if improves(job) != name or job.state == CANCELLED:
            return None
        if not job.task:
            return Candidate(job, None)
        with suppress(TaskNotFound):
            return Candidate(job, store.record(job.task))
    return None


def check_free(store: Store, jobs: Jobs, name: str, tenant: str) -> None:
    """Raise UsageError if a candidate of a task is here already, or another task has its name."""
    found = candidate(store, jobs, name, tenant)
    if found is not None and found.job.state != FAILED:
        raise UsageError("the next version is on its way already.", hint="Take it or discard it first.")
    if store.versions(f"{name}{NEXT}"):
        raise UsageError(f"there is a task '{name}{NEXT}', whose name the next version would have meanwhile.")


def take(store: Store, name: str, found: Candidate) -> str:
    """Make a candidate the next version of its task; return its reference."""
    if found.record is None:
        raise UsageError("the candidate is not trained yet.", hint="Wait until its job is done.")
    task = store.get(found.record.reference)
    kept = store.add(Task(replace(task.record, name=name, version=0), task.tensors))
    with suppress(AdaptreeError):
        store.remove(found.record.reference)
    return kept.record.reference


def discard(store: Store, jobs: Jobs, found: Candidate, tenant: str) -> None:
    """Remove a candidate and its data."""
    if found.record is None:
        if not found.job.ended:
            jobs.cancel(found.job.id)
    else:
        store.remove(found.record.reference)
    with suppress(AdaptreeError):
        jobs.files.delete(found.job.file, tenant)
