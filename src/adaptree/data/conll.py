"""Sentences of CoNLL files: a word and its tag on each line, a blank line after each sentence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from adaptree.errors import DataError


def read_conll(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each sentence's words (the first column) and tags (the last), with the number of its first line."""
    tokens: list[str] = []
    tags: list[str] = []
    known, width = {"O"}, 2
    start = 0
    for number, line in enumerate(lines, 1):
        fields = _fields(line)
        if not fields or fields[0] == "-DOCSTART-":
            if tokens:
                yield start, {"tokens": tokens, "tags": tags}
                tokens, tags = [], []
            continue
        # A comment stands before its sentence. The word '#' may stand there too: then the line is like the others.
        like_others = len(fields) == width and fields[-1] in known
        if line.startswith("# ") and not tokens and not like_others:
            continue
        if len(fields) < 2 or not fields[-1]:
            raise DataError(
                f"line {number} has one column only, '{line.strip()[:60]}'.",
                hint="Each line needs a word, its tag in the last column, and a space or tab between them.",
            )
        if not tokens:
            start = number
        tokens.append(fields[0])
        tags.append(fields[-1])
        known.add(fields[-1])
        width = len(fields)
    if tokens:
        yield start, {"tokens": tokens, "tags": tags}


def _fields(line: str) -> list[str]:
    """Return a line's columns, none if it is blank. Where there is a tab, spaces belong to the words."""
    if not line.strip():
        return []
    if "\t" in line:
        return [field.strip(" \r\n") for field in line.split("\t")]
    return re.split(" +", line.strip(" \r\n"))
