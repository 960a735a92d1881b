"""The parts that a dataset brings itself: train, validation and test."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data import frames
from adaptree.data.events import Listener, note, silent
from adaptree.data.texts import PARTS, label_folders
from adaptree.errors import DataError

if TYPE_CHECKING:
    from adaptree.data.read import Source


def all_parts(source: Any) -> dict[str, Source]:
    """Return the parts of a dataset by their own names; {} for what is one table.

    There are parts in a DatasetDict, in the folder that its `save_to_disk` writes, and in a folder with train/ and
    test/, each with a folder of texts for every label.
    """
    if not isinstance(source, str | os.PathLike):
        return dict(source) if frames.is_dict_of_parts(source) else {}
    path = Path(source)
    if names := frames.saved_parts(path):
        return {name: path / name for name in names}
    try:
        known = sorted(name for names in PARTS.values() for name in names if (path / name).is_dir())
    except (OSError, ValueError):
        return {}
    return {name: path / name for name in known if label_folders(path / name)}


def own_parts(
    source: Any,
    validation: Any = None,
    test: Any = None,
    on_event: Listener = silent,
    use: Collection[str] = tuple(PARTS),
) -> tuple[Any, Any, Any]:
    """Return what to train, to validate and to test on: the dataset's own parts, except where the user gives others.

    `use` are the parts that are wanted at all. What is used, and what is not, is sent as a note.
    """
    parts = all_parts(source)
    if not parts:
        return source, validation, test
    given = {"train": None, "validation": validation, "test": test}
    own = {part: name for part, names in PARTS.items() for name in reversed(names)
           if name in parts and part in use and given[part] is None}  # fmt: skip
    if "train" not in own:
        raise DataError(f"{several(source, parts)}; none is called train.", hint=give_one(source, parts))
    unused = [name for name in parts if name not in own.values()]
    rest = f"; not {', '.join(unused)}" if unused else ""
    note(on_event, f"{several(source, parts)}. Used as such: {', '.join(own.values())}{rest}.")
    train, validation, test = (parts[own[part]] if part in own else given[part] for part in PARTS)
    return train, validation, test


def several(source: Any, parts: Mapping[str, Any]) -> str:
    """Return the beginning of a sentence about a dataset that has parts."""
    name = f"'{Path(source).name}'" if isinstance(source, str | os.PathLike) else "the dataset"
    return f"{name} has several parts: {', '.join(map(str, parts))}"


def give_one(source: Any, parts: Mapping[str, Any]) -> str:
    """Return the hint with which one part is chosen."""
    best = next((name for names in reversed(PARTS.values()) for name in names if name in parts), next(iter(parts)))
    if isinstance(source, str | os.PathLike):
        return f"Give one of them: {Path(source) / best}"
    return f'Give one of them: dataset["{best}"].'
