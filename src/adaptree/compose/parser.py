"""Read an expression's text, from left to right, into the JSON value of the same expression."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

from adaptree.errors import CompositionError, near

_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[(),=\[\]])|(?P<quoted>'[^']*'|"[^"]*")|(?P<word>[^\s(),=\[\]'"]+)|(?P<end>$))"""
)


def read(text: str, blocks: Collection[str]) -> Any:
    """Return a string for a name, else {block: parts, …}; options are words, or lists of numbers. JSON is read too."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise CompositionError(
                f"'{text:.80}' is no JSON: {error}.",
                hint='Write {"stack": ["lang/qu", "ner"]}, or stack(lang/qu, ner).',
            ) from None
    return _Reader(text, blocks).whole()


class _Reader:
    """A recursive-descent parser of one expression."""

    def __init__(self, text: str, blocks: Collection[str]) -> None:
        self.text, self.blocks = text, blocks
        self.tokens: list[str] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._unread(text[at:])
            at = found.end()
            if not found["end"] and found[0].strip():
                self.tokens.append(found[0].strip())
        self.at = 0

    def whole(self) -> Any:
        found = self._expression()
        if self.at < len(self.tokens):
            raise self._unread(self.tokens[self.at])
        return found

    def _expression(self) -> Any:
        word = self._next()
        if self._peek() != "(":
            if word in "()[],=":
                raise self._unread(word)
            return word
        if word not in self.blocks:
            raise CompositionError(
                f"no block '{word}' in '{self.text}'.",
                hint=near(word, self.blocks) or f"There are: {', '.join(self.blocks)}.",
            )
        parts: list[Any] = []
        options: dict[str, Any] = {}
        self._take("(")
        while self._peek() != ")":
            if self.at + 1 < len(self.tokens) and self.tokens[self.at + 1] == "=":
                key = self._next()
                self._take("=")
                if key in self.blocks:
                    raise self._unread(key)
                if key in options:
                    raise CompositionError(f"'{self.text}' says {key} twice.", hint="Say it once.")
                options[key] = self._value()
            elif options:
                raise self._unread(self._next())
            else:
                parts.append(self._expression())
            if self._peek() != ")":
                self._take(",")
        self._take(")")
        return {word: parts, **options}

    def _value(self) -> Any:
        if self._peek() != "[":
            word = self._next()
            return word[1:-1] if word[0] in "'\"" else word
        self._take("[")
        found: list[float] = []
        while self._peek() != "]":
            word = self._next()
            try:
                found.append(float(word))
            except ValueError:
                raise self._unread(word) from None
            if self._peek() != "]":
                self._take(",")
        self._take("]")
        return found

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _next(self) -> str:
        if self.at >= len(self.tokens):
            raise CompositionError(f"'{self.text}' ends too early.", hint="Close its brackets: stack(lang/qu, ner)")
        self.at += 1
        return self.tokens[self.at - 1]

    def _take(self, mark: str) -> None:
        if (word := self._next()) != mark:
            raise self._unread(word)

    def _unread(self, rest: str) -> CompositionError:
        return CompositionError(
            f"'{self.text}' cannot be read at '{rest}'.", hint="Write stack(lang/qu, ner), or drop(ner, layers='0-4')."
        )
