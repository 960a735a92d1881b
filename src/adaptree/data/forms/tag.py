"""Words and a tag for each: lists of both, or texts with the spans of characters that are something."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar

import numpy as np

from adaptree.data.columns import TEXTS
from adaptree.data.forms.form import Form, Row
from adaptree.errors import DataError, UsageError, near

TOKENS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "labels", "ner", "pos", "pos_tags", "label")
SPANS = ("spans", "entities", "ents", "annotations", "labels", "label")
STARTS, ENDS = ("start", "start_offset"), ("end", "end_offset")
NAMES = ("label", "type", "tag", "entity")

PLAIN = "plain"
SCHEMES: Mapping[str, str] = {"IOB1": "BI", "IOB2": "BI", "IOBES": "BIES", "BILOU": "BILU", PLAIN: ""}
"""Ways of writing which words belong together, with their prefixes; plain tags stand for one word each."""
PREFIXED = re.compile(r"([BIESLU])(?:-(.+))?", re.DOTALL)

# Scripts that are written without spaces between words: each sign is a word, so that a span can begin at any.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U000323af"
)


@dataclass(frozen=True)
class TagForm(Form):
    """Its inputs are words, with their places where they come from a text; its targets are tags in IOB2, or plain."""

    kind: ClassVar[str] = "tag"
    needs: ClassVar[str] = "A word and a tag each: lists in tokens and tags, CoNLL columns, or a text with spans."
    nothing: ClassVar[Any] = {"tokens": [], "text": "", "offsets": []}  # nobody writes to it
    scheme: str = "IOB2"
    """How the file writes its tags."""

    @classmethod
    def guess(cls, names: Sequence[str], sample: Sequence[Row], said: Mapping[str, str | None]) -> TagForm | None:
        if said.get("pair") is not None:
            return None
        text, label = said.get("text"), said.get("label")
        for column in (text, label):
            if column is not None and column not in names:
                raise DataError(
                    f"no column '{column}'; the columns are {', '.join(map(repr, names[:20]))}.",
                    hint=near(column, names),
                )
        lists = [name for name in names if _holds(sample, name, _are_words)]
        tokens = _pick(text, TOKENS, lists)
        tags = _pick(label, TAGS, [name for name in lists if name != tokens])
        if tokens and tags and _as_long(sample, tokens, tags):
            scheme = scheme_of([list(map(str, _listed(row.get(tags)) or ())) for row in sample])
            spelled = "without prefixes" if scheme == PLAIN else f"in {scheme}"
            why = f"'{tokens}' holds lists of words and '{tags}' a tag for each, {spelled}"
            return cls({"text": tokens, "label": tags}, why, scheme)
        texts = [name for name in names if _holds(sample, name, _is_text)]
        words = _pick(text, (*TEXTS, *(name.casefold() for name in texts)), texts)
        spans = _pick(label, SPANS, [name for name in names if _holds(sample, name, _are_spans)])
        if words and spans:
            return cls({"text": words, "label": spans}, f"'{spans}' holds spans of the characters of '{words}'")
        return None

    def input(self, row: Row, number: int, name: str) -> Any | None:
        column = str(self.columns["text"])
        value = row.get(column)
        if isinstance(value, str):
            given = words_of(value)
            return given if given["tokens"] else None
        tokens = _listed(value)
        if not _absent(value) and (tokens is None or not _are_words(tokens)):
            raise DataError(
                f"row {number} of '{name}': column '{column}' holds neither a text nor a list of words.",
                hint="Choose another column with --text COL.",
            )
        return {"tokens": list(map(str, tokens)), "text": None, "offsets": None} if tokens else None

    def gold(self, row: Row, given: Any, number: int, name: str) -> list[str] | None:
        column = str(self.columns["label"])
        if _absent(row.get(column)):
            return None
        where = f"row {number} of '{name}'"
        found = _listed(row[column])
        if found is None:
            raise DataError(
                f"{where}: column '{column}' holds a {type(row[column]).__name__}, not a list.",
                hint="Choose another column with --label COL.",
            )
        if given["text"] is not None:
            return _from_spans(found, given, where)
        if len(found) != len(given["tokens"]):
            raise DataError(
                f"{where} has {len(given['tokens'])} words but {len(found)} tags.", hint="Give one tag for each word."
            )
        for tag in found:
            if not isinstance(tag, str) or not tag.strip():
                raise DataError(
                    f"{where}: the tag {tag!r:.60} is not a name.", hint="Write tags by name, such as 'B-PER' and 'O'."
                )
        try:
            return to_iob2([tag.strip() for tag in found], self.scheme)
        except DataError as error:
            raise DataError(f"{where}: {error.what}", hint=error.hint) from None

    def key(self, given: Any) -> str:
        return " ".join(given["tokens"])

    def labels(self, gold: Any) -> Iterable[str]:
        return list(gold)


def scheme_of(sequences: Iterable[Sequence[str]]) -> str:
    """How some sentences' tags are written; IOB2 also where all are 'O', or mistakes hide which of the IOBs it is."""
    sequences = list(sequences)
    tags = {tag for tags in sequences for tag in tags} - {"O"}
    found = {tag: match for tag in tags if (match := PREFIXED.fullmatch(tag))}
    named = {match[2] is not None for match in found.values()}  # 'B' and 'I' alone are tags too, of things of one sort
    if len(found) < len(tags) or len(named) > 1 or (named == {False} and not {"B", "I"} & tags):
        return PLAIN
    prefixes = {match[1] for match in found.values()}
    if prefixes <= {"B", "I"}:
        return "IOB1" if _is_iob1(sequences) else "IOB2"
    return next((name for name in ("IOBES", "BILOU") if prefixes <= set(SCHEMES[name])), PLAIN)


