"""The Markdown that a card is made of; no text in it can mean anything to Markdown or HTML."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from adaptree.reports.text import printable

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

CUT = 120
NUMBER = re.compile(r"[-+]?[\d,.]+(e[-+]?\d+)?( %)?|not a number|")
"""A cell of a table that reads as a number, or has none."""


def plain(text: object, cut: int = CUT) -> str:
    """Return any text as one cell of a Markdown table: on one line, cut, and escaped for Markdown and HTML."""
    line = printable(text)
    if len(line) > cut:
        line = line[: cut - 1].rstrip() + "…"
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(line, quote=False))


def section(title: str, *blocks: str) -> str:
    """Return a section of the blocks that are not empty; '' when all are."""
    body = "\n\n".join(block for block in blocks if block)
    return f"## {title}\n\n{body}" if body else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; a column of numbers stands to the right, so that their decimals are below each other."""
    body = [list(row) for row in rows]
    numeric = [any(column) and all(map(NUMBER.fullmatch, column)) for column in zip(*body, strict=True)]
    rule = ["---:" if right else "---" for right in numeric] or ["---"] * len(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, rule, *body])


def block(language: str, lines: Iterable[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def code(value: Any) -> str:
    return "`" + printable(value).replace("`", "'") + "`"


def quoted(text: str) -> str:
    return json.dumps(text)  # a JSON string is a YAML one


def number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else plain(value)


def score(value: float | None, digits: int = 4) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def interval(record: Record, part: str, name: str) -> str:
    """Return the 95 % interval of a score, '' where the record has none."""
    bounds = record.intervals.get(part, {}).get(name)
    return f"{score(bounds[0])} to {score(bounds[1])}" if bounds else ""
