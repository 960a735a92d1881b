"""The local store: a folder per version of a task, and an index that is only a cache.

    <store>/tasks/NAME/VERSION/{task.json, task.safetensors, README.md, *.svg}      NAME may hold one slash
    <store>/tmp/          tasks on their way in or out; a rename moves them whole
    <store>/index.sqlite  the summaries that `list` shows

A version is never changed, and its number is not given again while its task has other versions.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adaptree.errors import AdaptreeError, BadName, StoreError, TaskNotFound, near
from adaptree.store.index import Index
from adaptree.task import (
    FUSES,
    NAME,
    NEEDS,
    ON,
    RECORD,
    TAKEN,
    TENSORS,
    VERSION,
    Record,
    Task,
    cannot_write,
    check_name,
    corrupt,
    parse_reference,
    read,
    read_record,
    sync_folder,
)

DAY = 24 * 60 * 60
_REMOVED, _NEEDED, _MARKS = ".removed", ".needed", ".marks"
"""Files beside a version: its number was given, which tasks are made of it, and what was done with it since."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A line of `adaptree list`; of a damaged task only the name, the version and the problem are known."""

    name: str
    version: int
    versions: int = 1
    kind: str = ""
    method: str = ""
    base: str = ""
    metric: str = ""
    score: float | None = None
    """on the test part, or on validation where there is no test"""
    trained: int = 0
    trained_percent: float = 0.0
    bytes: int = 0
    created: str = ""
    problem: str = ""


# Inside a class that has a `list`, that word is the method.
Names = list[str]
Numbers = list[int]
Summaries = list[Summary]


