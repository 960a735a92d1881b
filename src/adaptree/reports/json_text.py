"""JSON that any program can read: no NaN, no infinity, no lone surrogate, and nothing that steers a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from adaptree.reports.text import CONTROL


def json_value(value: Any) -> Any:
    """Return the value as JSON holds it: NaN and infinity as null, numbers and arrays of numpy and torch as plain."""
    if isinstance(value, str | int | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(
    value: Any, *, indent: int | None = None, sort_keys: bool = False, default: Callable[[Any], Any] | None = None
) -> str:
    """Return a value as JSON; control characters in its texts are escaped, which any reader undoes.

    `default` makes a JSON value of what has no form in JSON, such as a date; without it there is a TypeError.
    """
    plain = json_value(value)
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=indent, sort_keys=sort_keys, default=default)
    return CONTROL.sub(_escaped, text)


def _escaped(found: Any) -> str:
    """Return the escape of a character; a line end is one that separates the lines of an indented text."""
    return found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1]
