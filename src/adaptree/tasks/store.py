"""The local store: a folder per version of a task, and an index that is only a cache.

    <store>/tasks/NAME/VERSION/{task.json, task.safetensors, README.md, *.svg}      NAME may hold one slash
    <store>/tmp/          tasks on their way in or out; a rename moves them whole
    <store>/index.sqlite  the summaries that `list` shows
    <store>/runs/, bases.json   beside the tasks: `places`

A version is never changed, and its number is not given again while its task has other versions, or while others are
made of it.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from adaptree.errors import AdaptreeError, BadName, StoreError, TaskNotFound, near
from adaptree.tasks.folders import folders_in, is_version, only_versions, scan, sweep
from adaptree.tasks.index import Index
from adaptree.tasks.summary import Summary, packed, stamp, summarise, unpacked
from adaptree.tasks.task import (
    FUSES,
    NEEDS,
    ON,
    RECORD,
    TAKEN,
    VERSION,
    Record,
    Task,
    cannot_write,
    check_name,
    parse_reference,
    read,
    read_record,
    sync_folder,
)

_REMOVED, _NEEDED, _MARKS = ".removed", ".needed", ".marks"
"""Files beside a version: its number was given, which tasks are made of it, and what was done with it since."""

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
        return sorted(name for name, _ in scan(self._tasks))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return sum(1 for _ in scan(self._tasks))

    def list(self) -> Summaries:
        """The newest version of each task, by name; a damaged one is there with its problem."""
        found = dict(scan(self._tasks))
        if not found:
            return []
        cached = self._index.rows()
        fresh: dict[str, tuple[str, str]] = {}
        summaries: Summaries = []
        for name, versions in sorted(found.items()):
            now = f"{versions[-1]} {stamp(self._tasks / name / str(versions[-1]))}"
            summary = unpacked(cached[name][1]) if name in cached and cached[name][0] == now else None
            if summary is None:
                summary = self._summary(name, versions[-1])
                if not summary.problem:  # a problem is looked at again each time
                    fresh[name] = (now, packed(summary))
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

        The tasks that it is made of are added too, unless they are here; a name that is taken stays with its task.
        """
        name = check_name(task.record.name)
        self.check_room(name)
        task = self._with_parts(task)
        staging = self._tmp / f"add-{uuid.uuid4().hex}"
        try:
            sweep(self._tmp)
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
            here = self._same(reference, digest, names.values())
            if here is None:
                if reference not in task.parts:
                    raise StoreError(
                        f"'{task.record.name}' is made of '{reference}', which is neither with it nor in the store.",
                        hint=f"Add {reference} first.",
                    )
                here = self.add(self._beside(task.parts[reference], task.record.name, names.values())).record.reference
            names[reference] = here
            parts[here] = self.get(here)
        extra = dict(task.record.extra)
        for key in (ON, FUSES):
            if extra.get(key):
                extra[key] = repr(compose.parse(extra[key]).renamed(names))
        extra[NEEDS] = {names[reference]: digest for reference, digest in needs.items()}
        return Task(dataclasses.replace(task.record, extra=extra), task.tensors, parts)

    def _beside(self, part: Task, whole: str, taken: Collection[str]) -> Task:
        """A part that comes along with a task; where its name is another task's here, that one keeps it."""
        name = part.record.name
        if all(f"{name}@{version}" in taken for version in self._versions(name)):
            return part
        space, slash, last = whole.rpartition("/")
        own = f"{space}{slash}{f'{last}-{name}'.replace('/', '-')[:64]}"
        return Task(dataclasses.replace(part.record, name=own, version=0), part.tensors, part.parts)

    def _note_needs(self, record: Record) -> None:
        """Say beside each part that this task is made of it, so that it is not removed unawares."""
        for part in record.extra.get(NEEDS, {}):
            name, version = parse_reference(part)
            with (self._tasks / name / f"{version}{_NEEDED}").open("a") as file:
                file.write(f"{record.reference}\n")

    def _same(self, reference: str, digest: str, taken: Collection[str] = ()) -> str | None:
        """What a task of these very tensors is called here, if it is here: that version, or another of its name."""
        name, version = parse_reference(reference)
        versions = self._versions(name)
        for number in sorted(versions, key=lambda number: number != version):
            if (here := f"{name}@{number}") not in taken and self._digest(here) == digest:
                return here
        return None

    def _digest(self, reference: str) -> str | None:
        """The digest in a version's record; none of what is gone, or damaged."""
        try:
            return read_record(self.path_of(reference), called=reference).digest
        except AdaptreeError:
            return None

    def _needed(self, reference: str, digest: str, record: Record) -> Task:
        """A task that another one is made of."""
        if here := self._same(reference, digest):  # one that was put back has another number, and the same tensors
            found = self.get(here)
            version = parse_reference(reference)[1] or 0
            return Task(dataclasses.replace(found.record, version=version), found.tensors, found.parts)
        if reference in self:
            self.get(reference)  # a damaged one says so
        raise TaskNotFound(
            f"'{record.reference}' is made of '{reference}', which is not in the store any more.",
            hint=f"Put {reference.partition('@')[0]} back, or compose '{record.name}' anew.",
        )

    def needing(self, reference: str) -> Names:
        """The tasks, by version, that are made of this one; of any version of it where none is said."""
        name, version = parse_reference(reference)
        noted = self._said_to_need(name)
        if not noted:
            return []
        here = self._versions(name)
        asked = here if version is None else [version]
        digests = {self._digest(f"{name}@{number}") for number in asked}
        found: set[str] = set()
        for other in noted:
            if version is None and parse_reference(other)[0] == name:
                continue  # it goes with all of its name
            for part, digest in self._needs(other).items():
                owner, number = parse_reference(part)
                # of one that was removed and put back, those of the same tensors are needed
                if owner == name and (number in asked or (number not in here and digest in digests)):
                    found.add(other)
        return sorted(found)

    def _said_to_need(self, name: str) -> set[str]:
        """Which tasks were noted beside the versions of this one, also beside those that are gone."""
        found: set[str] = set()
        for note in (self._tasks / name).glob(f"*{_NEEDED}"):
            with suppress(FileNotFoundError):  # another process removed the task
                found |= set(note.read_text().split())
        return found

    def _needs(self, reference: str) -> dict[str, str]:
        """The tasks that a version is made of, and their digests."""
        try:
            record = read_record(self.path_of(reference), called=reference)
        except AdaptreeError:
            return {}  # it is gone, or damaged: then it holds nobody back
        return dict(record.extra.get(NEEDS, {}))

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
        others = self.needing(reference)
        if others and not force:
            raise StoreError(
                f"'{reference}' is part of {', '.join(others)}.",
                hint=f"Remove {'them' if len(others) > 1 else 'it'} first, or --force: then they cannot run any more.",
            )
        folder = self._tasks / name
        staging = self._tmp / f"remove-{uuid.uuid4().hex}"
        try:
            sweep(self._tmp)
            staging.mkdir(parents=True)
            if doomed == versions and not others and only_versions(folder):
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
            self.check_room(name)
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

    def check_room(self, name: str) -> None:
        """Refuse 'lang/3' where the folder lang/3 is version 3 of the task 'lang'."""
        folder = self._tasks / name
        if (folder / RECORD).exists():
            parent, _, number = name.partition("/")
            raise StoreError(f"'{name}' cannot be added: it is where version {number} of task '{parent}' lies.",
                             hint="Choose a name with a letter in it.")  # fmt: skip
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"'{name}' cannot be added: {folder} is a file.", hint="Move the file away.")

    def _summary(self, name: str, version: int) -> Summary:
        return summarise(self._tasks / name / str(version), name, version)

    def _versions(self, name: str) -> Numbers:
        return sorted(int(entry.name) for entry in folders_in(self._tasks / check_name(name)) if is_version(entry))

    def _last_number(self, name: str) -> int:
        """The highest number ever given to a version of this task that still has others, or 0."""
        try:
            entries = os.listdir(self._tasks / name)
            removed = [entry.removesuffix(_REMOVED) for entry in entries if entry.endswith(_REMOVED)]
        except (FileNotFoundError, NotADirectoryError):
            return 0
        return max([0, *self._versions(name), *(int(number) for number in removed if VERSION.fullmatch(number))])

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
