"""Tasks as one file: export them from a store with their parts, and import such a file into another store.

Everything in a file is checked before anything is added. A version keeps its files as they are, byte for byte; only
where a part has to get another name here does the record that names the part say so.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from adaptree.errors import (
    AdaptreeError,
    BadName,
    BaseError,
    BundleError,
    CompositionError,
    MethodError,
    TaskCorrupt,
    TaskNotFound,
    UsageError,
    WrongBase,
)  # fmt: skip
from adaptree.reports.json_text import json_text
from adaptree.tasks import beside, parts, signing
from adaptree.tasks.beside import TAG
from adaptree.tasks.bundle import BESIDE, Manifest, pack, refused, unpack
from adaptree.tasks.digests import renew_sums
from adaptree.tasks.files import cannot_write, replace_file
from adaptree.tasks.folders import delete_stale
from adaptree.tasks.names import check_name, parse_reference
from adaptree.tasks.record import RECORD, Record, content, corrupt, read_record, read_values
from adaptree.tasks.runs import bases_of, remember
from adaptree.tasks.task import Task, read_task

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

MOST_PARTS = 1000
"""Parts of a task and their parts, each as often as it is named."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was exported: the tasks that were asked for, how many versions with their parts, and how many bytes."""

    file: Path
    tasks: list[str]
    versions: int
    bytes: int
    signed_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Imported:
    """One version of an imported file."""

    task: str
    """its reference here"""
    was: str
    """its reference in the file"""
    here: bool
    """whether it was here already, and was not added again"""
    part: bool
    """whether it is here only because others need it"""
    signed_by: list[str] = field(default_factory=list)
    """names of the keys, or the keys themselves where they are unknown"""
    notes: list[str] = field(default_factory=list)


# export


def export(
    store: Store,
    references: Sequence[str],
    file: str | Path,
    *,
    everything: bool = False,
    versions: bool = False,
    sign: bool = False,
    key: str | None = None,
    force: bool = False,
) -> Exported:
    """Write tasks, with the parts that they need, as one file.

    A reference may also be a composition: then all tasks that it names are written. `everything` writes every task of
    the store with its tags and notes; `versions` all versions of the tasks, and not only the newest or named ones.
    `sign` signs each version with this user's key, or with the one called `key`.
    """
    if everything == bool(references):
        raise UsageError("name some tasks to export, or take all.", hint="adaptree export --all FILE")
    signer = signing.own_key(key) if sign or key is not None else None
    wanted = _versions_of(store, store.names() if everything else references, all_of_them=versions)
    folders = dict(_with_parts(store, wanted))
    if not folders:
        raise TaskNotFound(f"there are no tasks in {store.location}.", hint="adaptree train DATA --name NAME")
    file = Path(file).expanduser()
    pack(
        folders,
        file,
        tasks=wanted,
        beside=_beside_files(store, folders) if everything else None,
        signatures={} if signer is None else {each: _signed(folders[each], each, signer) for each in folders},
        force=force,
    )
    size = file.stat().st_size
    return Exported(file=file, tasks=wanted, versions=len(folders), bytes=size, signed_by=signer.name if signer else "")


def _versions_of(store: Store, references: Sequence[str], *, all_of_them: bool) -> list[str]:
    """Return the versions that some names, references and compositions mean, each once."""
    found: list[str] = []
    for reference in references:
        for each in _names_in(reference):
            folder = store.path_of(each)
            name = each.partition("@")[0]
            numbers: Sequence[object] = store.versions(name) if all_of_them else [folder.name]
            found += [f"{name}@{number}" for number in numbers]
    return list(dict.fromkeys(found))


def _names_in(reference: str) -> Sequence[str]:
    if not any(mark in reference for mark in "({"):
        return [reference]
    from adaptree.compose import parse

    return parse(reference).names


