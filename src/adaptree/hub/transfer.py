"""push and pull: copy tasks between two stores, each a folder or behind a URL, or to and from the Hugging Face hub."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adaptree.data.events import Listener, silent
from adaptree.errors import BadName, TaskCorrupt, TaskNotFound, UsageError
from adaptree.hub import hf
from adaptree.models.opening import base_of
from adaptree.reports.json_text import json_text
from adaptree.tasks import beside, parts
from adaptree.tasks.beside import NOTES, TAG
from adaptree.tasks.digests import renew_sums
from adaptree.tasks.files import cannot_write, replace_file
from adaptree.tasks.record import RECORD, Record, content, read_values
from adaptree.tasks.signing import checked_signatures
from adaptree.tasks.store import Store
from adaptree.tasks.task import read_task

if TYPE_CHECKING:
    from adaptree.models.base import Base


@dataclass(frozen=True)
class Copied:
    """A version that `push` or `pull` was asked for, and what became of it."""

    task: str
    """The reference that it has where it was copied to."""
    source: str
    """The reference that it has where it comes from."""
    versions: int
    """How many were added: 0 if it was there, more than 1 if tasks that it needs came with it."""
    bytes: int
    """Of the tensors that were added."""


def push(
    references: Sequence[str],
    to: Store | str | Path,
    *,
    store: Store | str | Path,
    versions: bool = False,
    tags: bool = False,
    private: bool = False,
    on_event: Listener = silent,
) -> list[Copied]:
    """Copy tasks of a store, with the tasks that they need, to another one; none named: all of them.

    A version that is there already, under whatever number, is not copied again. With `versions` all versions of a name
    are copied, not only the newest; with `tags` their tags and notes, too. `on_event` is called for each version. `to`
    may be a repository of the Hugging Face hub for one task, hf://me/reviews; a new one is `private` or not.
    """
    source = open_store(store)
    if _on_hub(to):
        if len(references) != 1 or versions or tags:
            raise UsageError("a repository of the hub holds one version.", hint=f"adaptree push TASK {to}")
        done = hf.push(source, references[0], str(to), private=private or None)
        return [Copied(done.url, done.reference, 1, done.bytes)]
    if private:
        raise UsageError("--private is for a repository of the hub.", hint="Leave it out.")
    target = open_store(to)
    return _copy_all(source, references or source.names(), target, versions, tags, on_event)


def pull(
    source: Store | str | Path,
    references: Sequence[str] = (),
    *,
    store: Store | str | Path,
    versions: bool = False,
    tags: bool = False,
    name: str | None = None,
    base: Base | str | Path | None = None,
    on_event: Listener = silent,
) -> list[Copied]:
    """Copy tasks from a store into another one; none named: all that are there, or the one that a URL ends in.

    `source` may be a repository of the Hugging Face hub, hf://me/reviews[@REVISION]: then `name` is another name for
    the task, and `base` the one to check it against, which a repository of AdapterHub or peft needs.
    """
    if _on_hub(source):
        if references or versions or tags:
            raise UsageError("a repository of the hub holds one version.", hint=f"adaptree pull {source}")
        opened = None if base is None else base_of(base, "auto", None)
        task, new = hf.pull(str(source), open_store(store), name=name, base=opened)
        return [Copied(task.record.reference, str(source), int(new), task.record.file_bytes * new)]
    if name is not None or base is not None:
        raise UsageError(f"--{'base' if name is None else 'as'} is for a repository of the hub.", hint="Leave it out.")
    if references:
        where = open_store(source)
    else:
        where, references = _named_in(source)
    return _copy_all(where, references, open_store(store), versions, tags, on_event)


def _on_hub(where: Store | str | Path) -> bool:
    return isinstance(where, str) and where.startswith(hf.SCHEME)


def open_store(where: Store | str | Path) -> Store:
    """Return the store in a folder or behind a URL."""
    return where if isinstance(where, Store) else Store(where)


def _named_in(source: Store | str | Path) -> tuple[Store, list[str]]:
    """Return a store and its tasks; or, if `source` is STORE/TASK, that store and that task."""
    whole = open_store(source)
    if names := whole.names():
        return whole, names
    head, task = whole.location, ""
    for _ in range(2):  # reviews, or lang/qu
        head, _, last = head.rpartition("/")
        task = f"{last}/{task}".rstrip("/")
        if not head or head.endswith("/"):
            break
        try:
            if task in (above := open_store(head)):
                return above, [task]
        except BadName:
            break
    raise TaskNotFound(f"there is no store with tasks at {whole.location}.", hint="adaptree pull URL [TASK…]")


def _copy_all(
    source: Store, references: Sequence[str], target: Store, versions: bool, tags: bool, on_event: Listener
) -> list[Copied]:
    wanted = list(_wanted(source, references, versions))
    copied = []
    for record in wanted:
        copied.append(_copy(source, record, target, versions, tags))
        on_event({"event": "copied", "number": len(copied), "of": len(wanted), **dataclasses.asdict(copied[-1])})
    return copied


def _wanted(source: Store, references: Sequence[str], versions: bool) -> Iterator[Record]:
    """Yield the record of each version to copy, the oldest of a name first; raise TaskNotFound if one is not there."""
    for reference in references:
        newest = source.record(reference)
        every = source.versions(newest.name) if versions and "@" not in reference else []
        yield from (source.record(f"{newest.name}@{number}") for number in every) if every else (newest,)


def _has_newer(source: Store, record: Record, target: Store) -> bool:
    """Return whether the target has a newer version of the very same task under its own number."""
    both = set(source.versions(record.name)) & set(target.versions(record.name))
    newer = (f"{record.name}@{number}" for number in sorted(both) if number > record.version)
    return any(_same(target, source.record(reference)) == reference for reference in newer)


def _copy(source: Store, record: Record, target: Store, versions: bool, tags: bool) -> Copied:
    """Copy one version with its parts; it keeps its number if the target has no higher one.

    One of all `versions` of its task keeps it, too, if the target has a newer one of them.
    """
    there = _same(target, record)
    added: list[Record] = []
    if there is None:
        older = versions and _has_newer(source, record, target)
        there = _add(source, record, target, record.name, added, older=older)
        for mark in source.marks(record.reference):
            target.mark(there, mark)
    if tags:
        _copy_beside(source, record, target, int(there.partition("@")[2]))
    return Copied(there, record.reference, len(added), sum(each.file_bytes for each in added))


def _same(target: Store, record: Record) -> str | None:
    """Return the version of the name with the same weights and record, apart from numbers; None if there is none."""
    wanted = content(record.to_json())
    for number in sorted(target.versions(record.name), key=lambda number: number != record.version):
        here = f"{record.name}@{number}"
        with contextlib.suppress(TaskCorrupt, TaskNotFound):
            if content(target.record(here).to_json()) == wanted:
                return here
    return None


def _add(source: Store, record: Record, target: Store, name: str, added: list[Record], *, older: bool = False) -> str:
    """Copy the files of a version as they are, after those of the parts that the target lacks; return its reference.

    A part whose name belongs to another task there is called WHOLE-PART, and only then does the record change.
    """
    renamed = {}
    for part, digest in parts.needs(record).items():
        own = part.partition("@")[0]
        here = parts.find(target, part, digest)
        if here is None:
            if (origin := parts.find(source, part, digest)) is None:
                raise TaskNotFound(
                    f"'{record.reference}' is made of '{part}', which is not in {source.location} any more.",
                    hint=f"Put {own} back, or compose '{record.name}' anew.",
                )
            free = own if not target.versions(own) else parts.part_name(name, own)
            here = _add(source, source.record(origin), target, free, added)
        if here.partition("@")[0] != own:
            renamed[part] = here
    staging = target.path / "tmp" / f"copy-{uuid.uuid4().hex}"
    try:
        shutil.copytree(source.path_of(record.reference), staging)
        read_task(staging, called=record.reference)  # raises if it is damaged
        checked_signatures(staging, called=record.reference)
        if renamed:
            values = parts.rename(read_values(staging, called=record.reference), renamed)
            replace_file(staging / RECORD, (json_text(values, indent=1, sort_keys=True) + "\n").encode())
            renew_sums(staging)
        here = target.add_folder(staging, name, record.version, older=older)
    except OSError as error:
        raise cannot_write(target.path, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    added.append(record)
    return here


def _copy_beside(source: Store, record: Record, target: Store, there: int) -> None:
    """Copy the tags that name a version, and the notes about it that the target does not have."""
    name, number = record.name, record.version
    for file in source.beside(name):
        if file.endswith(TAG) and beside.lines(source.read_beside(name, file)) == [str(number)]:
            target.write_beside(name, file, str(there))
    known = beside.lines(target.read_beside(name, f"{there}{NOTES}"))
    for line in beside.lines(source.read_beside(name, f"{number}{NOTES}")):
        if line not in known:
            target.append_beside(name, f"{there}{NOTES}", line)
