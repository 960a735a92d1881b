"""The folders of a store: a task's name is a path, its versions are the numbers in it."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from adaptree.errors import StoreError
from adaptree.tasks.task import NAME, RECORD, VERSION

DAY = 24 * 60 * 60


def scan(tasks: Path) -> Iterator[tuple[str, list[int]]]:
    """Each task's name and its versions, in ascending order, from the folders' names alone."""
    todo = [entry.name for entry in folders_in(tasks)]
    while todo:
        name = todo.pop()
        if not NAME.fullmatch(name):
            continue  # a folder that no task lies in, such as a file browser's
        versions: list[int] = []
        for entry in folders_in(tasks / name):
            if is_version(entry):
                versions.append(int(entry.name))
            else:
                todo.append(f"{name}/{entry.name}")
        if versions:
            yield name, sorted(versions)


def is_version(entry: os.DirEntry[str]) -> bool:
    """A number is a version, unless it is a task of a namespace ('lang/3'), which holds only versions of its own."""
    if not VERSION.fullmatch(entry.name):
        return False
    return os.path.exists(os.path.join(entry.path, RECORD)) or not folders_in(Path(entry.path))


def only_versions(folder: Path) -> bool:
    """Whether a task's folder holds no tasks of the namespace that has its name."""
    return all(is_version(entry) for entry in folders_in(folder))


def folders_in(path: Path) -> list[os.DirEntry[str]]:
    """The folders in a folder; none when it is not there."""
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}.", hint="Make the folder readable.") from error


def sweep(tmp: Path) -> None:
    """Delete what killed processes left on its way more than a day ago."""
    tmp.mkdir(parents=True, exist_ok=True)
    for entry in folders_in(tmp):
        try:
            stale = time.time() - entry.stat().st_mtime > DAY
        except FileNotFoundError:
            continue  # another process was done with it
        if stale:
            shutil.rmtree(entry.path, ignore_errors=True)
