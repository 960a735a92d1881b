"""Tasks that need others to run: their parts come into a store with them, and stay while something needs them.

A record's NEEDS lists the parts by reference, each with the digest of its tensors. The digest is what counts: a part
that was removed and added again has another version and is still the same. Beside each part's folder,
`tasks/NAME/VERSION.needed` lists the versions that need it, so that `remove` does not have to read every record.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from adaptree.errors import AdaptreeError, StoreError, TaskNotFound
from adaptree.tasks import beside
from adaptree.tasks.beside import NEEDED
from adaptree.tasks.names import parse_reference, rename_references
from adaptree.tasks.record import FUSES, NEEDS, ON, RECORD, Record, checksum, corrupt
from adaptree.tasks.task import Task

if TYPE_CHECKING:
    from adaptree.tasks.store import Store


def load_parts(store: Store, record: Record, above: tuple[str, ...] = ()) -> dict[str, Task]:
    """Read the tasks that a stored task needs, by the references in its record; `above` are those that need it."""
    if record.reference in above:
        raise corrupt(record.reference, RECORD, "the task is a part of itself")
    above = (*above, record.reference)
    return {reference: _load(store, reference, digest, record, above) for reference, digest in needs(record).items()}


def add_parts(store: Store, task: Task) -> Task:
    """Add the parts of a task that the store does not have; return the task with the references that it has for them.

    Where a part's name belongs to another task here, the part is added as WHOLE-PART.
    """
    if not needs(task.record):
        return task
    names: dict[str, str] = {}
    for reference, digest in needs(task.record).items():
        here = find(store, reference, digest, exclude=names.values())
        if here is None:
            if reference not in task.parts:
                raise StoreError(
                    f"'{task.record.name}' is made of '{reference}', which is neither with it nor in the store.",
                    hint=f"Add {reference} first.",
                )
            part = _with_free_name(store, task.parts[reference], task.record.name, names.values())
            here = store.add(part).record.reference
        names[reference] = here
    extra = dict(task.record.extra)
    for key in (ON, FUSES):
        if extra.get(key):
            extra[key] = rename_references(extra[key], names)
    extra[NEEDS] = {names[reference]: digest for reference, digest in needs(task.record).items()}
    record = dataclasses.replace(task.record, extra=extra)
    return Task(record, task.tensors, {here: store.get(here) for here in names.values()})


def note_needs(store: Store, record: Record) -> None:
    """Note beside each part of a task that the task needs it."""
    for reference in needs(record):
        name, version = parse_reference(reference)
        store.append_beside(name, f"{version}{NEEDED}", record.reference)


def dependents(store: Store, reference: str) -> list[str]:
    """Return the references of the tasks that need this version, or any version of a name given without one."""
    name, version = parse_reference(reference)
    noted = _noted(store, name)
    if not noted:
        return []
    wanted = store.versions(name) if version is None else [version]
    found: set[str] = set()
    for other in noted:
        if version is None and parse_reference(other)[0] == name:
            continue  # versions of one name are removed together
        for part, digest in stored_needs(store, other).items():
            if parse_reference(part)[0] == name:
                here = find(store, part, digest) or part  # it may have another number here than where it comes from
                if parse_reference(here)[1] in wanted:
                    found.add(other)
    return sorted(found)


def needs(record: Record) -> dict[str, str]:
    """Return {reference: digest} of the tasks that a task needs to run."""
    return dict(record.extra.get(NEEDS, {}))


def _load(store: Store, reference: str, digest: str, record: Record, above: tuple[str, ...]) -> Task:
    if here := find(store, reference, digest):
        found = store.get(here, above=above)
        version = parse_reference(reference)[1] or 0
        return Task(dataclasses.replace(found.record, version=version), found.tensors, found.parts)
    if reference in store:
        store.get(reference)  # raises if the part is there, but damaged
    raise TaskNotFound(
        f"'{record.reference}' is made of '{reference}', which is not in the store any more.",
        hint=f"Put {reference.partition('@')[0]} back, or compose '{record.name}' anew.",
    )


def find(store: Store, reference: str, digest: str, exclude: Collection[str] = ()) -> str | None:
    """Return the version of the name that has these tensors, the one of the reference first; None if none has."""
    name, version = parse_reference(reference)
    for number in sorted(store.versions(name), key=lambda number: number != version):
        if (here := f"{name}@{number}") not in exclude and _digest(store, here) == digest:
            return here
    return None


def _with_free_name(store: Store, part: Task, whole: str, taken: Collection[str]) -> Task:
    """Return the part under its own name, or under WHOLE-PART if that name belongs to another task here."""
    name = part.record.name
    if all(f"{name}@{version}" in taken for version in store.versions(name)):
        return part
    record = dataclasses.replace(part.record, name=part_name(whole, name), version=0)
    return Task(record, part.tensors, part.parts)


def part_name(whole: str, part: str) -> str:
    """Return WHOLE-PART, the name of a part whose own belongs to another task."""
    space, slash, last = whole.rpartition("/")
    return f"{space}{slash}{f'{last}-{part}'.replace('/', '-')[:64]}"


def rename(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return a record's JSON values with other references to its parts, and the checksum for them."""
    extra = dict(values["extra"])
    for key in (ON, FUSES):
        if extra.get(key):
            extra[key] = rename_references(extra[key], names)
    extra[NEEDS] = {names.get(reference, reference): digest for reference, digest in extra[NEEDS].items()}
    said = {**{key: value for key, value in values.items() if key != "checksum"}, "extra": extra}
    return {**said, "checksum": checksum(said)}


def _noted(store: Store, name: str) -> set[str]:
    """Return the tasks that are noted beside any version of a name, removed versions included."""
    found: set[str] = set()
    for note in store.beside(name):
        if note.endswith(NEEDED):
            found |= set(beside.lines(store.read_beside(name, note)))
    return found


def _digest(store: Store, reference: str) -> str | None:
    """Return the digest in a version's record; None if it is gone or damaged."""
    try:
        return store.record(reference).digest
    except AdaptreeError:
        return None


def stored_needs(store: Store, reference: str) -> dict[str, str]:
    """Return what a stored version needs; nothing if it is gone or damaged."""
    try:
        return needs(store.record(reference))
    except AdaptreeError:
        return {}
