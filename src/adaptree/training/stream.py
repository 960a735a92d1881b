"""Train one task after another as their files arrive, each alone: the setting of Houlsby et al. 2019.

A task's record keeps a digest of its files and settings, and the record comes into the store with the task in one
rename. So the store itself says which files are done, and a stream that was killed at any moment goes on where it was.
Only the files that failed are remembered elsewhere:

    <store>/streams/set-aside.jsonl   files that would fail again, by task and digest
    <store>/streams/TASK.lock         held by the process that trains the task
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Event, Listener, note, silent
from adaptree.errors import AdaptreeError, DataError, UsageError
from adaptree.tasks import beside
from adaptree.tasks.files import cannot_write
from adaptree.tasks.folders import scan
from adaptree.tasks.names import check_name
from adaptree.tasks.record import RECORD, TENSORS, read_record
from adaptree.tasks.runs import SET_ASIDE
from adaptree.training.config import COMPUTING, with_size
from adaptree.training.entries import OTHER_PARTS, Entry, Signature, digest, find_entries, signature
from adaptree.training.file_trainer import (
    FAILED,
    STOPPED,
    TRAINED,
    UNCHANGED,
    Trained,
    Work,
    train_file,
    version_of,
)
from adaptree.training.file_trainer import Place as Workplace
from adaptree.training.run import Run
from adaptree.training.work import Call, Executor, Outcome, executor_for
from adaptree.training.work.interrupt import ctrl_c, pressed_twice
from adaptree.training.work.shared_store import known, streams_folder

if TYPE_CHECKING:
    from adaptree.tasks.record import Record
    from adaptree.tasks.store import Store

WAITING, TRAINING = "waiting", "training"
LOOK = 1.0
"""Seconds from one look at the folder to the next."""
NOT_COMMON = ("name", "store", "start", "resume", "joint", "temperature", "stream", "checkpoints", *OTHER_PARTS)
"""Options of `train` that are not for all files of a stream."""
Place = tuple[Path, str]
"""A file and its task."""


@dataclass(frozen=True, kw_only=True)
class FileRow:
    """A file of a stream: what became of it."""

    file: str
    task: str
    state: str = WAITING
    """waiting, training, trained, unchanged, failed or stopped"""
    version: int | None = None
    kind: str = ""
    rows: int | None = None
    metric: str = ""
    score: float | None = None
    """on its test part, or on validation where there is none"""
    trained: int | None = None
    trained_percent: float | None = None
    bytes: int | None = None
    seconds: float | None = None
    why: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Size:
    """The tasks of a stream that share a base, and how large they are together."""

    base: str
    tasks: int
    base_parameters: int
    trained: int
    bytes: int

    @property
    def times(self) -> float:
        """The base and all tasks, in parts of the base; one full model a task would be as many as there are tasks."""
        return 1 + self.trained / self.base_parameters


@dataclass(frozen=True)
class StreamReport:
    """What a stream has done: a row for each file, and what it means for all tasks."""

    rows: list[FileRow]
    sizes: list[Size] = field(default_factory=list)
    """By base."""
    stopped: bool = False
    """Whether Ctrl-C ended it before all files were done."""
    verified: int = 0
    """How many stored versions were found to be bit for bit what they were; 0 if nothing was trained."""
    changed: list[str] = field(default_factory=list)
    """The references of those that were not."""
    base_is_intact: bool = True
    """Whether the base's weights had the same fingerprint after each training."""

    @property
    def failed(self) -> list[FileRow]:
        return [row for row in self.rows if row.state == FAILED]


