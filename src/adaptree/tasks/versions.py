"""Going back to an earlier version of a task, and clearing old ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaptree.errors import StoreError, TaskNotFound, UsageError
from adaptree.tasks.names import parse_reference
from adaptree.tasks.record import ROLLED_BACK
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from adaptree.tasks.store import Store


def rollback(store: Store, reference: str) -> Task:
    """Add the weights and the scores of an earlier version as the newest one; return it.

    The versions between stay as they are. The new record says which version it has its weights from.
    """
    task = store[reference]
    name, version = task.record.name, task.record.version
    newest = store.versions(name)[-1]
    if version == newest:
        raise UsageError(
            f"'{name}@{version}' is the newest version of '{name}' already.", hint=f"adaptree history {name}"
        )
    extra = {**task.record.extra, ROLLED_BACK: f"{name}@{version}"}
    record = dataclasses.replace(task.record, version=0, created="", extra=extra)
    added = store.add(Task(record, task.tensors, task.parts))
    with suppress(TaskNotFound):  # another process has removed one of the two already
        for word in sorted(store.marks(f"{name}@{version}")):
            store.mark(added.record.reference, word)
        store.note(added.record.reference, f"rolled back to version {version}, from version {newest}")
    return added


@dataclass(frozen=True, kw_only=True)
class Old:
    """A version older than those that `prune` keeps."""

    task: str
    removed: bool
    why: str = ""
    """why it was kept"""
    bytes: int = 0
    """of its files"""


def prune(store: Store, names: Sequence[str] = (), *, keep: int = 3, dry_run: bool = False) -> list[Old]:
    """Remove all but the newest `keep` versions of each task, or of those named; return the older ones.

    A version that has a tag, or that a task which stays needs, is kept. With `dry_run` nothing is removed.
    """
    if keep < 1:
        raise UsageError("the newest version of a task always stays.", hint="--keep 1, or more")
    for name in names:
        if not store.versions(name):
            store.path_of(name)  # raises TaskNotFound, with near names
    old = [f"{name}@{number}" for name in names or store.names() for number in store.versions(name)[:-keep]]
    needed = {reference: store.dependents(reference) for reference in old}
    kept = {reference: why for reference in old if (why := _tagged(store, reference))}
    while parts := {  # what a version that stays needs, stays too
        reference: f"part of {', '.join(staying)}"
        for reference in old
        if reference not in kept and (staying := [one for one in needed[reference] if one not in old or one in kept])
    }:
        kept |= parts
    sizes = {reference: _bytes(store, reference) for reference in old}
    doomed = [] if dry_run else [reference for reference in old if reference not in kept]
    while doomed:  # a version goes after those that need it
        for reference in [one for one in doomed if not set(needed[one]) & set(doomed)] or list(doomed):
            doomed.remove(reference)
            try:
                store.remove(reference)
            except TaskNotFound:
                pass  # another process was quicker
            except StoreError as error:  # it was tagged, or became a part of a task, meanwhile
                kept[reference] = error.what
    return [Old(task=one, removed=one not in kept, why=kept.get(one, ""), bytes=sizes[one]) for one in old]


def _tagged(store: Store, reference: str) -> str:
    """Return the tags of a version in words; '' if it has none."""
    name, version = parse_reference(reference)
    found = [tag for tag, number in store.tags(name).items() if number == version]
    return f"tagged {', '.join(found)}" if found else ""


def _bytes(store: Store, reference: str) -> int:
    """Return the size of a version's files; 0 if it is gone."""
    try:
        return sum(path.stat().st_size for path in store.path_of(reference).iterdir())
    except (OSError, TaskNotFound):
        return 0