def _is_iob1(sequences: Iterable[Sequence[str]]) -> bool:
    """Whether some entity begins with I, and none with B but where it must: right behind one of its label."""
    begins = False
    for tags in sequences:
        before = None
        for tag in tags:
            prefix, label = _split(tag, "IOB1")
            if prefix == "B" and label != before:
                return False
            begins |= prefix == "I" and label != before
            before = None if prefix == "O" else label
    return begins


def to_iob2(tags: Sequence[str], scheme: str) -> list[str]:
    """The same entities in IOB2, by conlleval's rules where a sequence is broken: what has no beginning begins."""
    _prefixes(scheme)
    if scheme == PLAIN:
        return list(tags)
    found: list[str] = []
    open_label: str | None = None
    for tag in tags:
        prefix, label = _split(tag, scheme)
        if prefix == "O":
            found.append("O")
        else:
            found.append(_join("I" if prefix in "IEL" and label == open_label else "B", label))
        open_label = None if prefix in "OESLU" else label
    return found


def to_scheme(tags_iob2: Sequence[str], scheme: str) -> list[str]:
    """IOB2 tags as another scheme writes them."""
    _prefixes(scheme)
    if scheme == PLAIN:
        return list(tags_iob2)
    found = ["O"] * len(tags_iob2)
    before: tuple[str, int] | None = None
    for label, first, behind in entities(tags_iob2):
        prefixes = ["B"] + ["I"] * (behind - first - 1)
        if scheme == "IOB1" and before != (label, first):
            prefixes[0] = "I"
        elif scheme in ("IOBES", "BILOU"):
            prefixes[-1] = SCHEMES[scheme][3 if len(prefixes) == 1 else 2]
        found[first:behind] = [_join(prefix, label) for prefix in prefixes]
        before = (label, behind)
    return found


def entities(tags_iob2: Sequence[str]) -> list[tuple[str, int, int]]:
    """The label of each entity, its first word and the first one behind it."""
    found: list[tuple[str, int, int]] = []
    start, open_label = 0, None
    for i, tag in enumerate([*tags_iob2, "O"]):
        prefix, label = _split(tag, "IOB2")
        if prefix == "I" and label == open_label:
            continue
        if open_label is not None:
            found.append((open_label, start, i))
        start, open_label = i, None if prefix == "O" else label
    return found


@lru_cache(4096)
def _split(tag: str, scheme: str) -> tuple[str, str]:
    """A tag's prefix and label."""
    if tag == "O":
        return "O", ""
    match = PREFIXED.fullmatch(tag)
    if match is None or match[1] not in _prefixes(scheme):
        raise DataError(
            f"the tag '{tag[:60]}' does not fit the others, which are in {scheme}.",
            hint=f"Its tags are O, and those that begin with {', '.join(f'{p}-' for p in SCHEMES[scheme])}.",
        )
    return match[1], match[2] or ""


def _join(prefix: str, label: str) -> str:
    return f"{prefix}-{label}" if label else prefix


def _prefixes(scheme: str) -> str:
    if scheme not in SCHEMES:
        raise UsageError(f"no tag scheme '{scheme}'; there are {', '.join(SCHEMES)}.", hint=near(scheme, SCHEMES))
    return SCHEMES[scheme]