class Store:
    """Tasks by name: `store["reviews"]` is the newest version, `store["reviews@2"]` that one."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path or os.environ.get("ADAPTREE_STORE") or "~/.adaptree").expanduser()
        self._tasks = self.path / "tasks"
        self._tmp = self.path / "tmp"
        self._index = Index(self.path / "index.sqlite")

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    # reading

    def get(self, reference: str) -> Task:
        """The task, its files verified; the record has the name and the version under which it lies here."""
        name, version = self._resolve(reference)
        task = read(self._tasks / name / str(version), called=f"{name}@{version}")
        record = dataclasses.replace(task.record, name=name, version=version)
        needs = dict(record.extra.get(NEEDS, {}))
        return Task(record, task.tensors, {part: self._needed(part, digest, record) for part, digest in needs.items()})

    __getitem__ = get

    def path_of(self, reference: str) -> Path:
        """The folder of a version."""
        name, version = self._resolve(reference)
        return self._tasks / name / str(version)

    def __contains__(self, reference: object) -> bool:
        try:
            self._resolve(str(reference))
        except (BadName, TaskNotFound):
            return False
        return True

    def names(self) -> Names:
        """The names of all tasks, sorted."""
        return sorted(name for name, _ in self._scan())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return sum(1 for _ in self._scan())

    def list(self) -> Summaries:
        """The newest version of each task, by name; a damaged one is there with its problem."""
        found = dict(self._scan())
        if not found:
            return []
        cached = self._index.rows()
        fresh: dict[str, tuple[str, str]] = {}
        summaries: Summaries = []
        for name, versions in sorted(found.items()):
            stamp = f"{versions[-1]} {_stamp(self._tasks / name / str(versions[-1]))}"
            summary = _unpacked(cached[name][1]) if name in cached and cached[name][0] == stamp else None
            if summary is None:
                summary = self._summary(name, versions[-1])
                if not summary.problem:  # a problem is looked at again each time
                    fresh[name] = (stamp, json.dumps(dataclasses.asdict(summary)))
            summaries.append(dataclasses.replace(summary, versions=len(versions)))
        gone = cached.keys() - found.keys()
        if fresh or gone:
            self._index.update(fresh, gone)
        return summaries

    def history(self, name: str) -> Summaries:
        """Every version of a task, the oldest first."""
        versions = self._versions(name)
        if not versions:
            raise self._not_found(name)
        return [dataclasses.replace(self._summary(name, version), versions=len(versions)) for version in versions]

    # writing

    def add(self, task: Task) -> Task:
        """Keep the task as a new version of its name; the task that is returned knows which.

        The tasks that it is made of are added too, unless they are here.
        """
        name = check_name(task.record.name)
        self._check_room(name)
        task = self._with_parts(task)
        staging = self._tmp / f"add-{uuid.uuid4().hex}"
        try:
            self._sweep()
            version = self._last_number(name) + 1
            while True:
                record = dataclasses.replace(task.record, version=version)
                saved = Task(record, task.tensors).write(staging / str(version))
                self._note_needs(record)
                if self._place(staging, name, version):
                    return Task(saved.record, saved.tensors, task.parts)
                shutil.rmtree(staging)  # another process took this number: the record must say the next
                version = max(version, self._last_number(name)) + 1
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _with_parts(self, task: Task) -> Task:
        """The same task, whose parts are here and are called what they are called here."""
        needs: dict[str, str] = dict(task.record.extra.get(NEEDS, {}))
        if not needs:
            return task
        from adaptree import compose

        names: dict[str, str] = {}
        parts: dict[str, Task] = {}
        for reference, digest in needs.items():
            here = self._same(reference, digest)
            if here is None:
                if reference not in task.parts:
                    raise StoreError(
                        f"'{task.record.name}' is made of '{reference}', which is neither with it nor in the store.",
                        hint=f"Add {reference} first.",
                    )
                here = self.add(task.parts[reference]).record.reference
            names[reference] = here
            parts[here] = self.get(here)
        extra = dict(task.record.extra)
        for key in (ON, FUSES):
            if extra.get(key):
                extra[key] = repr(compose.parse(extra[key]).renamed(names))
        extra[NEEDS] = {names[reference]: digest for reference, digest in needs.items()}
        return Task(dataclasses.replace(task.record, extra=extra), task.tensors, parts)

    def _note_needs(self, record: Record) -> None:
        """Say beside each part that this task is made of it, so that it is not removed unawares."""
        for part in record.extra.get(NEEDS, {}):
            name, version = parse_reference(part)
            with (self._tasks / name / f"{version}{_NEEDED}").open("a") as file:
                file.write(f"{record.reference}\n")

    def _same(self, reference: str, digest: str) -> str | None:
        """What a task of these very tensors is called here, if it is here: that version, or another of its name."""
        name, version = parse_reference(reference)
        versions = self._versions(name)
        for number in sorted(versions, key=lambda number: number != version):
            if read_record(self._tasks / name / str(number), called=f"{name}@{number}").digest == digest:
                return f"{name}@{number}"
        return None

    def _needed(self, reference: str, digest: str, record: Record) -> Task:
        """A task that another one is made of."""
        if reference in self:
            found = self.get(reference)
            if found.record.digest == digest:
                return found
        raise TaskNotFound(
            f"'{record.reference}' is made of '{reference}', which is not in the store any more.",
            hint=f"Put {reference.partition('@')[0]} back, or compose '{record.name}' anew.",
        )

    def needing(self, reference: str) -> Names:
        """The tasks, by version, that are made of this one; of any version of it where none is said."""
        name, version = parse_reference(reference)
        found: set[str] = set()
        for number in [version] if version else self._versions(name):
            try:
                said = (self._tasks / name / f"{number}{_NEEDED}").read_text().split()
            except FileNotFoundError:
                continue
            found |= {other for other in said if self._needs(other, f"{name}@{number}")}
        return sorted(found)

    def _needs(self, other: str, reference: str) -> bool:
        try:
            record = read_record(self.path_of(other), called=other)
        except AdaptreeError:
            return False  # it is gone, or damaged: then it holds nobody back
        return reference in record.extra.get(NEEDS, {}) and record.name != parse_reference(reference)[0]

    def mark(self, reference: str, word: str) -> None:
        """Note a word beside a version, whose own files never change."""
        name, version = self._resolve(reference)
        if word not in self.marks(reference):
            try:
                with (self._tasks / name / f"{version}{_MARKS}").open("a") as file:
                    file.write(f"{word}\n")
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def marks(self, reference: str) -> frozenset[str]:
        """The words that were noted beside a version."""
        name, version = self._resolve(reference)
        try:
            return frozenset((self._tasks / name / f"{version}{_MARKS}").read_text().split())
        except FileNotFoundError:
            return frozenset()

    def remove(self, reference: str, *, force: bool = False) -> int:
        """Remove a task, or one version of it (`reviews@2`); how many versions went.

        One that others are made of stays, unless `force` says that they may break.
        """
        name, version = parse_reference(reference)
        versions = self._versions(name)
        doomed = versions if version is None else [number for number in versions if number == version]
        if not doomed:
            raise self._not_found(name, version)
        if not force and (others := self.needing(reference)):
            raise StoreError(
                f"'{reference}' is part of {', '.join(others)}.",
                hint=f"Remove {'them' if len(others) > 1 else 'it'} first, or --force: then they cannot run any more.",
            )
        folder = self._tasks / name
        staging = self._tmp / f"remove-{uuid.uuid4().hex}"
        try:
            self._sweep()
            staging.mkdir(parents=True)
            if doomed == versions and self._only_versions(folder):
                os.rename(folder, staging / "all")
                sync_folder(folder.parent)
            else:
                for number in doomed:
                    (folder / f"{number}{_REMOVED}").touch()
                    os.rename(folder / str(number), staging / str(number))
                sync_folder(folder)
        except FileNotFoundError:
            raise self._not_found(name, version) from None  # another process removed it first
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return len(doomed)

    # folders

    def _place(self, staging: Path, name: str, version: int) -> bool:
        """Move a written version to its place; False when the number is taken."""
        folder = self._tasks / name
        sync_folder(staging)
        while True:
            folder.parent.mkdir(parents=True, exist_ok=True)
            known = folder.is_dir()
            self._check_room(name)
            try:
                if known:
                    os.rename(staging / str(version), folder / str(version))
                    sync_folder(folder)
                else:  # a first version comes with its name's folder, so that no empty one is ever seen
                    os.rename(staging, folder)
                    sync_folder(folder.parent)
                    sync_folder(folder.parent.parent)
                return True
            except FileNotFoundError:
                if not staging.is_dir():
                    raise
                # another process removed the task: once more
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                if (folder / str(version)).exists():
                    return False
                # another process added the name: once more

    def _check_room(self, name: str) -> None:
        """Refuse 'lang/3' where the folder lang/3 is version 3 of the task 'lang'."""
        folder = self._tasks / name
        if (folder / RECORD).exists():
            parent, _, number = name.partition("/")
            raise StoreError(f"'{name}' cannot be added: it is where version {number} of task '{parent}' lies.",
                             hint="Choose a name with a letter in it.")  # fmt: skip
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"'{name}' cannot be added: {folder} is a file.", hint="Move the file away.")

    def _sweep(self) -> None:
        """Delete what killed processes left on its way more than a day ago."""
        self._tmp.mkdir(parents=True, exist_ok=True)
        for entry in _folders(self._tmp):
            try:
                stale = time.time() - entry.stat().st_mtime > DAY
            except FileNotFoundError:
                continue  # another process was done with it
            if stale:
                shutil.rmtree(entry.path, ignore_errors=True)

    def _scan(self) -> Iterator[tuple[str, Numbers]]:
        """Each task's name and its versions, in ascending order, from the folders' names alone."""
        todo = [entry.name for entry in _folders(self._tasks)]
        while todo:
            name = todo.pop()
            if not NAME.fullmatch(name):
                continue  # a folder that no task lies in, such as a file browser's
            versions: Numbers = []
            for entry in _folders(self._tasks / name):
                if _is_version(entry):
                    versions.append(int(entry.name))
                else:
                    todo.append(f"{name}/{entry.name}")
            if versions:
                yield name, sorted(versions)

    def _versions(self, name: str) -> Numbers:
        return sorted(int(entry.name) for entry in _folders(self._tasks / check_name(name)) if _is_version(entry))

    def _last_number(self, name: str) -> int:
        """The highest number ever given to a version of this task that still has others, or 0."""
        try:
            entries = os.listdir(self._tasks / name)
            removed = [entry.removesuffix(_REMOVED) for entry in entries if entry.endswith(_REMOVED)]
        except (FileNotFoundError, NotADirectoryError):
            return 0
        return max([0, *self._versions(name), *(int(number) for number in removed if VERSION.fullmatch(number))])

    def _only_versions(self, folder: Path) -> bool:
        """Whether a task's folder holds no tasks of the namespace that has its name."""
        return all(_is_version(entry) for entry in _folders(folder))

    def _resolve(self, reference: str) -> tuple[str, int]:
        name, version = parse_reference(reference)
        if version is None:
            versions = self._versions(name)
            if versions:
                return name, versions[-1]
        elif (self._tasks / name / str(version) / RECORD).exists() or version in self._versions(name):
            return name, version
        raise self._not_found(name, version)

    def _not_found(self, name: str, version: int | None = None) -> TaskNotFound:
        versions = self._versions(name)
        if versions and version is not None:
            return TaskNotFound(
                f"no version {version} of task '{name}': there is {', '.join(map(str, versions))}.",
                hint=f"adaptree history {name}",
            )
        hint = f"{near(name, self.names())}   adaptree list".strip()
        return TaskNotFound(f"no task '{name}' in the store.", hint=hint)

    def _summary(self, name: str, version: int) -> Summary:
        """A version's summary from its record, or what is wrong with it."""
        folder = self._tasks / name / str(version)
        called = f"{name}@{version}"
        try:
            record = read_record(folder, called=called)
            size = _size(folder / TENSORS)
            if size != record.file_bytes:
                why = "the file is missing" if size < 0 else f"{size:,} bytes, not {record.file_bytes:,}"
                raise corrupt(called, TENSORS, why)
        except AdaptreeError as error:
            return Summary(name=name, version=version, problem=error.what)
        metric, score = _main_score(record)
        return Summary(
            name=name,
            version=version,
            kind=record.kind,
            method=record.method,
            base=str(record.base.get("name", "")),
            metric=metric,
            score=score,
            trained=record.parameters.get("trained", 0),
            trained_percent=record.trained_percent,
            bytes=record.file_bytes,
            created=record.created,
        )


