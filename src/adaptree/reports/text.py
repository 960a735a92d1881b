"""Texts of users wherever they are shown, on a terminal, in figures and in pages: on one line, short and harmless."""

from __future__ import annotations

import html
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

MOST_COLUMNS = 22
"""The width of a label in a figure, in letters."""

CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Characters that steer a terminal or the order of letters, and those that are no text: C0, C1, bidi controls, …"""


def visible(text: object) -> str:
    """Return a text on one line with its control characters spelled out, as a terminal may show it: \\x1b[31m, \\n."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def printable(text: object) -> str:
    """Return a text on one line, in which control characters, and those that XML cannot hold, become U+FFFD."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", " ".join(str(text).split()))


def clean(text: object) -> str:
    """Return a text on one line, escaped for HTML and XML."""
    return html.escape(printable(text))


def short(text: object, most: int = MOST_COLUMNS) -> str:
    """Return a text of at most `most` columns; a longer one loses its middle, since labels often begin alike."""
    line = printable(str(text)[:1000])
    if width(line) <= most:
        return line
    begin, end = 2 * most // 3, most - 2 * most // 3 - 1
    return f"{_fitting(line, begin).rstrip()}…{_fitting(line[::-1], end)[::-1].lstrip()}"


def distinct(labels: Sequence[object]) -> list[str]:
    """Shorten labels; those that would then be the same get their numbers."""
    names = [short(label) for label in labels]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [f"{short(name, MOST_COLUMNS - 5)} #{i}" if name in twice else name for i, name in enumerate(names, 1)]


def width(text: str) -> int:
    """Return how many letters wide a text is; Chinese characters and the like are as wide as two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def amount(count: float) -> str:
    """Return a count in at most four characters: 999, 1.2k, 85k, 3.1M."""
    for size, unit in ((1_000_000, "M"), (1000, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 9.95 * size else f"{count / size:.0f}{unit}"
    return str(count)


def forbidden(c: str) -> bool:
    """Return whether a character steers a terminal or is no text (`CONTROL`)."""
    return CONTROL.match(c) is not None


def _fitting(line: str, most: int) -> str:
    """Return the beginning of a line that fits into `most` columns."""
    ends = itertools.accumulate(map(width, line))
    return line[: sum(end <= most for end in ends)]