def words_of(text: str) -> dict[str, Any]:
    """A text as an input: its words, and the characters of each, from and to."""
    offsets = [[*match.span()] for match in _pattern().finditer(text)]
    return {"tokens": [text[start:end] for start, end in offsets], "text": text, "offsets": offsets}


@cache
def _pattern() -> re.Pattern[str]:
    """Runs of letters and digits, and every other sign by itself; marks and joiners stay with what they stand on."""
    marks = [
        chr(c) for c in (*range(0x300, 0x20000), *range(0xE0100, 0xE01F0)) if unicodedata.category(chr(c))[0] == "M"
    ]
    on = "[" + re.escape("".join(marks)) + "\u200c\u200d]"
    letters = rf"[^\W{UNSPACED}]"
    # Possessive: a line of ten million letters must not leave a trace of each.
    return re.compile(rf"{letters}++(?:{on}++{letters}*+)*+|\S{on}*+")


def _from_spans(spans: Sequence[Any], given: Any, where: str) -> list[str]:
    """The tags of a text's words; a span that begins or ends inside a word is widened to the word."""
    text, tags = given["text"], ["O"] * len(given["tokens"])
    offsets = np.asarray(given["offsets"], dtype=np.int64).reshape(-1, 2)
    last = 0
    for start, end, label in sorted(_span(span, where) for span in spans):
        what = f"{where}: the span {start}–{end} ({label})"
        if not 0 <= start < end <= len(text):
            raise DataError(
                f"{what} is not inside the text, which has {len(text)} characters.",
                hint="Count characters from 0; the end is the first one behind the span.",
            )
        if start < last:
            raise DataError(f"{what} overlaps the one before it.", hint="A word has one tag: keep one of the two.")
        first = int(np.searchsorted(offsets[:, 1], start, side="right"))
        behind = int(np.searchsorted(offsets[:, 0], end, side="left"))
        if first == behind:
            raise DataError(f"{what} holds no word.", hint="Correct or remove it.")
        if tags[first] != "O":
            raise DataError(
                f"{what} and the one before it share the word '{given['tokens'][first][:60]}'.",
                hint="Join the two spans, or give the row as lists of words and tags.",
            )
        tags[first:behind] = [f"B-{label}"] + [f"I-{label}"] * (behind - first - 1)
        last = end
    return tags


def _span(span: Any, where: str) -> tuple[int, int, str]:
    values = _parts(span)
    if values is None:
        raise DataError(
            f"{where}: {span!r:.80} is not a span.",
            hint='Write {"start": 0, "end": 3, "label": "PER"} or [0, 3, "PER"].',
        )
    return values


def _parts(span: Any) -> tuple[int, int, str] | None:
    """A span's start, end and label; None when it is none."""
    values: list[Any]
    if isinstance(span, Mapping):
        values = [next((span[key] for key in keys if key in span), None) for keys in (STARTS, ENDS, NAMES)]
    else:
        values = list(_listed(span) or ())
    if len(values) != 3 or any(not isinstance(v, int | np.integer) or isinstance(v, bool) for v in values[:2]):
        return None
    start, end, label = values
    return (int(start), int(end), label.strip()) if isinstance(label, str) and label.strip() else None


def _pick(said: str | None, order: Iterable[str], names: Sequence[str]) -> str | None:
    """Of the columns that fit, the one that was said; else the one whose name comes first in the order."""
    if said is not None:
        return said if said in names else None
    by_plain = {name.strip().casefold(): name for name in reversed(names)}
    return next((by_plain[name] for name in order if name in by_plain), None)


def _as_long(sample: Sequence[Row], tokens: str, tags: str) -> bool:
    """Whether most rows have a tag for each word."""
    both = [(_listed(row.get(tokens)), _listed(row.get(tags))) for row in sample]
    same = [len(a) == len(b) for a, b in both if a is not None and b is not None]
    return 2 * sum(same) > len(same)


def _holds(sample: Sequence[Row], column: str, fits: Callable[[Any], bool]) -> bool:
    """Whether most of what a column holds is such; a row that is not is told of when it is read."""
    values = [row[column] for row in sample if not _absent(row.get(column))]
    found = [fits(value) for value in values if _listed(value) != []]
    return 2 * sum(found) > len(found)


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _listed(value: Any) -> Sequence[Any] | None:
    if isinstance(value, np.ndarray):
        return list(value.tolist())
    return list(value) if isinstance(value, list | tuple) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_words(value: Any) -> bool:
    words = _listed(value)
    return words is not None and all(isinstance(word, str | int | float) for word in words)


def _are_spans(value: Any) -> bool:
    spans = _listed(value)
    return spans is not None and all(_parts(span) is not None for span in spans)
