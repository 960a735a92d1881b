"""The Markdown that a card is made of; no text in it can mean anything to Markdown or HTML."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptree.tasks.record import Record

CUT = 120


def plain(text: object, cut: int = CUT) -> str:
    """Return any text as one cell of a Markdown table: on one line, cut, and escaped for Markdown and HTML."""
    line = " ".join(str(text).split())
    line = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs") else c for c in line)
    if len(line) > cut:
        line = line[: cut - 1].rstrip() + "…"
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", html.escape(line, quote=False))


def section(title: str, *blocks: str) -> str:
    """Return a section of the blocks that are not empty; '' when all are."""
    body = "\n\n".join(block for block in blocks if block)
    return f"## {title}\n\n{body}" if body else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def block(language: str, lines: Iterable[str]) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def code(value: Any) -> str:
    return "`" + " ".join(str(value).replace("`", "'").split()) + "`"


def quoted(text: str) -> str:
    return json.dumps(text)  # a JSON string is a YAML one


def number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else plain(value)


def score(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def value(number: Any) -> str:
    """Return a number with four digits, or words in its place."""
    return f"{number:.4g}" if isinstance(number, float) else "not a number" if number is None else plain(number)


def interval(record: Record, part: str, name: str) -> str:
    """Return the 95 % interval of a score, '' where the record has none."""
    bounds = record.intervals.get(part, {}).get(name)
    return f"{score(bounds[0])} to {score(bounds[1])}" if bounds else ""
