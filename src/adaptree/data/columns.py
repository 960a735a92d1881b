"""Which columns of a file hold the text, its pair and the label: by name first, then by what is in them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from adaptree.data.cells import is_absent
from adaptree.errors import DataError, near

TITLES = ("headline", "description", "summary", "title")
"""What often stands beside the text."""
TEXTS = (
    "text", "sentence", "review", "content", "body", "message", "comment", "tweet", "post", "sms", "email", "document",
    "article", "abstract", "utterance", "passage", "query", "question", *TITLES,
)  # fmt: skip
PAIRS = (
    ("text", "text_pair"), ("premise", "hypothesis"), ("question", "sentence"), ("question", "passage"),
    ("question", "context"), ("query", "passage"), ("query", "document"),
    *((stem + a, stem + b) for stem in TEXTS for a, b in (("_a", "_b"), ("1", "2"), ("_1", "_2"))),
)  # fmt: skip
LIKELY_PAIRS = (
    ("question", "answer"), ("question", "response"), ("question", "document"), ("question", "text"),
    ("query", "text"), ("query", "title"), ("query", "answer"), ("claim", "evidence"), ("claim", "premise"),
    ("context", "response"), ("prompt", "response"), ("prompt", "answer"), ("post", "reply"), ("comment", "reply"),
    ("text", "hypothesis"), ("original", "paraphrase"),
)  # fmt: skip
"""Pairs by their names, if both columns hold texts: an answer may also be the label."""
TWINS = (("1", "2"), ("a", "b"), ("first", "second"), ("left", "right"), ("one", "two"))
"""What two names end with that are the same before it, such as 'sent 1' and 'sent 2'."""
LABELS = (
    "label", "labels", "gold_label", "class", "category", "target", "sentiment", "topic", "intent", "emotion",
    "polarity", "stance", "score", "rating", "stars", "grade", "tag", "y", "gold",
)  # fmt: skip
ASIDE = re.compile(
    r"(.*_)?(id|idx|index|uuid|guid)\d*|unnamed:_\d+|row|line|file|filename|path|url|link|genre|source|split|fold|date|"
    r"time|timestamp|created_at|user|username|author|lang|language|confidence|annotator|"
    r"clean_\w+|"  # what `adaptree clean` adds; the last: pandas' index, ''
)


@dataclass(frozen=True)
class Columns:
    """The names of the columns that are used; `pair` and `label` may be absent."""

    text: str
    pair: str | None = None
    label: str | None = None


def guess(
    names: Sequence[str],
    sample_rows: Sequence[Mapping[str, Any]],
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    need_label: bool = True,
    pairs: bool = True,
) -> Columns:
    """Return the columns that the user names, and for the others those whose names or contents fit.

    Where several columns hold texts and it is not clear how they are to be read, raise DataError: half of an input
    that is left out looks like bad labels. Without `pairs`, only one text is looked for.
    """
    chosen = [name for name in (text, pair, label) if name is not None]
    must_have(names, chosen)
    for name in chosen:
        if chosen.count(name) > 1:
            raise DataError(f"column '{name}' cannot be used twice.", hint="--text, --text-pair and --label differ.")
    seen = {name: _Contents(name, [row.get(name) for row in sample_rows]) for name in names}
    free = [name for name in names if name not in chosen and seen[name].filled]
    wordy = [name for name in free if seen[name].wordy]
    if text is None and pair is None and pairs:
        text, pair = _known_pair(wordy) or _likely_pair([seen[name] for name in wordy]) or (None, None)
    if text is None:
        text = find_column(TEXTS, wordy)
    if label is None:
        label = find_column(LABELS, [name for name in free if name not in (text, pair)])
    if text is None:
        text, pair = _by_content([seen[name] for name in wordy if name not in (pair, label)], pair, pairs)
    if text is None:
        raise DataError(f"cannot tell which column holds the text; {_there_are(names)}.", hint=_SAY)
    if label is None and need_label:
        label = _label_by_content([seen[name] for name in free if name not in (text, pair)], names)
    return Columns(text, pair, label)


_SAY = "Say it: --text COL --label COL"
_NO_LABELS = f"{_SAY}; if there are no labels: --kind mlm"


def free_texts(names: Iterable[str], sample_rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return those columns that hold sentences, and neither labels, numbers, names nor dates."""
    return [name for name in names if _Contents(name, [row.get(name) for row in sample_rows]).prose]


def must_have(names: Sequence[str], wanted: Iterable[str | None]) -> None:
    """Raise DataError, with a near name, for the first wanted column that is not among `names`; None is no column."""
    for name in wanted:
        if name is not None and name not in names:
            raise DataError(f"no column '{name}'; the columns are {listed(names)}.", hint=near(name, names))


def find_column(known: Iterable[str], names: Sequence[str]) -> str | None:
    """Return the column whose plain name comes first in `known`; None where no column has such a name."""
    by_plain = {plain_name(name): name for name in reversed(names)}
    return next((by_plain[name] for name in known if name in by_plain), None)


def split_names(label: str | None, names: Sequence[str]) -> list[str]:
    """Return the columns that --label COL,COL names; [] where it names one column or none."""
    several = [name.strip() for name in label.split(",")] if label and label not in names else []
    return several if len(several) > 1 else []


def plain_name(name: str) -> str:
    """Return a column's name in lower case, with '_' for spaces and hyphens."""
    return re.sub(r"[\s-]+", "_", name.strip().casefold())


def listed(names: Sequence[str]) -> str:
    """Return the first names in quotes, for a message."""
    return ", ".join(f"'{name[:60]}'" for name in names[:20]) + (", …" if len(names) > 20 else "")


