"""JSON that somebody else may have written: read strictly, and compared with the types that are expected."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Sequence
from functools import cache
from typing import Any

MOST_NESTED = 64
"""Lists and objects within each other; what adaptree and transformers write has some ten."""
LARGEST = 2**64
"""Whole numbers at or beyond this are refused: no count, size or label is so large."""


def loads(data: bytes | str, *, finite: bool = True) -> Any:
    """Return what a JSON text holds; raise ValueError, with the reason, for a key twice, a huge number or deep nesting.

    Without `finite`, NaN, infinity and huge whole numbers are let through: many a library writes them (tokenizers of
    Hugging Face have a `model_max_length` of 10^30).
    """
    try:
        value = json.loads(
            data,
            object_pairs_hook=_unique,
            parse_int=_whole_number if finite else None,
            parse_float=_finite if finite else None,
            parse_constant=_no_constant if finite else None,
        )
    except RecursionError:
        raise ValueError(f"more than {MOST_NESTED} lists or objects within each other") from None
    if isinstance(value, dict | list) and _is_nested(value):
        raise ValueError(f"more than {MOST_NESTED} lists or objects within each other")
    return value


def has_type(value: Any, hint: Any) -> bool:
    """Return whether a JSON value fits a type annotation: str, bool, int, float, list[…], dict[str, …], A | B, Any.

    True and false are no numbers, an int is a float, a list fits tuple[…], and infinity and NaN fit nothing.
    """
    if hint is Any:
        return True
    if hint is str:
        return isinstance(value, str)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    origin, inside = _parts(hint)
    if origin in (types.UnionType, typing.Union):
        return any(has_type(value, part) for part in inside)
    if origin is dict:
        key, of = inside or (str, Any)
        if not isinstance(value, dict) or not all(has_type(k, key) for k in value):
            return False
        return of is Any or all(has_type(v, of) for v in value.values())
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(has_type(item, inside[0] if inside else Any) for item in value)
    return isinstance(value, origin) if isinstance(origin, type) else True


@cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what a type annotation is, and what it is of: list[int] is list, of int."""
    return typing.get_origin(hint) or hint, typing.get_args(hint)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.60} is there twice")
    return found


def _whole_number(digits: str) -> int:
    if len(digits) > len(str(LARGEST)) + 1 or abs(number := int(digits)) >= LARGEST:
        raise ValueError(f"the number {digits[:12]}… of {len(digits):,} digits is too large")
    return number


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"the number {digits[:24]} is too large")
    return number


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _is_nested(value: Any) -> bool:
    """Return whether lists and objects lie deeper within each other than MOST_NESTED."""
    level = [value]
    for _ in range(MOST_NESTED + 1):
        items = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for each in items for item in each if isinstance(item, dict | list)]
        if not level:
            return False
    return True
