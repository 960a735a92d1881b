"""The store: a folder per version of a task, and an index that is only a cache.

    <store>/tasks/NAME/VERSION/{task.json, task.safetensors, README.md, *.svg}      NAME may hold one slash
    <store>/tasks/NAME/VERSION.{removed, needed, marks, notes}, TAG.tag   small files: see `adaptree.tasks.beside`
    <store>/tmp/          tasks on their way in or out; a rename moves them whole
    <store>/runs/, bases.json   see `adaptree.tasks.runs`
    <store>/jobs/         training jobs of a server, see `adaptree.serve.jobs`
    <store>/quotas.sqlite what API keys have used of a day's quota, see `adaptree.serve.counts`

The index is in the user's cache folder or on a server, see `adaptree.tasks.index`.

A version is never changed, and its number is not used again while its task has other versions, or while others need it.
A store behind a URL is an `adaptree.tasks.remote.RemoteStore`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

from adaptree.errors import BadName, StoreError, TaskCorrupt, TaskNotFound, UsageError, VersionTaken, near
from adaptree.reports.text import printable
from adaptree.tasks import beside, parts
from adaptree.tasks import names as naming
from adaptree.tasks.beside import MARKS, NEEDED, NOTES, REMOVED, TAG
from adaptree.tasks.files import TAKEN, cannot_write, replace_file, sync
from adaptree.tasks.folders import contents, delete_stale, folders_in, has_only_versions, is_version, scan
from adaptree.tasks.index import Index
from adaptree.tasks.names import VERSION, check_name, check_tag, parse_reference, split_tag
from adaptree.tasks.record import RECORD, TENSORS, Record, read_record
from adaptree.tasks.signing import SIGNATURES, can_check
from adaptree.tasks.summary import Row, Summary, file_size, read_row
from adaptree.tasks.task import Task, read_task
from adaptree.tasks.unchanged import seen

# Inside a class that has a method `list`, that word is the method.
Names = list[str]
Numbers = list[int]
Summaries = list[Summary]
Rows = list[Row]
OLD_INDEX = "index.sqlite"
"""The index of an earlier adaptree, which is not used any more."""
QUOTAS = "quotas.sqlite"
"""What API keys have used of a day's quota: it changes as a server answers, and belongs to no task."""
JOBS = "jobs"
"""The folder of what a server keeps of training jobs: their database, files and checkpoints."""


