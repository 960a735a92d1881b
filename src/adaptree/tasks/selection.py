"""Which tasks of a store are listed, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adaptree.tasks.summary import Summary


class Sort(StrEnum):
    name = "name"
    score = "score"
    age = "age"
    size = "size"


def select(
    summaries: Iterable[Summary],
    pattern: str = "",
    *,
    kind: str = "",
    base: str = "",
    method: str = "",
    sort: Sort | str = Sort.name,
) -> list[Summary]:
    """Return the summaries that have a name, kind, base and method as wanted: the best, newest or largest first.

    `pattern` is a part of the name, or with * and ? the whole of it. `base` is a name, or the first eight letters or
    more of a fingerprint. `method` is a name, or a spelling with its number: houlsby:64.
    """
    has_method = _method_test(method)
    found = [
        summary
        for summary in summaries
        if _matches(summary.name, pattern)
        and kind in ("", summary.kind)
        and (base in ("", summary.base) or (len(base) >= 8 and summary.fingerprint.startswith(base)))
        and has_method(summary.method)
    ]
    found.sort(key=lambda summary: summary.name)
    if sort == Sort.age:
        found.sort(key=lambda summary: summary.created, reverse=True)
    elif sort == Sort.size:
        found.sort(key=lambda summary: summary.bytes, reverse=True)
    elif sort == Sort.score:
        found.sort(key=_score_order())
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) if set("*?[") & set(pattern) else pattern in name


def _method_test(method: str) -> Callable[[str], bool]:
    """Return a function that tells whether a record's method is the wanted one."""
    if not method:
        return lambda spelling: True
    if method.isidentifier():
        return lambda spelling: spelling.partition("(")[0] == method
    from adaptree.methods import parse

    wanted = str(parse(method))
    return lambda spelling: spelling == wanted


def _score_order() -> Callable[[Summary], tuple[int, float]]:
    """Return a key that puts the best score first, errors (mse, perplexity) after all others, and none at all last."""
    from adaptree import kinds
    from adaptree.kinds.metrics import LOWER_IS_BETTER

    kinds.load_plugins(strict=False)

    def order(summary: Summary) -> tuple[int, float]:
        if summary.score is None:
            return 2, 0.0
        return (1, summary.score) if summary.metric in LOWER_IS_BETTER else (0, -summary.score)

    return order
