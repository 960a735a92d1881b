"""Options of a run that are written in a file: a toml, or a row of a list."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from adaptree.errors import UsageError, near
from adaptree.training.run import Run
from adaptree.training.settings import Settings

COMPUTING = ("device", "threads", "trust_remote_code", "allow_pickle")
"""Options of the machine and of whoever types the command, not of a file that lies in a folder."""
NOT_OF_A_FILE = ("data", "store", "start", "head", "resume", "joint", "temperature", "stream", "checkpoints",
                 "settings", *COMPUTING)  # fmt: skip
SIZE = {"size": "int | None", "layers": "str | None"}
"""Options that become part of the method, with their types."""


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return what a toml file says; raise UsageError if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"'{path}' cannot be read: {error.strerror}.", hint="--config run.toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"'{path}' is not toml: {error}.", hint='A line is: name = "value"') from error


def options_of_file(values: Mapping[str, Any], where: str, *, as_text: bool = False) -> dict[str, Any]:
    """Return the options of one data file's run; raise UsageError for an unknown name or a value of another type.

    `where` is what messages call the place that they are written in. With `as_text` the values are texts, as in a csv,
    and an empty one is not given.
    """
    types = {f.name: str(f.type) for f in (*fields(Run), *fields(Settings)) if f.name not in NOT_OF_A_FILE} | SIZE
    found: dict[str, Any] = {}
    for spelling, value in values.items():
        name = str(spelling).strip().replace("-", "_")
        if name not in types:
            if name in NOT_OF_A_FILE:
                raise UsageError(f"{where} has '{spelling}', which is not of one file.", hint="Leave it out there.")
            raise UsageError(
                f"{where} has '{spelling}', which is no option of a run.",
                hint=near(name, types) or "adaptree train --help lists them.",
            )
        if name in found:
            raise UsageError(f"{where} says '{spelling}' twice.")
        if as_text and not str(value or "").strip():
            continue
        kind = type_of(types[name])
        found[name] = _from_text(str(value).strip(), kind) if as_text else _typed(value, kind)
        if found[name] is None:
            wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "one value")
            raise UsageError(f"'{spelling}' in {where} is not {wanted}.")
    return found


def with_size(options: Mapping[str, Any], size: int | None, layers: str | None) -> dict[str, Any]:
    """Return options in which --size and --layers are part of the method."""
    from adaptree.methods import parse

    if size is None and layers is None:
        return dict(options)
    spelling = options.get("method", "houlsby")
    if str(spelling).strip().startswith("fuse("):
        raise UsageError("--size and --layers are of one method: what is fused has them.", hint="Leave them out.")
    method = parse(spelling)
    changes: dict[str, Any] = {} if layers is None else {"layers": layers}
    if size is not None:
        changes[method.main] = size
    return {**options, "method": parse(method, **changes)}


def type_of(annotation: str) -> type:
    """Return the type of an option's value: bool, int or float where the field's annotation names it, else str."""
    words = {word.strip() for word in annotation.split("|")}
    return next((kind for kind in (bool, int, float) if kind.__name__ in words), str)


def _typed(value: Any, kind: type) -> Any:
    """Return a toml's value as an option's; None if it is of another type."""
    if isinstance(value, bool) or kind is bool:
        return value if isinstance(value, bool) and kind is bool else None
    if not isinstance(value, str | int | float):
        return None
    if kind is str:
        return str(value)
    return value if isinstance(value, int) or (kind is float and isinstance(value, float)) else None


def _from_text(text: str, kind: type) -> Any:
    """Return a csv's value as an option's; None if it is of another type."""
    if kind is bool:
        return {"true": True, "yes": True, "false": False, "no": False}.get(text.lower())
    try:
        return kind(text)
    except ValueError:
        return None
