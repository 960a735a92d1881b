"""A store behind a URL (s3://bucket/prefix, gs://…): an object per version, and copies of those in use on this machine.

    tasks/NAME/VERSION.adaptree   the version, as a bundle of its own files; it is there whole or not at all
    tasks/NAME/VERSION.{json, sig}    copies of its record and signatures, so that a list needs no tensors; written
                                  again if the record's is missing
    tasks/NAME/VERSION.{removed, needed, marks, notes}, TAG.tag    see `adaptree.tasks.beside`
    tasks/NAME/FILE+TIME-…        a line that was added to such a file: each is an object of its own

A version is there if its bundle is and its `.removed` is not. Each of the two is created once, by whoever comes first:
two machines that add at the same time get two numbers, and a number is never used again.

On this machine, `Store.path` is a folder in the user's cache. A copy there counts as long as the object that it was
made from is listed unchanged; the least recently used go when it grows too large.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from adaptree.errors import AdaptreeError, StoreError, TaskCorrupt, TaskNotFound, Unreachable
from adaptree.tasks import beside, bundle, cache_folder
from adaptree.tasks.beside import NEEDED, REMOVED
from adaptree.tasks.files import TAKEN, cannot_write
from adaptree.tasks.folders import delete_stale
from adaptree.tasks.names import NAME, VERSION, check_name
from adaptree.tasks.objects import Found, Objects
from adaptree.tasks.record import RECORD, Record, corrupt, read_record
from adaptree.tasks.signing import SIGNATURES, checked_signatures
from adaptree.tasks.store import Names, Numbers, Rows, Store
from adaptree.tasks.summary import Row, Summary, row_of
from adaptree.tasks.task import Task

BUNDLE, RECORD_COPY, SIGNATURES_COPY = OWN = ".adaptree", ".json", ".sig"
COPIED = {SIGNATURES_COPY: SIGNATURES, RECORD_COPY: RECORD}
COPIES = "copies"
READERS = 16
"""Records that are read from the server at the same time."""
IN_USE = 600
"""Seconds for which a copy stays after it was asked for: somebody may be reading it."""


class RemoteStore(Store):
    """Tasks by name in a store behind a URL; `Store(url)` makes one."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, index: str | None = None) -> None:
        url = str(path or os.environ["ADAPTREE_STORE"]).rstrip("/")
        self._objects = Objects(url)
        super().__init__(cache_folder.folder() / "stores" / hashlib.sha256(url.encode()).hexdigest()[:32], index=index)
        self._files_of: dict[str, dict[str, Found]] = {}
        """What the last listing said of each task's objects."""
        self._listed: dict[tuple[str, int], Found] = {}
        self._unchecked = 0
        """Bytes that may still be fetched before the size of the cache is looked at."""

    @property
    def objects(self) -> Objects:
        """The objects behind the URL, for what is kept there besides tasks."""
        return self._objects

    @property
    def location(self) -> str:
        """Where the store is: its URL, without a password that is in it."""
        return self._objects.shown

    @property
    def address(self) -> str:
        """What an index that several machines share knows this store by."""
        return self.location

    # reading

    def get(self, reference: str, *, above: tuple[str, ...] = ()) -> Task:
        """Read a task and its parts, and verify their files; a damaged copy of them is fetched again."""
        try:
            return super().get(reference, above=above)
        except TaskCorrupt:
            if not self._drop_copy(*self._resolve(reference)):
                raise
            return super().get(reference, above=above)

    __getitem__ = get

    def versions(self, name: str) -> Numbers:
        """Return the numbers of a task's versions, ascending; none if there is no such task."""
        return self._numbers(name, self._files(name))

    def rows(self, *, tag: str = "", text: bool = False) -> Rows:
        """Return the newest version of each task, or the one that has a tag; see `Store.rows`."""
        newest = [(name, versions[-1]) for name, versions in self._scan()]
        missing = [each for each in newest if not self._place(*each, "record").exists()]
        with ThreadPoolExecutor(READERS) as pool:
            for _ in pool.map(lambda each: self._read_row(each[0], each[1], [], []), missing):
                pass  # the record is now on this machine
        return super().rows(tag=tag, text=text)

    def refresh(self, reference: str) -> None:
        """Forget copies of a version, so that it is read from where it is kept."""
        name, version = self._resolve(reference)
        for what in ("version", "record"):
            shutil.rmtree(self._place(name, version, what), ignore_errors=True)

    def wrong_copies(self, reference: str) -> Names:
        """Return the copies of a version's record and signatures that are not what its bundle has.

        Both are written again where the record's is missing: then nothing is wrong.
        """
        name, version = self._resolve(reference)
        folder = self._folder(name, version)
        found = {file: self._objects.read(_key(name, f"{version}{suffix}")) for suffix, file in COPIED.items()}
        if found[RECORD] is None:
            return []
        whole = {file: (folder / file).read_bytes() if (folder / file).exists() else None for file in found}
        return [f"{version}{suffix}" for suffix, file in COPIED.items() if found[file] != whole[file]]

    def renew_copies(self, reference: str) -> None:
        """Write the copies of a version's record and signatures anew, from its bundle."""
        name, version = self._resolve(reference)
        for suffix in COPIED:
            self._objects.delete(_key(name, f"{version}{suffix}"))
        self._copy_record(self._folder(name, version), name, version)

    def files(self) -> Names:
        """Return the files that belong to the store and lie on this machine, without copies of what is elsewhere."""
        return [file for file in super().files() if not file.startswith(f"{COPIES}/")]

    def check_room(self, name: str) -> None:
        """Raise Unreachable if nothing can be added; here a number in a namespace ('lang/3') is a name like others."""
        self._objects.check()

    # the small files beside the versions

    def beside(self, name: str) -> Names:
        """Return the names of the small files beside a task's versions."""
        found = {file.partition("+")[0] for file in self._files(name)}
        return sorted(file for file in found if not file.endswith(OWN))

    def read_beside(self, name: str, file: str) -> str:
        """Return the text of a small file, with the lines that were added to it; '' if it is not there."""
        objects = (self._objects.read(_key(name, each)) for each in sorted(self._files(name)) if _is_of(each, file))
        return "".join(data.decode(errors="replace") for data in objects if data is not None)

    def append_beside(self, name: str, file: str, line: str) -> None:
        """Add a line to a small file."""
        text = f"{beside.seal(line)}\n"
        self._objects.put(_key(name, f"{file}+{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"), text.encode())

    def write_beside(self, name: str, file: str, *lines: str) -> None:
        """Replace a small file as a whole by these lines; without any it is empty."""
        added = [each for each in self._files(name) if _is_of(each, file) and each != file]
        self._objects.put(_key(name, file), "".join(f"{beside.seal(line)}\n" for line in lines).encode())
        for each in added:
            self._objects.delete(_key(name, each))

    def remove_beside(self, name: str, file: str) -> None:
        """Remove a small file, if it is there."""
        for each in self._files(name):
            if _is_of(each, file):
                self._objects.delete(_key(name, each))

    # objects

    def _files(self, name: str) -> dict[str, Found]:
        """Return what the server has beside and for the versions of one task, by file name."""
        found = self._objects.listing(f"tasks/{check_name(name)}")
        return {file: of for file, of in found.items() if "/" not in file}

    def _numbers(self, name: str, files: dict[str, Found]) -> Numbers:
        """Return the versions that are there, ascending, and remember what the listing says of their objects."""
        self._files_of[name] = files
        numbers = []
        for file, found in files.items():
            number = file.removesuffix(BUNDLE)
            if file.endswith(BUNDLE) and VERSION.fullmatch(number) and f"{number}{REMOVED}" not in files:
                numbers.append(int(number))
                self._listed[name, int(number)] = found
        return sorted(numbers)

    def _scan(self) -> Iterator[tuple[str, Numbers]]:
        tasks: dict[str, dict[str, Found]] = {}
        for key, found in self._objects.listing("tasks").items():
            name, _, file = key.rpartition("/")
            tasks.setdefault(name, {})[file] = found
        for name, files in sorted(tasks.items()):
            if NAME.fullmatch(name) and (numbers := self._numbers(name, files)):
                yield name, numbers

    def _has(self, name: str, version: int) -> bool:
        return version in self.versions(name)

    def _last_number(self, name: str) -> int:
        """Return the highest number ever used for a version of this task, or 0."""
        stems = [file.removesuffix(BUNDLE).removesuffix(REMOVED) for file in self._files(name)]
        return max([0, *(int(stem) for stem in stems if VERSION.fullmatch(stem))])

    def _move_in(self, staging: Path, name: str, version: int) -> bool:
        """Create a written version's object; return False if another process took the number."""
        file = staging / f"{version}{BUNDLE}"
        bundle.pack({f"{name}@{version}": staging / str(version)}, file)
        if not self._objects.create(_key(name, f"{version}{BUNDLE}"), file.read_bytes()):
            return False
        if f"{version}{REMOVED}" in self._files(name):  # others added and removed this number since we looked
            self._objects.delete(_key(name, f"{version}{BUNDLE}"))
            return False
        self._copy_record(staging / str(version), name, version)
        return True

    def _copy_record(self, folder: Path, name: str, version: int) -> None:
        """Put copies of a version's record and signatures beside it; the record's, which is looked for, comes last."""
        for suffix, file in COPIED.items():
            if (folder / file).exists():
                self._objects.put(_key(name, f"{version}{suffix}"), (folder / file).read_bytes())

    def _take_out(self, name: str, doomed: Numbers, gone: Names, *, everything: bool) -> bool:
        """Remove versions and some small files, with `everything` all; return False if the versions are not there."""
        ours = [number for number in doomed if self._objects.create(_key(name, f"{number}{REMOVED}"), b"")]
        files = self._files(name)
        kept = (REMOVED,) if everything else (REMOVED, NEEDED)
        for file in files:  # of these versions, and what killed processes left of earlier ones
            whole = file.partition("+")[0]
            stem, _, _ = whole.rpartition(".")
            if (f"{stem}{REMOVED}" in files and not whole.endswith(kept)) or whole in gone:
                self._objects.delete(_key(name, file))
        return bool(ours)

    # copies on this machine

    def _folder(self, name: str, version: int) -> Path:
        """Return the folder with a copy of a version, which was just listed; fetch it unless it is there."""

        def fetch(place: Path) -> None:
            data = self._objects.read(_key(name, f"{version}{BUNDLE}"))
            if data is None:  # another process has just removed it
                raise self._not_found(name, version)
            file = place.with_suffix(BUNDLE)
            file.write_bytes(data)
            place.mkdir()
            self._make_room(len(data))
            try:
                bundle.unpack(file, place)
                if not (place / name / str(version) / RECORD).is_file():
                    raise StoreError("it is of another task")
            except AdaptreeError as error:
                raise corrupt(f"{name}@{version}", f"{self.location}/{_key(name, f'{version}{BUNDLE}')}",
                              error.what.rstrip(".")) from error  # fmt: skip

        return self._copy(name, version, "version", fetch) / name / str(version)

    def _record(self, name: str, version: int) -> Record:
        """Return a version's record from the copy beside it, or from its bundle where that is missing or damaged."""
        called, key = f"{name}@{version}", _key(name, f"{version}{RECORD_COPY}")

        def fetch(place: Path) -> None:
            place.mkdir()
            data = self._objects.read(key)
            if data is not None:
                (place / RECORD).write_bytes(data)
                if f"{version}{SIGNATURES_COPY}" in self._files_of[name]:
                    (place / SIGNATURES).write_bytes(
                        self._objects.read(_key(name, f"{version}{SIGNATURES_COPY}")) or b""
                    )
                with contextlib.suppress(TaskCorrupt):
                    read_record(place, called=called)
                    return
            folder = self._folder(name, version)
            read_record(folder, called=called)
            for file in (RECORD, SIGNATURES):
                if (folder / file).exists():
                    shutil.copyfile(folder / file, place / file)
            with contextlib.suppress(Unreachable):  # it may be that we can only read
                self._copy_record(folder, name, version)

        place = self._copy(name, version, "record", fetch)
        try:
            return read_record(place, called=called)
        except (TaskCorrupt, TaskNotFound):
            shutil.rmtree(place, ignore_errors=True)
            return read_record(self._copy(name, version, "record", fetch), called=called)

    # what a row of the index is made from

    def _contents(self) -> Iterator[tuple[str, Numbers, Names]]:
        for name, numbers in self._scan():
            small = {file.partition("+")[0] for file in self._files_of[name]}
            yield name, numbers, sorted(file for file in small if not file.endswith((REMOVED, NEEDED, *OWN)))

    def _seen(self, name: str, version: int, files: Names) -> str:
        """Return what the listing says of the version and of the small files: it changes with each of them."""
        listed = self._files_of[name].items()
        small = [f"{file} {found.stamp}" for file, found in sorted(listed) if file.partition("+")[0] in files]
        return hashlib.sha256("\n".join([self._listed[name, version].stamp, *small]).encode()).hexdigest()

    _stamp = _seen

    def _read_row(self, name: str, version: int, tags: Names, notes: Names) -> Row:
        called, file = f"{name}@{version}", f"{version}{BUNDLE}"
        try:
            record = self._record(name, version)
            size = self._listed[name, version].bytes
            if size <= record.file_bytes:
                raise corrupt(called, file, f"{size:,} bytes, fewer than its tensors alone")
            signatures = checked_signatures(self._place(name, version, "record"), called=called)
        except Unreachable:
            raise
        except AdaptreeError as error:
            return Row(Summary(name=name, version=version, problem=error.what))
        row = row_of(record, name, version, tags, notes)
        signed_by = " ".join(signature.public for signature in signatures)
        return replace(row, summary=replace(row.summary, signed_by=signed_by))

    # copies

    def _place(self, name: str, version: int, what: str) -> Path:
        """Return where the copy of an object as it was last listed is kept."""
        stamp = f"{what} {name}@{version} {self._listed[name, version].stamp}"
        return self.path / COPIES / hashlib.sha256(stamp.encode()).hexdigest()[:32]

    def _copy(self, name: str, version: int, what: str, fetch: Callable[[Path], None]) -> Path:
        """Return the copy of an object; if there is none, have `fetch` write it as a new folder."""
        place = self._place(name, version, what)
        try:
            os.utime(place)
            return place
        except FileNotFoundError:
            pass
        except OSError as error:
            raise cannot_write(place, error) from error
        staging = self._tmp / f"get-{uuid.uuid4().hex}"
        try:
            delete_stale(self._tmp)
            staging.mkdir()
            fetch(staging / "copy")
            place.parent.mkdir(exist_ok=True)
            os.rename(staging / "copy", place)
        except OSError as error:
            if error.errno not in TAKEN:
                raise cannot_write(self.path, error) from error
            # another process was quicker
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return place

    def _drop_copy(self, name: str, version: int) -> bool:
        """Delete the copy of a version; return whether there was one."""
        place = self._place(name, version, "version")
        there = place.exists()
        shutil.rmtree(place, ignore_errors=True)
        return there

    def _make_room(self, coming: int) -> None:
        """Delete the least recently used copies if they take more than the cache may; look now and then only."""
        most = cache_folder.most_bytes()
        self._unchecked -= coming
        if self._unchecked > 0:
            return
        self._unchecked = most // 16
        copies = []
        for place in (self.path / COPIES).glob("*"):
            with contextlib.suppress(OSError):
                size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
                copies.append((place.stat().st_mtime, size, place))
        total = sum(size for _, size, _ in copies) + coming
        for used, size, place in sorted(copies):
            if total <= most or time.time() - used < IN_USE:
                break
            shutil.rmtree(place, ignore_errors=True)
            total -= size


def _key(name: str, file: str) -> str:
    return f"tasks/{name}/{file}"


def _is_of(each: str, file: str) -> bool:
    """Return whether an object is a small file, or a line that was added to it."""
    return each.partition("+")[0] == file