def _with_parts(store: Store, references: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield versions and all that they need to run, each once, with their folders."""
    todo, seen = list(references), set(references)
    while todo:
        reference = todo.pop()
        folder = store.path_of(reference)
        yield reference, folder
        for part, digest in parts.needs(read_record(folder, called=reference)).items():
            here = parts.find(store, part, digest)
            if here is None:
                raise TaskNotFound(
                    f"'{reference}' is made of '{part}', which is not in the store any more.",
                    hint=f"Put {part.partition('@')[0]} back, or export others.",
                )
            if here not in seen:
                seen.add(here)
                todo.append(here)


def _beside_files(store: Store, folders: Mapping[str, Path]) -> dict[str, str]:
    """Return the tags, notes and marks of some versions, by path."""
    found: dict[str, str] = {}
    for name in sorted({reference.partition("@")[0] for reference in folders}):
        for file in store.beside(name):
            if (match := BESIDE.fullmatch(file)) is None:
                continue
            lines = beside.lines(store.read_beside(name, file))
            version = match["version"] or "".join(lines)
            if f"{name}@{version}" in folders:
                found[f"{name}/{file}"] = "".join(f"{beside.seal(line)}\n" for line in lines)
    return found


def _signed(folder: Path, reference: str, key: signing.Key) -> str:
    """Return the signatures of a version with one by this key among them, as their file holds them."""
    new = signing.sign(content(read_values(folder, called=reference)), reference, key)
    others = signing.read_signatures(folder, called=reference)
    return signing.to_text([new, *(other for other in others if other.public != new.public)])


# import


def import_file(
    file: str | Path,
    store: Store,
    *,
    name: str | None = None,
    base: Base | str | Path | None = None,
    trust: str | None = None,
    dry_run: bool = False,
) -> list[Imported]:
    """Add the tasks of an exported file, and the parts that they need, to a store; return what became of each version.

    A version keeps its number where no version of that name here is as high, and gets the next one otherwise. One that
    is here already is not added again; a part whose name belongs to another task here is added as WHOLE-PART. `name` is
    another name for the one task of the file. Each version is checked against its base where that is on this machine;
    `base` says where it is. `trust`, a key's name or text, refuses what does not have a signature by that key.
    `dry_run` checks all the same and adds nothing.
    """
    file = Path(file).expanduser()
    if name is not None:
        check_name(name)
    trusted = None if trust is None else signing.find_key(trust)
    given = None
    if base is not None:
        from adaptree.models.opening import base_of

        given = base_of(base, "cpu", None)
    with _staging(store, dry_run) as staging:
        try:
            manifest = unpack(file, staging)
            if name is not None and len(manifest.tasks) > 1:
                many = f"'{file.name}' has {len(manifest.tasks)} tasks, which cannot all be called '{name}'."
                raise UsageError(many, hint="Leave out --as.")
            found = _Bundle(store, staging, manifest)
            found.check_signatures(trusted)
            found.check_bases(given)
            found.plan(name)
        except (TaskCorrupt, TaskNotFound, CompositionError, MethodError, BadName) as error:
            raise refused(file, error.what.rstrip(".")) from error
        if not dry_run:
            found.add()
            if given is not None:
                remember(store, given)
        return found.result()


@contextmanager
def _staging(store: Store, dry_run: bool) -> Iterator[Path]:
    """Give a folder for the files on their way in: in the store, unless nothing is to be added to it."""
    if dry_run:
        with tempfile.TemporaryDirectory(prefix="adaptree-") as folder:
            yield Path(folder)
        return
    staging = store.path / "tmp" / f"import-{uuid.uuid4().hex}"
    try:
        delete_stale(staging.parent)
        staging.mkdir()
    except OSError as error:
        raise cannot_write(store.path, error) from error
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@dataclass(kw_only=True)
class _Version:
    """A version in a file: what is kept of its record, and what becomes of it."""

    reference: str
    folder: Path
    digest: str
    content: str
    needs: dict[str, str]
    target: str = ""
    """the name that it gets here"""
    here: str = ""
    """its reference in the store, once it is there"""
    known: bool = False
    """whether it was there before"""
    signed_by: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.reference.partition("@")[0]

    @property
    def number(self) -> int:
        return int(self.reference.partition("@")[2])


class _Bundle:
    """An unpacked file on its way into a store: first all checks, then the versions, parts before what needs them."""

    def __init__(self, store: Store, folder: Path, manifest: Manifest) -> None:
        self.store, self.folder, self.manifest = store, folder, manifest
        self.versions = {reference: self._read(reference) for reference in manifest.versions}
        self.by_tensors: dict[tuple[str, str], list[_Version]] = {}
        for version in self.versions.values():
            self.by_tensors.setdefault((version.name, version.digest), []).append(version)
        self.order = self._parts_first()

    def _read(self, reference: str) -> _Version:
        folder = self.folder / reference.replace("@", "/")
        values = read_values(folder, called=reference)
        record = Record.from_json(values, called=reference)
        return _Version(
            reference=reference, folder=folder, digest=record.digest, content=content(values), needs=parts.needs(record)
        )

    def _parts_first(self) -> list[_Version]:
        """Return the versions in an order that has the parts of each before it; raise TaskCorrupt for a circle."""
        done: dict[str, int] = {}
        """how many tasks each is made of, parts of parts included, as often as they are named"""
        for start in sorted(self.versions.values(), key=lambda version: (version.name, version.number)):
            path = {start.reference: iter(self._inner_parts(start))}
            while path:
                current = self.versions[next(reversed(path))]
                part = next(path[current.reference], None)
                if part is None:
                    path.popitem()
                    size = 1 + sum(done[each.reference] for each in self._inner_parts(current))
                    if size > MOST_PARTS:
                        raise corrupt(current.reference, RECORD, f"the task is made of more than {MOST_PARTS:,} others")
                    done[current.reference] = size
                elif part.reference in path:
                    raise corrupt(part.reference, RECORD, "the task is a part of itself")
                elif part.reference not in done:
                    path[part.reference] = iter(self._inner_parts(part))
        return [self.versions[reference] for reference in done]

    def _inner_parts(self, version: _Version) -> list[_Version]:
        """Return the parts of a version that are in the file; raise TaskNotFound for one that is nowhere."""
        found = []
        for part, digest in version.needs.items():
            if inside := self._inside(part, digest):
                found.append(inside)
            elif parts.find(self.store, part, digest) is None:
                what = f"'{version.reference}' is made of '{part}', which is neither in the file nor in the store"
                raise TaskNotFound(what)
        return found

    def _inside(self, reference: str, digest: str) -> _Version | None:
        """Return the version in the file that is meant by a reference to a part: that one, or one with its tensors."""
        same = self.by_tensors.get((parse_reference(reference)[0], digest), [])
        return next((each for each in same if each.reference == reference), next(iter(same), None))

    # checks

    def check_signatures(self, trusted: signing.Key | None) -> None:
        """Note who signed each version; raise BundleError for a wrong signature, or without the trusted one."""
        for version in self.order:
            found = signing.read_signatures(version.folder, called=version.reference)
            if found and trusted is None and not signing.can_check():
                version.notes.append("its signature is not checked: pip install 'adaptree[signing]'")
                continue
            version.signed_by = [signing.owner(each.public) for each in found]
            for each, by in zip(found, version.signed_by, strict=True):
                if not signing.holds(each, version.content):
                    raise BundleError(
                        f"the signature by {by} on '{version.reference}' is wrong: the task is not what was signed.",
                        hint="Nothing was added. Ask the signer for the file.",
                    )
                if each.reference != version.reference:
                    version.notes.append(f"signed as {each.reference}")
            if trusted is not None and trusted.public not in {each.public for each in found}:
                by = f"signed by {', '.join(version.signed_by)} and not" if found else "not signed"
                raise BundleError(
                    f"'{version.reference}' is {by} by {trusted.name or trusted.public}.",
                    hint="Nothing was added. Leave out --trust only if you trust where the file comes from.",
                )

    def check_bases(self, given: Base | None) -> None:
        """Read the tensors of every version, and hold it against its base where that is on this machine."""
        from adaptree.compose import of_task

        bases: dict[str, Base | None] = {} if given is None else {given.fingerprint: given}
        met: set[str] = set()
        for version in self.order:
            task = self._task(version, {})
            record = task.record
            met.add(mark := str(record.base.get("fingerprint", "")))
            if mark not in bases:
                bases[mark] = _base_here(self.store, record)
            if base := bases[mark]:
                of_task(task, check=base.check)
            else:
                name = record.base.get("name", "?")
                version.notes.append(f"its base {name} is not here: the weights are not checked against it (--base)")
        if given is not None and given.fingerprint not in met:
            trained_on = ", ".join(sorted({str(self._task(each, {}).record.base.get("name")) for each in self.order}))
            raise WrongBase(
                f"none of the tasks is of the base {given.name}: they were trained on {trained_on}.",
                hint="Nothing was added. Leave out --base, or name the folder of theirs.",
            )

    def _task(self, version: _Version, loaded: dict[str, Task]) -> Task:
        """Read a version with its parts, each once."""
        if version.reference not in loaded:
            task = read_task(version.folder, called=version.reference)
            record = dataclasses.replace(task.record, name=version.name, version=version.number)
            family = {}
            for part, digest in version.needs.items():
                if inside := self._inside(part, digest):
                    family[part] = self._task(inside, loaded)
                else:
                    family[part] = self.store.get(parts.find(self.store, part, digest) or part)
            loaded[version.reference] = Task(record, task.tensors, family)
        return loaded[version.reference]

    # adding

    def plan(self, name: str | None) -> None:
        """Choose the name of each version here, and find those that are here already."""
        tasks = set(self.manifest.tasks)
        kept = {parse_reference(reference)[0] for reference in tasks} if name is None else set()
        whole: dict[str, str] = {}
        """by part: the name of a task that needs it"""
        for version in reversed(self.order):  # a part after all that need it
            if version.reference in tasks:
                version.target = name or version.name
                version.here = self._same(version.target, version)
            else:
                if version.reference not in whole:
                    raise corrupt(version.reference, RECORD, "nobody asked for the task, and no other needs it")
                version.here = parts.find(self.store, version.reference, version.digest) or ""
                free = version.name in kept or not self.store.versions(version.name)
                taken = not version.here and not free
                version.target = parts.part_name(whole[version.reference], version.name) if taken else version.name
                version.here = version.here or self._same(version.target, version)
            version.known = bool(version.here)
            self.store.check_room(check_name(version.target))
            for part in self._inner_parts(version):
                whole.setdefault(part.reference, version.target)

    def _same(self, name: str, version: _Version) -> str:
        """Return the version of a name in the store that has the same content; '' if there is none."""
        for number in self.store.versions(name):
            here = f"{name}@{number}"
            try:
                if content(read_values(self.store.path_of(here), called=here)) == version.content:
                    return here
            except AdaptreeError:
                continue  # it is damaged, and a whole one is welcome
        return ""

    def add(self) -> None:
        """Move the versions into the store one by one, and then add their tags and notes."""
        for version in self.order:
            if version.here:
                continue
            names = {}
            for part, digest in version.needs.items():
                if (inside := self._inside(part, digest)) and inside.here.partition("@")[0] != inside.name:
                    names[part] = inside.here
            if names:
                values = parts.rename(read_values(version.folder, called=version.reference), names)
                replace_file(version.folder / RECORD, (json_text(values, indent=1, sort_keys=True) + "\n").encode())
                renew_sums(version.folder)
            older = self._has_newer(version)
            version.here = self.store.add_folder(version.folder, version.target, version.number, older=older)
        for name, files in self.manifest.beside.items():
            for file in files:
                self._add_beside(name, file)

    def _has_newer(self, version: _Version) -> bool:
        """Return whether the store has a newer version of the very same task, from the file, under its own number."""
        return any(
            newer.name == version.name
            and newer.number > version.number
            and newer.here == f"{version.target}@{newer.number}"
            for newer in self.versions.values()
        )

    def _add_beside(self, name: str, file: str) -> None:
        """Add the lines of a small file that the store does not have; a tag that is here stays where it is."""
        lines = beside.lines((self.folder / name / file).read_text(encoding="utf-8"))
        tag = file.endswith(TAG)
        version = self.versions.get(f"{name}@{lines[0] if tag else file.partition('.')[0]}")
        if version is None:
            return
        target, _, number = version.here.partition("@")
        if not tag:
            there = f"{number}.{file.partition('.')[2]}"
            known = beside.lines(self.store.read_beside(target, there))
            for line in lines:
                if line not in known:
                    self.store.append_beside(target, there, line)
            return
        known = beside.lines(self.store.read_beside(target, file))
        if not known:
            self.store.write_beside(target, file, number)
        elif known != [number]:
            version.notes.append(f"the tag {file.removesuffix(TAG)} stays at {target}@{known[0]}")

    def result(self) -> list[Imported]:
        """Return what became of each version, or what would have."""
        return [
            Imported(
                task=version.here or version.target,
                was=version.reference,
                here=version.known,
                part=version.reference not in self.manifest.tasks,
                signed_by=version.signed_by,
                notes=version.notes,
            )
            for version in self.order
        ]


def _base_here(store: Store, record: Record) -> Base | None:
    """Return the base of a task if this machine is known to have it; nothing is fetched, and no folder is searched."""
    from adaptree.models.known import NAMES
    from adaptree.models.opening import base_of

    mark, name = str(record.base.get("fingerprint", "")), str(record.base.get("name", ""))
    place = bases_of(store).get(mark) or (name if name in NAMES else "")
    if not place or (place not in NAMES and not Path(place).is_dir()):
        return None
    try:
        base = base_of(place, "cpu", None)
    except BaseError:
        return None
    return base if base.fingerprint == mark else None
