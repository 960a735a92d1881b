"""The folders of a store: a task's name is a path, its versions are the numbers in it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from adaptree.errors import StoreError
from adaptree.tasks.names import NAME, VERSION
from adaptree.tasks.record import RECORD

DAY = 24 * 60 * 60


def scan(tasks: Path) -> Iterator[tuple[str, list[int]]]:
    """Yield each task's name and its versions, ascending, from the folders' names alone."""
    return ((name, versions) for name, versions, _ in contents(tasks))


def contents(tasks: Path) -> Iterator[tuple[str, list[int], list[str]]]:
    """Yield each task's name, its versions, ascending, and the names of the small files beside them.

    Raise StoreError where there is a file in the place of the store; where there is nothing, it is empty.
    """
    found = next(place for place in (tasks, *tasks.parents) if os.path.lexists(place))
    if not found.is_dir():
        what = "a file" if found.is_file() else "no folder that can be read"
        raise StoreError(f"'{found}' is {what}, not a store.", hint="Name its folder: --store DIR, or ADAPTREE_STORE")
    todo = [entry.name for entry in folders_in(tasks)]
    while todo:
        name = todo.pop()
        if not NAME.fullmatch(name):
            continue  # not a task's folder, but a file browser's, for instance
        versions: list[int] = []
        files: list[str] = []
        for entry in entries_in(tasks / name):
            if not entry.is_dir():
                files.append(entry.name)
            elif is_version(entry):
                versions.append(int(entry.name))
            else:
                todo.append(f"{name}/{entry.name}")
        if versions:
            yield name, sorted(versions), sorted(files)


def is_version(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder is a version: its name is a number, and it is not a task of that name ('lang/3')."""
    if not VERSION.fullmatch(entry.name):
        return False
    return os.path.exists(os.path.join(entry.path, RECORD)) or not folders_in(Path(entry.path))


def has_only_versions(folder: Path) -> bool:
    """Return whether a folder holds versions of one task, and no tasks of a namespace with the same name."""
    return all(is_version(entry) for entry in folders_in(folder))


def folders_in(path: Path) -> list[os.DirEntry[str]]:
    """Return the folders in a folder; none if it does not exist."""
    return [entry for entry in entries_in(path) if entry.is_dir()]


def entries_in(path: Path) -> list[os.DirEntry[str]]:
    """Return the files and folders in a folder; none if it does not exist."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}.", hint="Make the folder readable.") from error


def delete_stale(tmp: Path) -> None:
    """Delete the temporary folders that killed processes left behind more than a day ago."""
    tmp.mkdir(parents=True, exist_ok=True)
    for entry in folders_in(tmp):
        try:
            stale = time.time() - entry.stat().st_mtime > DAY
        except FileNotFoundError:
            continue  # another process finished with it
        if stale:
            shutil.rmtree(entry.path, ignore_errors=True)