class Store:
    """Tasks by name: `store["reviews"]` is the newest version, `store["reviews@2"]` that one, or that of a tag.

    `path` is a folder, or a URL such as s3://bucket/prefix; by default ADAPTREE_STORE, else ~/.adaptree. `index` is the
    URL of a database that keeps what `list` and `search` read: `adaptree.tasks.index.Index`.
    """

    def __new__(cls, path: str | os.PathLike[str] | None = None, *, index: str | None = None) -> Self:
        where = _location(path)
        if cls is Store and isinstance(where, str) and "://" in where:
            from adaptree.tasks.remote import RemoteStore

            return object.__new__(RemoteStore)  # type: ignore[return-value]
        return object.__new__(cls)

    def __init__(self, path: str | os.PathLike[str] | None = None, *, index: str | None = None) -> None:
        self.path = Path(_location(path)).expanduser()
        self.tasks = self.path / "tasks"
        self._tmp = self.path / "tmp"
        self.index = Index(self.address, index)

    def __repr__(self) -> str:
        return f"Store({self.location!r})"

    @property
    def location(self) -> str:
        """Where the store is: its folder, or its URL."""
        return str(self.path)

    @property
    def address(self) -> str:
        """What an index that several machines share knows this store by."""
        return f"{platform.node()}:{self.path.resolve()}"

    # reading

    def get(self, reference: str, *, above: tuple[str, ...] = ()) -> Task:
        """Read a task and its parts, and verify their files; its record has the name and version that it has here.

        `above` are the references of the tasks that it is read for as a part.
        """
        while True:
            name, version = self._resolve(reference)
            folder = self._folder(name, version)
            before = _identity(folder)
            try:
                task = read_task(folder, called=f"{name}@{version}")
            except (TaskCorrupt, TaskNotFound):
                if _identity(folder) == before is not None:
                    raise
                continue  # another process removed it, or put a new one there, while it was read
            record = dataclasses.replace(task.record, name=name, version=version)
            return Task(record, task.tensors, parts.load_parts(self, record, above))

    __getitem__ = get

    def path_of(self, reference: str) -> Path:
        """Return the folder of a version."""
        return self._folder(*self._resolve(reference))

    def reference(self, reference: str) -> str:
        """Return the name with its version, `reviews@2`, that a name, a version or a tag stands for now."""
        return "{}@{}".format(*self._resolve(reference))

    def record(self, reference: str) -> Record:
        """Return a version's record, with the name and version that it has here; its tensors are not read."""
        name, version = self._resolve(reference)
        return dataclasses.replace(self._record(name, version), name=name, version=version)

    def refresh(self, reference: str) -> None:
        """Forget copies of a version, so that it is read from where it is kept; of a folder there are none."""

    def wrong_copies(self, reference: str) -> Names:
        """Return the files beside a version that should be copies of its own and are not; a folder has no copies."""
        return []

    def renew_copies(self, reference: str) -> None:
        """Write the copies of a version's files anew."""

    def __contains__(self, reference: object) -> bool:
        try:
            self._resolve(str(reference))
        except (BadName, TaskNotFound):
            return False
        return True

    def names(self) -> Names:
        """Return the names of all tasks, sorted."""
        return sorted(name for name, _ in self._scan())

    def versions(self, name: str) -> Numbers:
        """Return the numbers of a task's versions, ascending; none if there is no such task."""
        return sorted(int(entry.name) for entry in folders_in(self.tasks / check_name(name)) if is_version(entry))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return sum(1 for _ in self._scan())

    def list(self) -> Summaries:
        """Return the newest version of each task, by name; the summary of a damaged one says what is wrong."""
        return [row.summary for row in self.rows()]

    def rows(self, *, tag: str = "", text: bool = False) -> Rows:
        """Return the newest version of each task, or the one that has a tag, by name; with `text`, what `search` reads.

        What the index has is used while the files that it was made from are unchanged. Other versions are read, and
        damaged ones each time.
        """
        with suppress(OSError):
            (self.path / OLD_INDEX).unlink(missing_ok=True)
        found = {name: (versions, files) for name, versions, files in self._contents()}
        if not found:
            return []
        cached = self.index.rows(text=text)
        rows: Rows = []
        fresh: Rows = []
        looked_at: dict[tuple[str, int], str] = {}
        for name, (versions, files) in sorted(found.items()):
            version = versions[-1]
            if tag:
                if f"{tag}{TAG}" not in files or (tagged := self.tags(name).get(tag)) is None:
                    continue
                version = tagged
            row = cached.get((name, version))
            now = self._seen(name, version, files)
            if row is None or not now or row.seen != now:
                stamp = self._stamp(name, version, files)
                if row is None or row.stamp != stamp:
                    row = dataclasses.replace(self._row(name, version, files), stamp=stamp, seen=now)
                    if not row.summary.problem and (not row.summary.signed_by or can_check()):
                        fresh.append(row)
                    elif version not in self.versions(name):
                        continue  # another process removed it meanwhile
                elif row.seen != now:
                    looked_at[name, version] = now
            if len(versions) > 1:
                row = dataclasses.replace(row, summary=dataclasses.replace(row.summary, versions=len(versions)))
            rows.append(row)
        gone = [(name, version) for name, version in cached if name not in found or version not in found[name][0]]
        if fresh or looked_at or gone:
            self.index.update(fresh, looked_at, gone)
        return rows

    def history(self, name: str) -> Summaries:
        """Return every version of a task, the oldest first."""
        versions = self.versions(name)
        if not versions:
            raise self._not_found(name)
        rows = [self._row(name, version, self.beside(name)) for version in versions]
        return [dataclasses.replace(row.summary, versions=len(versions)) for row in rows]

    def dependents(self, reference: str) -> Names:
        """Return the references of the tasks that need this version, or any version of a name given without one."""
        name, version = self._numbered(reference)
        return parts.dependents(self, name if version is None else f"{name}@{version}")

    def tags(self, name: str) -> dict[str, int]:
        """Return the versions of a task that have a tag, by tag."""
        found, versions = {}, frozenset(self.versions(name))
        for file in self.beside(name):
            tag = file.removesuffix(TAG)
            if file.endswith(TAG) and naming.TAG.fullmatch(tag):
                noted = beside.lines(self.read_beside(name, file))
                if noted and VERSION.fullmatch(noted[-1]) and int(noted[-1]) in versions:
                    found[tag] = int(noted[-1])
        return found

    def notes(self, reference: str) -> Names:
        """Return what people noted about a version, each note after its time: '2026-03-01T12:00:00+00:00 a text'."""
        name, version = self._resolve(reference)
        return beside.lines(self.read_beside(name, f"{version}{NOTES}"))

    # writing

    def next_number(self, name: str) -> int:
        """Return the number that the next version of a task would get."""
        return self._last_number(check_name(name)) + 1

    def add(self, task: Task, *, number: int | None = None) -> Task:
        """Keep the task as a new version of its name; return it with that version.

        The tasks that it needs are added too, unless they are here; a name that is taken stays with its task. With a
        `number` it becomes that version, or VersionTaken is raised if that number is or was another's.
        """
        name = check_name(task.record.name)
        self.check_room(name)
        task = parts.add_parts(self, task)
        staging = self._tmp / f"add-{uuid.uuid4().hex}"
        try:
            delete_stale(self._tmp)
            version = self._last_number(name) + 1
            if number is not None:
                if number < version:
                    raise VersionTaken(f"there is or was a version {number} of '{name}'.")
                version = number
            while True:
                record = dataclasses.replace(task.record, version=version)
                saved = Task(record, task.tensors).write(staging / str(version))
                parts.note_needs(self, record)
                if self._move_in(staging, name, version):
                    return Task(saved.record, saved.tensors, task.parts)
                if number is not None:
                    raise VersionTaken(f"there is a version {number} of '{name}'.")
                shutil.rmtree(staging)  # another process took this number: the record must say the next
                version = max(version, self._last_number(name)) + 1
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def add_folder(self, folder: Path, name: str, version: int = 0, *, older: bool = False) -> str:
        """Move a written version from a folder of this store's tmp to its place, file for file; return its reference.

        It keeps its number if that is higher than all that the task ever had here, and gets the next one otherwise; one
        that is `older` than what is here keeps a lower number, too, if no other version has or had that. Its record is
        not changed: `get` gives it the name and version that it has here. Its parts must be here already.
        """
        self.check_room(check_name(name))
        record = read_record(folder, called=name)
        staging = self._tmp / f"add-{uuid.uuid4().hex}"
        try:
            delete_stale(self._tmp)
            staging.mkdir()
            for path in (*folder.iterdir(), folder):
                sync(path)
            free = version not in self.versions(name) and f"{version}{REMOVED}" not in self.beside(name)
            number = version if older and free else max(version, self._last_number(name) + 1)
            os.rename(folder, staging / str(number))
            while True:
                here = dataclasses.replace(record, name=name, version=number)
                parts.note_needs(self, here)
                if self._move_in(staging, name, number):
                    return here.reference
                taken, number = number, max(number, self._last_number(name)) + 1
                os.rename(staging / str(taken), staging / str(number))
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def mark(self, reference: str, word: str) -> None:
        """Note a word beside a version, whose own files never change."""
        name, version = self._resolve(reference)
        if word not in self.marks(reference):
            self.append_beside(name, f"{version}{MARKS}", word)

    def marks(self, reference: str) -> frozenset[str]:
        """Return the words that were noted beside a version."""
        name, version = self._resolve(reference)
        return frozenset(beside.lines(self.read_beside(name, f"{version}{MARKS}")))

    def note(self, reference: str, text: str) -> None:
        """Note a sentence beside a version, with the time."""
        name, version = self._resolve(reference)
        if not (line := printable(text)):
            raise UsageError("the note is empty.", hint=f'adaptree note {name}@{version} "what to remember"')
        with self._unless_removed(name, version):
            self.append_beside(name, f"{version}{NOTES}", f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}")

    def tag(self, reference: str, tag: str) -> None:
        """Let a tag name a version, from now on also as `name@tag`; a tag that named another one moves, at once."""
        name, version = self._resolve(reference)
        before = self.tags(name).get(check_tag(tag))
        if before == version:
            return
        with self._unless_removed(name, version):
            self.write_beside(name, f"{tag}{TAG}", str(version))
        self.note(f"{name}@{version}", f"tagged {tag}" + (f", which was version {before}" if before else ""))

    def untag(self, name: str, tag: str) -> None:
        """Remove a tag; the version that it names stays."""
        _, version = self._resolve(f"{check_name(name)}@{check_tag(tag)}")
        self.remove_beside(name, f"{tag}{TAG}")
        self.note(f"{name}@{version}", f"no longer tagged {tag}")

    def remove(self, reference: str, *, force: bool = False) -> int:
        """Remove a task, or one version of it (`reviews@2`); return how many versions were removed.

        A version that has a tag, or that other tasks need, is kept, unless `force` says that it may go.
        """
        name, version = self._numbered(reference)
        versions = self.versions(name)
        doomed = versions if version is None else [number for number in versions if number == version]
        if not doomed:
            raise self._not_found(name, version)
        others = self.dependents(name if version is None else f"{name}@{version}")
        tags = {tag: number for tag, number in self.tags(name).items() if version in (None, number)}
        if tags and not force:
            tag, number = next(iter(tags.items()))
            raise StoreError(
                f"'{name}@{number}' has the tag '{tag}'.",
                hint=f"Take it off first (adaptree tag {name} {tag} --remove), or --force: then the tag goes, too.",
            )
        if others and not force:
            raise StoreError(
                f"'{reference}' is part of {', '.join(others)}.",
                hint=f"Remove {'them' if len(others) > 1 else 'it'} first, or --force: then they cannot run any more.",
            )
        gone = [*(f"{tag}{TAG}" for tag in tags), *(f"{number}{NOTES}" for number in doomed)]
        if not self._take_out(name, doomed, gone, everything=doomed == versions and not others):
            raise self._not_found(name, version)  # another process removed it first
        return len(doomed)

    def _take_out(self, name: str, doomed: Numbers, files: Names, *, everything: bool) -> bool:
        """Remove versions and some small files, with `everything` all; return False if the versions are not there."""
        folder = self.tasks / name
        staging = self._tmp / f"remove-{uuid.uuid4().hex}"
        try:
            delete_stale(self._tmp)
            staging.mkdir(parents=True)
            if everything and has_only_versions(folder):
                os.rename(folder, staging / "all")
                sync(folder.parent)
            else:
                for number in doomed:
                    self.write_beside(name, f"{number}{REMOVED}")
                    os.rename(folder / str(number), staging / str(number))
                sync(folder)
                for file in files:
                    self.remove_beside(name, file)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise cannot_write(self.path, error) from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return True

    def check_room(self, name: str) -> None:
        """Raise StoreError if a task cannot have this name: 'lang/3' where that folder is version 3 of 'lang'."""
        folder = self.tasks / name
        if (folder / RECORD).exists():
            parent, _, number = name.partition("/")
            raise StoreError(f"'{name}' cannot be added: it is where version {number} of task '{parent}' lies.",
                             hint="Choose a name with a letter in it.")  # fmt: skip
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"'{name}' cannot be added: {folder} is a file.", hint="Move the file away.")

    # the small files beside the versions

    def beside(self, name: str) -> Names:
        """Return the names of the small files beside a task's versions."""
        try:
            with os.scandir(self.tasks / name) as entries:
                return sorted(entry.name for entry in entries if entry.is_file() and not entry.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read_beside(self, name: str, file: str) -> str:
        """Return the text of a small file; '' if it is not there."""
        try:
            return (self.tasks / name / file).read_text(errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return ""

    def append_beside(self, name: str, file: str, line: str) -> None:
        """Add a line to a small file."""
        try:
            with (self.tasks / name / file).open("a") as text:
                text.write(f"{beside.seal(line)}\n")
                text.flush()
                os.fsync(text.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def write_beside(self, name: str, file: str, *lines: str) -> None:
        """Replace a small file as a whole by these lines; without any it is empty."""
        text = "".join(f"{beside.seal(line)}\n" for line in lines)
        try:
            replace_file(self.tasks / name / file, text.encode())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def remove_beside(self, name: str, file: str) -> None:
        """Remove a small file, if it is there."""
        try:
            (self.tasks / name / file).unlink(missing_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def files(self) -> Names:
        """Return every file in the store's folder, as paths from it, without what is in `tmp` or is a server's."""
        found: Names = []
        for folder, inside, files in os.walk(self.path):
            at = Path(folder).relative_to(self.path)
            if at == Path():
                inside[:] = [name for name in inside if name not in (self._tmp.name, JOBS)]
                files = [name for name in files if not name.startswith((OLD_INDEX, QUOTAS))]
            found += [(at / file).as_posix() for file in files]
        return sorted(found)

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

    def _folder(self, name: str, version: int) -> Path:
        """Return the folder of a version that is there."""
        return self.tasks / name / str(version)

    def _record(self, name: str, version: int) -> Record:
        return read_record(self._folder(name, version), called=f"{name}@{version}")

    def _scan(self) -> Iterator[tuple[str, Numbers]]:
        """Yield each task's name and its versions, ascending."""
        return scan(self.tasks)

    def _has(self, name: str, version: int) -> bool:
        return (self.tasks / name / str(version) / RECORD).exists() or version in self.versions(name)

    # what a row of the index is made from; `files` are the names of the small files beside the versions

    def _contents(self) -> Iterator[tuple[str, Numbers, Names]]:
        """Yield each task's name, its versions, and the small files beside them that a row is made from."""
        for name, versions, files in contents(self.tasks):
            yield name, versions, [file for file in files if not file.endswith((REMOVED, NEEDED))]

    def _seen(self, name: str, version: int, files: Names) -> str:
        """Return what shows at a glance that the files of a row are unchanged; '' if nothing does."""
        folder = f"{self.tasks}/{name}"
        own = (f"{folder}/{version}/{file}" for file in (RECORD, TENSORS, SIGNATURES))
        return seen([*own, *(f"{folder}/{file}" for file in files)])

    def _stamp(self, name: str, version: int, files: Names) -> str:
        """Return a digest of what a row is made from: the record, the tensors' size, signatures and small files."""
        folder = self.tasks / name / str(version)
        digest = hashlib.sha256(str(file_size(folder / TENSORS)).encode())
        for own in (RECORD, SIGNATURES):
            with suppress(OSError):
                digest.update((folder / own).read_bytes())
        for file in files:
            digest.update(f"\0{file}\0{self.read_beside(name, file)}".encode("utf-8", "replace"))
        return digest.hexdigest()

    def _row(self, name: str, version: int, files: Names) -> Row:
        """Read a version's row from its files."""
        found = self.tags(name) if any(file.endswith(TAG) for file in files) else {}
        tags = sorted(tag for tag, number in found.items() if number == version)
        notes = beside.lines(self.read_beside(name, f"{version}{NOTES}")) if f"{version}{NOTES}" in files else []
        texts = [note.partition(" ")[2] for note in notes]  # after the time
        return self._read_row(name, version, tags, texts)

    def _read_row(self, name: str, version: int, tags: Names, notes: Names) -> Row:
        return read_row(self._folder(name, version), name, version, tags, notes)

    def _last_number(self, name: str) -> int:
        """Return the highest number ever used for a version of this task, or 0."""
        removed = [entry.removesuffix(REMOVED) for entry in self.beside(name) if entry.endswith(REMOVED)]
        return max([0, *self.versions(name), *(int(number) for number in removed if VERSION.fullmatch(number))])

    def _resolve(self, reference: str) -> tuple[str, int]:
        """Return the name and version of a task that exists; raise TaskNotFound, with near names, if none does."""
        name, version = self._numbered(reference)
        if version is None:
            versions = self.versions(name)
            if versions:
                return name, versions[-1]
        elif self._has(name, version):
            return name, version
        raise self._not_found(name, version)

    @contextmanager
    def _unless_removed(self, name: str, version: int) -> Iterator[None]:
        """Raise TaskNotFound for what cannot be written because another process removed the version meanwhile."""
        try:
            yield
        except StoreError:
            self._resolve(f"{name}@{version}")
            raise

    def _numbered(self, reference: str) -> tuple[str, int | None]:
        """Return a reference's name and version; a tag's version is that which it names."""
        name, tag = split_tag(reference)
        if not tag:
            return parse_reference(reference)
        tags = self.tags(name)
        if tag in tags:
            return name, tags[tag]
        if not self.versions(name):
            raise self._not_found(name)
        known = f"there is {', '.join(sorted(tags))}" if tags else "it has no tags"
        raise TaskNotFound(
            f"no tag '{tag}' of task '{name}': {known}.",
            hint=f"{near(tag, tags)}   adaptree history {name}".strip(),
        )

    def _not_found(self, name: str, version: int | None = None) -> TaskNotFound:
        versions = self.versions(name)
        if versions and version is not None:
            return TaskNotFound(
                f"no version {version} of task '{name}': there is {', '.join(map(str, versions))}.",
                hint=f"adaptree history {name}",
            )
        hint = f"{near(name, self.names())}   adaptree list".strip()
        return TaskNotFound(f"no task '{name}' in the store.", hint=hint)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one in its place later; None if there is no folder."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns


def _location(path: str | os.PathLike[str] | None) -> str | os.PathLike[str]:
    """Return the folder or URL of a store, by default the user's; the URL of a folder is that folder."""
    where = path or os.environ.get("ADAPTREE_STORE") or "~/.adaptree"
    if isinstance(where, str) and where.startswith("file://"):
        return url2pathname(urlsplit(where).path)
    return where
