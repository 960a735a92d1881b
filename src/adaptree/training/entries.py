"""The entries of a stream: which files of a folder, or of a list, become tasks, with their parts and settings.

reviews.csv                 becomes the task 'reviews'; any file or folder that `adaptree check` reads
reviews.validation.csv      its validation part, and reviews.test.csv its test part
reviews.toml                its settings: the options of `adaptree train`
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from adaptree.data import frames
from adaptree.data.parts import all_parts
from adaptree.data.read import suffix
from adaptree.data.stem import as_name, without_endings
from adaptree.data.texts import PARTS, label_folders
from adaptree.errors import AdaptreeError, DataError, UsageError, near
from adaptree.tasks.names import check_name
from adaptree.training.config import options_of_file, read_toml

FILE, NAME, TOML = "file", "name", ".toml"
OTHER_PARTS = ("validation", "test")
TABLES = {".csv": ",", ".tsv": "\t"}
LINES = (".jsonl", ".ndjson")
Signature = tuple[tuple[str, int, int], ...]
"""The name, size and time of change of each file."""


@dataclass(frozen=True)
class Entry:
    """A file, or a folder that is one dataset, and the task that it becomes."""

    path: Path
    task: str
    options: dict[str, Any] = field(default_factory=dict)
    """The settings of its own, and the paths of its validation and test parts."""
    problem: str = ""
    """Why it cannot be trained on, as far as that is known without reading it."""

    @property
    def paths(self) -> list[Path]:
        """The file and its parts."""
        return [self.path, *(Path(self.options[part]) for part in OTHER_PARTS if part in self.options)]


def find_entries(source: Path, namespace: str | None = None) -> tuple[list[Entry], list[str]]:
    """Return the entries of a folder, by name, or of a list, in its order; and the names of files that are not used.

    Several entries that would be the same task have that as their problem.
    """
    if source.is_dir():
        entries, unused = _of_folder(source, namespace)
    elif source.is_file():
        entries, unused = [_entry(path, namespace, own) for path, own in _of_list(source)], []
    else:
        beside = [path.name for path in source.parent.iterdir()] if source.parent.is_dir() else []
        raise DataError(f"no such folder or list: '{source}'.", hint=near(source.name, beside))
    counts = Counter(entry.task for entry in entries)
    return [_refuse_twins(entry, entries) if counts[entry.task] > 1 else entry for entry in entries], unused


def signature(paths: Iterable[Path]) -> Signature:
    """Return what changes when files do: their names, sizes and times; a file that is not there has none."""
    found = []
    for file in (file for path in paths for file in _files(path)):
        try:
            stat = file.stat()
        except OSError:
            continue
        found.append((str(file), stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def digest(path: Path) -> str:
    """Return the sha256 over a file's ending and content, or over the names and contents of a folder's files."""
    whole = hashlib.sha256("".join(path.suffixes[-2:]).lower().encode())
    for file in _files(path):
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"\n{os.path.relpath(file, path)} {content}".encode(errors="surrogateescape"))
    return whole.hexdigest()


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))


def _of_folder(folder: Path, namespace: str | None) -> tuple[list[Entry], list[str]]:
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    data = [path for path in inside if _is_data(path)]
    if frames.is_saved(folder) or (label_folders(folder) and not any(path.is_file() for path in data)):
        raise UsageError(
            f"'{folder}' is one dataset, not a folder of several.",
            hint=f"adaptree train {folder} --name {as_name(folder.name)}",
        )
    parts: dict[tuple[str, str], list[Path]] = {}
    for path in data:
        parts.setdefault(_split_part(path), []).append(path)
    mains = {name: paths for (name, part), paths in parts.items() if part == "train"}
    used = {folder / f"{name}{TOML}" for name in mains}
    entries = []
    for name, paths in mains.items():
        others = {part: parts.get((name, part), []) for part in OTHER_PARTS}
        used.update(*others.values(), paths)
        own = {part: str(files[0]) for part, files in others.items() if files}
        twice = next((files for files in others.values() if len(files) > 1), None)
        for path in paths:
            entry = _entry(path, namespace, {}, own)
            if twice and not entry.problem:
                entry = replace(
                    entry, problem=f"'{twice[0].name}' and '{twice[1].name}' are both its part. Remove one."
                )
            entries.append(entry)
    return sorted(entries, key=lambda entry: entry.path.name), [path.name for path in inside if path not in used]


def _is_data(path: Path) -> bool:
    """Return whether this is a file with a known ending, or a folder that is one dataset."""
    if path.is_dir():
        return frames.is_saved(path) or bool(label_folders(path)) or bool(all_parts(path))
    try:
        return path.suffix.lower() != TOML and bool(suffix(path)) and path.is_file()
    except DataError:
        return False


def _split_part(path: Path) -> tuple[str, str]:
    """Return a file's name without endings and which part it is: ('reviews', 'test') for reviews.test.csv."""
    bare = path if path.is_dir() else without_endings(path)
    word = bare.suffix.lower().removeprefix(".")
    part = next((part for part, words in PARTS.items() if word in words), None)
    return (bare.name, "train") if part is None or path.is_dir() else (bare.stem, part)


