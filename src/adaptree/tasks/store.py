"""The local store: a folder per version of a task, and an index that is only a cache.

    <store>/tasks/NAME/VERSION/{task.json, task.safetensors, README.md, *.svg}      NAME may hold one slash
    <store>/tasks/NAME/VERSION.{removed, needed, marks}   the number is used up; tasks that need it; words noted later
    <store>/tmp/          tasks on their way in or out; a rename moves them whole
    <store>/index.sqlite  the summaries that `list` shows
    <store>/runs/, bases.json   see `adaptree.tasks.runs`

A version is never changed, and its number is not used again while its task has other versions, or while others need it.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from adaptree.errors import BadName, StoreError, TaskNotFound, near
from adaptree.tasks import parts
from adaptree.tasks.files import TAKEN, cannot_write, sync
from adaptree.tasks.folders import delete_stale, folders_in, has_only_versions, is_version, scan
from adaptree.tasks.index import Index
from adaptree.tasks.names import VERSION, check_name, parse_reference
from adaptree.tasks.record import RECORD
from adaptree.tasks.summary import Summary, from_cache, stamp, summarise, to_cache
from adaptree.tasks.task import Task, read_task

REMOVED, MARKS = ".removed", ".marks"

# Inside a class that has a method `list`, that word is the method.
Names = list[str]
Numbers = list[int]
Summaries = list[Summary]


class Store:
    """Tasks by name: `store["reviews"]` is the newest version, `store["reviews@2"]` that one."""

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path or os.environ.get("ADAPTREE_STORE") or "~/.adaptree").expanduser()
        self.tasks = self.path / "tasks"
        self._tmp = self.path / "tmp"
        self._index = Index(self.path / "index.sqlite")

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r})"

    # reading

    def get(self, reference: str, *, above: tuple[str, ...] = ()) -> Task:
        """Read a task and its parts, and verify their files; its record has the name and version that it has here.

        `above` are the references of the tasks that it is read for as a part.
        """
        name, version = self._resolve(reference)
        task = read_task(self.tasks / name / str(version), called=f"{name}@{version}")
        record = dataclasses.replace(task.record, name=name, version=version)
        return Task(record, task.tensors, parts.load_parts(self, record, above))

    __getitem__ = get

    def path_of(self, reference: str) -> Path:
        """Return the folder of a version."""
        name, version = self._resolve(reference)
        return self.tasks / name / str(version)

    def __contains__(self, reference: object) -> bool:
        try:
            self._resolve(str(reference))
        except (BadName, TaskNotFound):
            return False
        return True

    def names(self) -> Names:
        """Return the names of all tasks, sorted."""
        return sorted(name for name, _ in scan(self.tasks))

    def versions(self, name: str) -> Numbers:
        """Return the numbers of a task's versions, ascending; none if there is no such task."""
        return sorted(int(entry.name) for entry in folders_in(self.tasks / check_name(name)) if is_version(entry))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return sum(1 for _ in scan(self.tasks))

    def list(self) -> Summaries:
        """Return the newest version of each task, by name; the summary of a damaged one says what is wrong."""
        found = dict(scan(self.tasks))
        if not found:
            return []
        cached = self._index.rows()
        fresh: dict[str, tuple[str, str]] = {}
        summaries: Summaries = []
        for name, versions in sorted(found.items()):
            now = f"{versions[-1]} {stamp(self.tasks / name / str(versions[-1]))}"
            summary = from_cache(cached[name][1]) if name in cached and cached[name][0] == now else None
            if summary is None:
                summary = self._summary(name, versions[-1])
                if not summary.problem:  # a problem is looked at again each time
                    fresh[name] = (now, to_cache(summary))
            summaries.append(dataclasses.replace(summary, versions=len(versions)))
        gone = cached.keys() - found.keys()
        if fresh or gone:
            self._index.update(fresh, gone)
        return summaries

    def history(self, name: str) -> Summaries:
        """Return every version of a task, the oldest first."""
        versions = self.versions(name)
        if not versions:
            raise self._not_found(name)
        return [dataclasses.replace(self._summary(name, version), versions=len(versions)) for version in versions]

    def dependents(self, reference: str) -> Names:
        """Return the references of the tasks that need this version, or any version of a name given without one."""
        return parts.dependents(self, reference)

    # writing

    def add(self, task: Task) -> Task:
        """Keep the task as a new version of its name; return it with that version.

        The tasks that it needs are added too, unless they are here; a name that is taken stays with its task.
        """
        name = check_name(task.record.name)
        self.check_room(name)
        task = parts.add_parts(self, task)
        staging = self._tmp / f"add-{uuid.uuid4().hex}"
        try:
            delete_stale(self._tmp)
            version = self._last_number(name) + 1
            while True:
                record = dataclasses.replace(task.record, version=version)
                saved = Task(record, task.tensors).write(staging / str(version))
                parts.note_needs(self, record)
                if self._move_in(staging, name, version):
                    return Task(saved.record, saved.tensors, task.parts)
                shutil.rmtree(staging)  # another process took this number: the record must say the next
                version = max(version, self._last_number(name)) + 1
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def mark(self, reference: str, word: str) -> None:
        """Note a word beside a version, whose own files never change."""
        name, version = self._resolve(reference)
        if word not in self.marks(reference):
            try:
                with (self.tasks / name / f"{version}{MARKS}").open("a") as file:
                    file.write(f"{word}\n")
            except OSError as error:
                raise cannot_write(self.path, error) from error

    def marks(self, reference: str) -> frozenset[str]:
        """Return the words that were noted beside a version."""
        name, version = self._resolve(reference)
        try:
            return frozenset((self.tasks / name / f"{version}{MARKS}").read_text().split())
        except FileNotFoundError:
            return frozenset()

    def remove(self, reference: str, *, force: bool = False) -> int:
        """Remove a task, or one version of it (`reviews@2`); return how many versions were removed.

        A task that others need is kept, unless `force` says that they may break.
        """
        name, version = parse_reference(reference)
        versions = self.versions(name)
        doomed = versions if version is None else [number for number in versions if number == version]
        if not doomed:
            raise self._not_found(name, version)
        others = self.dependents(reference)
        if others and not force:
            raise StoreError(
                f"'{reference}' is part of {', '.join(others)}.",
                hint=f"Remove {'them' if len(others) > 1 else 'it'} first, or --force: then they cannot run any more.",
            )
        folder = self.tasks / name
        staging = self._tmp / f"remove-{uuid.uuid4().hex}"
        try:
            delete_stale(self._tmp)
            staging.mkdir(parents=True)
            if doomed == versions and not others and has_only_versions(folder):
                os.rename(folder, staging / "all")
                sync(folder.parent)
            else:
                for number in doomed:
                    (folder / f"{number}{REMOVED}").touch()
                    os.rename(folder / str(number), staging / str(number))
                sync(folder)
        except FileNotFoundError:
            raise self._not_found(name, version) from None  # another process removed it first
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return len(doomed)

    def check_room(self, name: str) -> None:
        """Raise StoreError if a task cannot have this name: 'lang/3' where that folder is version 3 of 'lang'."""
        folder = self.tasks / name
        if (folder / RECORD).exists():
            parent, _, number = name.partition("/")
            raise StoreError(f"'{name}' cannot be added: it is where version {number} of task '{parent}' lies.",
                             hint="Choose a name with a letter in it.")  # fmt: skip
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"'{name}' cannot be added: {folder} is a file.", hint="Move the file away.")

    # folders

    def _move_in(self, staging: Path, name: str, version: int) -> bool:
        """Move a written version to its place; return False if another process took the number."""
        folder = self.tasks / name
        sync(staging)
        while True:
            folder.parent.mkdir(parents=True, exist_ok=True)
            known = folder.is_dir()
            self.check_room(name)
            try:
                if known:
                    os.rename(staging / str(version), folder / str(version))
                    sync(folder)
                else:  # a first version comes with its name's folder, so that no empty one is ever seen
                    os.rename(staging, folder)
                    sync(folder.parent)
                    sync(folder.parent.parent)
                return True
            except FileNotFoundError:
                if not staging.is_dir():
                    raise
                # another process removed the task: try again
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                if (folder / str(version)).exists():
                    return False
                # another process added the name: try again

    def _summary(self, name: str, version: int) -> Summary:
        return summarise(self.tasks / name / str(version), name, version)

    def _last_number(self, name: str) -> int:
        """Return the highest number ever used for a version of this task, or 0."""
        try:
            entries = os.listdir(self.tasks / name)
            removed = [entry.removesuffix(REMOVED) for entry in entries if entry.endswith(REMOVED)]
        except (FileNotFoundError, NotADirectoryError):
            return 0
        return max([0, *self.versions(name), *(int(number) for number in removed if VERSION.fullmatch(number))])

    def _resolve(self, reference: str) -> tuple[str, int]:
        """Return the name and version of a task that exists; raise TaskNotFound, with near names, if none does."""
        name, version = parse_reference(reference)
        if version is None:
            versions = self.versions(name)
            if versions:
                return name, versions[-1]
        elif (self.tasks / name / str(version) / RECORD).exists() or version in self.versions(name):
            return name, version
        raise self._not_found(name, version)

    def _not_found(self, name: str, version: int | None = None) -> TaskNotFound:
        versions = self.versions(name)
        if versions and version is not None:
            return TaskNotFound(
                f"no version {version} of task '{name}': there is {', '.join(map(str, versions))}.",
                hint=f"adaptree history {name}",
            )
        hint = f"{near(name, self.names())}   adaptree list".strip()
        return TaskNotFound(f"no task '{name}' in the store.", hint=hint)