class _Contents:
    """What is known of a column from a sample of its values."""

    def __init__(self, name: str, values: list[Any]) -> None:
        present = [value for value in values if not is_absent(value) and str(value).strip()]
        strings = [value for value in present if isinstance(value, str)]
        self.name = name
        self.aside = ASIDE.fullmatch(plain_name(name)) is not None
        self.filled = bool(present) or not values
        self.wordy = not values or any(not _is_number(value) for value in strings)
        self.length = sum(map(len, strings)) / max(len(strings), 1)
        self.scalar = all(isinstance(value, str | Real) for value in present)
        self.distinct = {str(value).strip() for value in present} if self.scalar else set()
        numbers = self.scalar and all(_is_number(value) for value in present)
        short = self.scalar and all(len(value) <= 60 for value in self.distinct)
        few = 2 <= len(self.distinct) <= max(2, min(50, len(present) // 2))
        counter = self.aside and len(self.distinct) == len(present)  # an id, and no label
        self.like_label = bool(present) and ((short and few) or (numbers and len(self.distinct) > 1 and not counter))
        words = _mean(map(_words, strings)) if self.scalar and not self.aside else 0.0
        share = len(self.distinct) / len(present) if len(self.distinct) > 1 or len(present) == 1 else 0.0
        self.prose = (words >= 4 and share >= 0.25) if self.like_label else (words >= 3 and share >= 0.05)
        """Whether it holds sentences: many different ones, of several words, and no dates, links or the like."""
        self.varied = self.wordy and not self.aside and (self.prose or not self.like_label)
        """Whether it may hold texts, if only short ones."""
        self.phrases = self.wordy and words >= 2
        """Whether it holds texts, or labels of several words."""


def _mean(numbers: Iterable[int]) -> float:
    values = list(numbers)
    return sum(values) / max(len(values), 1)


def _words(text: str) -> int:
    """Return how many words of letters a text begins with; in a script without spaces, three letters count as one."""
    start = text[:200]
    unspaced = sum(char.isalpha() for char in start if char >= "\u0e00") // 3
    return max(unspaced, sum(any(map(str.isalpha, word)) for word in start.split()))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (ValueError, OverflowError):
        return False
    return True


def _known_pair(names: Sequence[str], known: Iterable[tuple[str, str]] = PAIRS) -> tuple[str, str] | None:
    by_plain = {plain_name(name): name for name in reversed(names)}
    return next(((by_plain[a], by_plain[b]) for a, b in known if a in by_plain and b in by_plain), None)


def _likely_pair(columns: Sequence[_Contents]) -> tuple[str, str] | None:
    """Return two columns that may be a pair by their names, if both may hold texts and no other one is the text.

    Of twins, one may have few different texts, such as the same ten questions again and again.
    """
    names = [column.name for column in columns if column.varied]
    phrases = [column.name for column in columns if column.varied or column.phrases]
    found = _known_pair(names, (*LIKELY_PAIRS, *_twins(names))) or _known_pair(phrases, _twins(phrases))
    if found is None or not set(found) & set(names):
        return None
    others = [column for column in columns if column.name not in found]
    sentences = all(column.prose for column in columns if column.name in found)
    elsewhere = find_column(set(TEXTS) - set(TITLES), [column.name for column in others]) is not None
    return None if elsewhere or (not sentences and any(column.prose for column in others)) else found


def _twins(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the plain names of two columns that differ in a mark alone; not the first two of three or more."""
    plain = [plain_name(name) for name in names]
    found = []
    for (first, second), name in itertools.product(TWINS, plain):
        other, third = "", ""
        if name.endswith(first):
            start = name.removesuffix(first)
            other, third = start + second, start + chr(ord(second[-1]) + 1)
        elif name.startswith(f"{first}_"):
            other = second + name.removeprefix(first)
        if other in plain and third not in plain:
            found.append((name, other))
    return found


def _by_content(candidates: Sequence[_Contents], pair: str | None, pairs: bool) -> tuple[str | None, str | None]:
    """Return the column of longest strings; or two as a pair, if they hold sentences of about the same length.

    Ids, files, dates and the like are taken only when nothing else is there.
    """
    candidates = [c for c in candidates if not c.aside] or candidates
    prose = [c for c in candidates if c.prose]
    if len(prose) < 2 or pair is not None:
        return max(candidates, key=lambda c: c.length).name if candidates else None, pair
    lengths = sorted(c.length for c in prose)
    if pairs and len(prose) == 2 and lengths[1] <= 2 * lengths[0]:
        return prose[0].name, prose[1].name
    first, second = prose[0].name, prose[1].name
    both = f", or both as a pair: --text '{first}' --text-pair '{second}'" if pairs else ""
    raise DataError(
        f"cannot tell which column to read: {listed([c.name for c in prose])} hold texts.",
        hint=f"Read one: --text '{first}'{both}",
    )


def _label_by_content(candidates: Sequence[_Contents], names: Sequence[str]) -> str:
    likely = [c for c in candidates if c.like_label]
    likely = [c for c in likely if not c.aside and not c.prose] or [c for c in likely if not c.aside] or likely
    if len(likely) > 1:
        several = listed([c.name for c in likely])
        raise DataError(f"cannot tell which column holds the label: {several} could all be.", hint=_SAY)
    if not likely:
        raise DataError(f"cannot tell which column holds the label; {_there_are(names)}.", hint=_NO_LABELS)
    if likely[0].name in likely[0].distinct:
        raise DataError(
            f"the first line looks like data, not like column names ({listed(names)}).",
            hint="Add a line with column names on top, such as: text,label",
        )
    return likely[0].name


def _there_are(names: Sequence[str]) -> str:
    return f"the columns are {listed(names)}" if len(names) > 1 else f"the only column is {listed(names)}"