def stream(
    source: str | Path,
    *,
    store: Store | str | Path | None = None,
    watch: bool = False,
    jobs: int = 1,
    cluster: str | None = None,
    namespace: str | None = None,
    retry: bool = False,
    on_event: Listener = silent,
    **options: Any,
) -> StreamReport:
    """Train a task on each file of a folder, or of a list of files, one after another and each alone.

    Files that the store has tasks of are not trained on again; one whose content or settings changed becomes the next
    version. With `watch` it goes on with files that arrive, until Ctrl-C. `jobs` processes work at a time, or the
    machines of a `cluster` ("ray", or its address), which must all reach the store. Tasks are called NAMESPACE/FILE
    where there is a `namespace`. With `retry`, files that failed are tried again though they have not changed.
    `options` are those of `train`, in common; a toml beside a file has its own.
    """
    from adaptree.models.embedded import locate
    from adaptree.tasks.store import Store

    where = Store(store) if store is None or isinstance(store, str | Path) else store
    folder = Path(source)
    _check(folder, where, jobs, namespace, options)
    base = options.get("base", "minilm")
    if isinstance(base, str | Path):  # one that is not there would fail every file
        found = locate(base, allow_pickle=bool(options.get("allow_pickle")))
        if found == Path(base).expanduser():
            options["base"] = str(found.resolve())  # the same base, wherever the command is typed
    else:
        options["base"] = base.location
    try:
        streams_folder(where).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(where.path, error) from error
    running = _Stream(folder, where, namespace, options, on_event, watch=watch, retry=retry)
    with contextlib.closing(executor_for(cluster, jobs, running.hear)) as executor, known(where, executor) as mark:
        loaded = base if executor.here and not isinstance(base, str | Path) else None
        running.place = Workplace(where if executor.here else where.location, jobs, mark, loaded)
        return running.run(executor, jobs)