def _main_score(record: Record) -> tuple[str, float | None]:
    """The metric that the task was trained by, or its kind's, and its value."""
    from adaptree.metrics import METRICS

    scores = record.metrics.get("test") or record.metrics.get("validation") or {}
    usual = METRICS[record.kind][0] if record.kind in METRICS else next(iter(scores), "")
    metric = str(record.settings.get("metric") or usual)
    return metric, scores.get(metric)


def _folders(path: Path) -> list[os.DirEntry[str]]:
    """The folders in a folder; none when it is not there."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}.", hint="Make the folder readable.") from error


def _is_version(entry: os.DirEntry[str]) -> bool:
    """A number is a version, unless it is a task of a namespace ('lang/3'), which holds only versions of its own."""
    if not VERSION.fullmatch(entry.name):
        return False
    return os.path.exists(os.path.join(entry.path, RECORD)) or not _folders(Path(entry.path))


def _stamp(folder: Path) -> str:
    """What changes when a task's files do."""
    parts = []
    for name in (RECORD, TENSORS):
        try:
            stat = os.stat(folder / name)
        except OSError:
            parts.append("-")
        else:
            parts.append(f"{stat.st_mtime_ns}:{stat.st_size}")
    return " ".join(parts)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _unpacked(body: str) -> Summary | None:
    """A cached summary; None when it cannot be read."""
    try:
        return Summary(**json.loads(body))
    except (ValueError, TypeError):
        return None