def _entry(path: Path, namespace: str | None, listed: dict[str, Any], parts: dict[str, str] | None = None) -> Entry:
    """Return a file's entry; what a list says of it goes before its toml, and that before the parts beside it."""
    bare, _ = _split_part(path)
    task = as_name(bare)
    try:
        toml = path.with_name(f"{bare}{TOML}")
        own = options_of_file(read_toml(toml), f"'{toml.name}'") if toml.is_file() else {}
        for part in OTHER_PARTS:  # a path in a toml is as seen from there
            if part in own:
                own[part] = str(path.parent / own[part])
        options = {**(parts or {}), **own, **listed}
        task = str(options.pop(NAME, task))
        task = check_name(task if namespace is None else f"{namespace}/{task}")
    except AdaptreeError as error:
        return Entry(path, task if namespace is None else f"{namespace}/{task}", {}, str(error))
    return Entry(path, task, options)


def _refuse_twins(entry: Entry, entries: list[Entry]) -> Entry:
    others = [other.path.name for other in entries if other.task == entry.task and other is not entry]
    return replace(
        entry,
        problem=f"it would be the task '{entry.task}', and so would '{others[0]}'.  "
        f"Rename one, or give it a name in its {TOML[1:]}.",
    )


def _of_list(file: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the path of each file that a list names, as seen from the list, and the settings that stand beside it."""
    ending = file.suffix.lower()
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeError) as error:
        raise DataError(
            f"the list '{file}' cannot be read: {error}.", hint="It is a text, csv or jsonl file."
        ) from None
    if ending in TABLES:
        rows: Iterable[tuple[int, Any]] = enumerate(csv.DictReader(lines, delimiter=TABLES[ending]), 2)
    elif ending in LINES:
        rows = ((number, _loads(line)) for number, line in enumerate(lines, 1) if line.strip())
    else:
        rows = ((number, {FILE: line.strip()}) for number, line in enumerate(lines, 1))
        rows = [(number, row) for number, row in rows if row[FILE] and not row[FILE].startswith("#")]
    for number, row in rows:
        if not isinstance(row, dict) or not isinstance(row.get(FILE), str) or not row[FILE].strip():
            what = f"'{file.name}' is no list of files: line {number} has no '{FILE}'."
            raise DataError(
                what, hint=f"To train on it: adaptree train {file} --name {as_name(without_endings(file).name)}"
            )
        named = row.pop(FILE).strip()
        own = options_of_file(row, f"line {number} of '{file.name}'", as_text=ending in TABLES)
        for part in OTHER_PARTS:
            if part in own:
                own[part] = str(file.parent / own[part])
        yield file.parent / named, own


def _loads(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