def _check(source: Path, store: Store, jobs: int, namespace: str | None, options: Mapping[str, Any]) -> None:
    """Raise UsageError for what cannot work, before anything is read."""
    if jobs < 1:
        raise UsageError(f"jobs must be at least 1, not {jobs}.", hint="--jobs 2")
    if namespace is not None:
        check_name(f"{namespace}/x")
    here, there = source.resolve(), store.path.resolve()
    if here == there or there in here.parents:
        raise UsageError(f"'{source}' is the store itself.", hint="Name the folder of the data files.")
    if wrong := [name for name in NOT_COMMON if name in options]:
        raise UsageError(
            f"'{wrong[0]}' is not for all files of a stream.", hint="It may stand in the toml beside a file."
        )
    Run.of(source, **options)


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise the error for a method or kind that there is not: it would fail every file; it is checked before training.

    Looking them up imports torch, which a stream that has nothing to train does without.
    """
    from adaptree import kinds
    from adaptree.methods import parse

    method = options.get("method", "")
    if method and not str(method).strip().startswith("fuse("):
        parse(method)
    if kind := options.get("kind"):
        kinds.get(kind)


class _Stream:
    """A stream under way: its rows, and what the last look at its folder saw."""

    def __init__(
        self, source: Path, store: Store, namespace: str | None, options: dict[str, Any], on_event: Listener, *,
        watch: bool, retry: bool,
    ) -> None:  # fmt: skip
        self.source, self.store, self.namespace, self.options = source, store, namespace, options
        self.on_event, self.watch = on_event, watch
        self.place = Workplace(store)
        self.rows: dict[Place, FileRow] = {}
        self.under_way: dict[str, tuple[Place, Work]] = {}
        """By task."""
        self.set_aside = {} if retry else _read_set_aside(store)
        self.kept: dict[str, str] | None = None
        """The digest of each stored version's record, by reference, as it was when first seen; None before training."""
        self.records: dict[str, Record] = {}
        """Of the tasks of this stream, without what is long in them."""
        self.base_is_intact = True
        self.sizes: dict[Place, int] = {}
        self._seen: dict[Place, Any] = {}
        self._taken: dict[Place, Any] = {}
        self._begun: dict[str, float] = {}
        self._looked = 0.0
        self._spent, self._spent_on = 0.0, 0
        self._complaint = ""

    def run(self, executor: Executor, jobs: int) -> StreamReport:
        """Look for files and have them trained on, until there are no more, or with `watch` until Ctrl-C."""
        self.jobs = jobs
        with ctrl_c() as pressed:
            self._look(executor, first=True)
            while True:
                if pressed():
                    executor.stop()
                for outcome in executor.outcomes(LOOK):
                    self._end(outcome)
                if pressed_twice():
                    raise KeyboardInterrupt
                if not self.under_way and (pressed() or not self.watch):
                    break
                if self.watch and not pressed():
                    self._look_again(executor, pressed)
            stopped = any(row.state == STOPPED for row in self.rows.values())
            verified, changed = self._verify()
            return StreamReport(
                list(self.rows.values()), list(self._sizes()), stopped, verified, changed, self.base_is_intact
            )

    # files

    def _look_again(self, executor: Executor, pressed: Callable[[], bool]) -> None:
        """Look at the folder if the last look is long enough ago; wait for that only if there is nothing else to do."""
        while not self.under_way and time.monotonic() < self._looked + LOOK and not pressed():
            time.sleep(LOOK / 20)
        if time.monotonic() >= self._looked + LOOK:
            self._look(executor)

    def _look(self, executor: Executor, first: bool = False) -> None:
        """Take the files that are new or changed; with `watch` only those that the last look saw just as they are."""
        self._looked = time.monotonic()
        try:
            entries, unused = find_entries(self.source, self.namespace)
        except (AdaptreeError, OSError) as error:
            if first:
                raise
            if str(error) != self._complaint:
                note(self.on_event, str(error), warning=True)
            self._complaint = str(error)
            return
        self._complaint = ""
        if first:
            self._say_what_is_there(entries, unused)
        before = len(self.under_way)
        for entry in entries:
            place = entry.path, entry.task
            if entry.task in self.under_way:
                continue
            now = signature(entry.paths), entry.options, entry.problem
            settled = not self.watch or self._seen.get(place) == now
            self._seen[place] = now
            if settled and self._taken.get(place) != now:
                self._taken[place] = now
                self._take(entry, now[0], executor)
        if len(self.under_way) > before:
            waiting = sum(self.sizes[place] for place, _ in self.under_way.values())
            self.on_event({"event": "found", "files": len(self.rows), "train": len(self.under_way), "bytes": waiting})

    def _say_what_is_there(self, entries: list[Entry], unused: list[str]) -> None:
        if unused:
            more = f", and {len(unused) - 8} more" if len(unused) > 8 else ""
            note(self.on_event, f"not data, and not used: {', '.join(unused[:8])}{more}.")
        if entries and self.source.is_file() and not any(entry.path.exists() for entry in entries):
            raise DataError(
                f"none of the {len(entries)} files that '{self.source}' names is there; the first is "
                f"'{entries[0].path}'.",
                hint="A list names a file in each line, as seen from the list.",
            )
        if not entries and not self.watch:
            raise DataError(
                f"there is no data file in '{self.source}'.", hint="It needs a csv, jsonl, … for each task."
            )
        if not entries:
            note(self.on_event, f"there is no data file in '{self.source}' yet.")

    def _take(self, entry: Entry, seen: Signature, executor: Executor) -> None:
        """Find out what is to be done with a file, and have it done."""
        place = entry.path, entry.task
        row = FileRow(file=entry.path.name, task=entry.task)
        self.sizes[place] = sum(size for _, size, _ in seen)
        try:
            if entry.problem:
                raise DataError(entry.problem)
            work = self._work(entry, seen)
        except AdaptreeError as error:
            self._show(place, replace(row, state=FAILED, why=str(error)))
        except OSError as error:
            self._show(place, replace(row, state=FAILED, why=f"it cannot be read: {error.strerror or error}."))
        else:
            if version := version_of(self.store, work.task, work.key):
                self._show(place, self._filled(row, UNCHANGED, version))
                self._note_older(work.task, version)
            elif why := self.set_aside.get((work.task, work.key)):
                self._show(place, replace(row, state=FAILED, why=f"{why}  (Set aside until it changes, or --retry.)"))
            else:
                if self.kept is None:
                    _check_names(self.options)
                    self.kept = dict(_records_of(self.store))
                self.under_way[work.task] = place, work
                self._show(place, row)
                executor.submit(self._call(work, executor))

    def _call(self, work: Work, executor: Executor) -> Call:
        """Return the call that trains on a file; other machines get copies of the file and its parts."""
        cores = int(work.options.get("threads") or 1)
        if executor.sends_files:
            parts = {part: Path(work.options[part]) for part in OTHER_PARTS if part in work.options}
            options = {**work.options, **parts, "threads": cores}
            work = replace(work, options=options, content=digest(work.data))
        return Call(work.task, train_file, (self.place, work), cores)

    def _work(self, entry: Entry, seen: Signature) -> Work:
        """Return what is to be done for an entry, with the digest of its files and settings."""
        own = dict(entry.options)
        size, layers = own.pop("size", None), own.pop("layers", None)
        options = with_size({**self.options, **own}, size, layers)
        run = Run.of(str(entry.path), **options)
        asked = {
            f.name: str(value) if f.name in ("base", "method", "on") else value
            for spec in (run, run.settings)
            for f in fields(spec)
            if f.name not in ("data", "settings", "store", *COMPUTING) and (value := getattr(spec, f.name)) != f.default
        }
        asked |= {part: digest(Path(options[part])) for part in OTHER_PARTS if part in options}
        key = hashlib.sha256(json.dumps([digest(entry.path), asked], sort_keys=True).encode()).hexdigest()
        return Work(entry.task, entry.path, options, key, tuple(entry.paths), seen)

    def _note_older(self, task: str, version: int) -> None:
        """Say so if a file has a task, but not as its newest version: it has been as it was before."""
        if (newest := self.store.versions(task)[-1]) != version:
            note(
                self.on_event,
                f"{task}@{version} was trained on this very file, but {task}@{newest} is newer.  "
                f"adaptree rollback {task}@{version}",
                warning=True,
            )

    # what becomes of them

    def hear(self, task: str, event: Event) -> None:
        """Show how a run goes on."""
        if task not in self.under_way:
            return
        place, _ = self.under_way[task]
        row = self.rows[place]
        if event["event"] == "start":
            self._begun.setdefault(task, time.monotonic())
            rows = event["train"] + event["validation"]
            self._show(place, replace(row, state=TRAINING, kind=event["kind"], rows=rows))
        elif event["event"] == "epoch":
            score = event[event["metric"]]
            row = replace(row, metric=event["metric"], score=score, seconds=event["seconds"])
            self._show(place, row, progress=f"epoch {event['epoch']}/{event['epochs']}")
        elif event["event"] == "estimate":
            self._show(place, row, estimate=event["seconds"])
        else:
            note(self.on_event, f"{row.file}: {event['text']}", warning=True)

    def _end(self, outcome: Outcome) -> None:
        """Show how a piece of work has ended, and remember it if that was badly."""
        place, work = self.under_way.pop(outcome.key)
        row = FileRow(file=place[0].name, task=work.task)
        began = self._begun.pop(work.task, None)
        if outcome.stopped or outcome.error:
            ended = Trained(STOPPED if outcome.stopped else FAILED, why=outcome.error)
        else:
            ended = outcome.value
        self.base_is_intact &= ended.base_is_intact
        if ended.state in (TRAINED, UNCHANGED):
            if began is not None:
                self._spent += time.monotonic() - began
                self._spent_on += self.sizes[place]
            row = self._filled(row, ended.state, ended.version)
        else:
            row = replace(row, state=ended.state, why=ended.why)
            if ended.lasting:
                self.set_aside[work.task, work.key] = ended.why
                _write_set_aside(self.store, work, ended.why)
        self._show(place, row, trace=outcome.trace or ended.trace)

    def _filled(self, row: FileRow, state: str, version: int) -> FileRow:
        """Return a file's row with what the record of its task says."""
        row, reference = replace(row, state=state, version=version), f"{row.task}@{version}"
        try:
            folder = self.store.path_of(reference)
            record = read_record(folder, called=reference)
            if self.kept is not None:
                self.kept.setdefault(reference, _sha256(folder / RECORD))
        except (AdaptreeError, OSError):  # somebody has removed it already
            return row
        self.records[row.task] = replace(record, history=[], examples=[], probe={}, extra={})
        metric = str(record.settings.get("metric") or "")
        scores = record.metrics.get("test") or record.metrics.get("validation") or {}
        return replace(
            row, kind=record.kind, rows=record.data.get("rows"), metric=metric, score=scores.get(metric),
            trained=record.parameters.get("trained"), trained_percent=record.trained_percent, bytes=record.file_bytes,
            seconds=record.seconds,
        )  # fmt: skip

    def _show(self, place: Place, row: FileRow, **more: Any) -> None:
        self.rows[place] = row
        done = sum(row.state not in (WAITING, TRAINING) for row in self.rows.values())
        self.on_event(
            {"event": "file", **asdict(row), "done": done, "files": len(self.rows), "left": self._left(), **more}
        )

    def _left(self) -> float | None:
        """Return the seconds until all files are done, by the bytes that were trained on so far; None before that."""
        if not self._spent_on:
            return None
        waiting = sum(self.sizes[place] for place, _ in self.under_way.values())
        return self._spent / self._spent_on * waiting / self.jobs

    # what was there before

    def _verify(self) -> tuple[int, list[str]]:
        """Return how many stored versions are bit for bit what they were, and the references of those that are not.

        A version that somebody removed meanwhile is neither.
        """
        intact, changed = 0, []
        for reference, before in (self.kept or {}).items():
            name, _, version = reference.partition("@")
            folder = self.store.tasks / name / version
            if not folder.is_dir():
                continue
            try:
                record = read_record(folder, called=reference)
                same = _sha256(folder / RECORD) == before and _sha256(folder / TENSORS) == record.digest
            except (AdaptreeError, OSError):
                same = False
            if same:
                intact += 1
            else:
                changed.append(reference)
        return intact, changed

    def _sizes(self) -> Iterator[Size]:
        """Yield how large the tasks on each base are together."""
        for fingerprint in dict.fromkeys(record.base.get("fingerprint") for record in self.records.values()):
            records = [each for each in self.records.values() if each.base.get("fingerprint") == fingerprint]
            yield Size(
                base=str(records[0].base.get("name", "")),
                tasks=len(records),
                base_parameters=records[0].parameters["base"],
                trained=sum(record.parameters["trained"] for record in records),
                bytes=sum(record.file_bytes for record in records),
            )


def _records_of(store: Store) -> Iterator[tuple[str, str]]:
    """Yield the reference and the digest of the record of every version that is on this machine."""
    for name, versions in scan(store.tasks):
        for version in versions:
            with contextlib.suppress(OSError):  # removed meanwhile
                yield f"{name}@{version}", _sha256(store.tasks / name / str(version) / RECORD)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_set_aside(store: Store) -> dict[tuple[str, str], str]:
    """Return why files failed, by task and digest; a line that was cut off by a crash is left out."""
    found: dict[tuple[str, str], str] = {}
    with contextlib.suppress(OSError):
        for line in beside.lines((streams_folder(store) / SET_ASIDE).read_text(errors="replace")):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                each = json.loads(line)
                found[each["task"], each["key"]] = str(each["why"])
    return found


def _write_set_aside(store: Store, work: Work, why: str) -> None:
    """Remember that a file failed; where that cannot be written, it is only tried again."""
    line = json.dumps({"task": work.task, "key": work.key, "why": why, "file": str(work.data)})
    with contextlib.suppress(OSError), (streams_folder(store) / SET_ASIDE).open("a") as file:
        file.write(f"{beside.seal(line)}\n")
        file.flush()
        os.fsync(file.fileno())
