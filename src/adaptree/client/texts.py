"""Texts that a server writes: whole, or streamed piece by piece."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from adaptree.client.asking import ServerError, error_of


@dataclass(frozen=True)
class Completion:
    """A text that a server wrote."""

    text: str
    finish_reason: str
    """stop, or length if it was cut off at the most tokens that were allowed"""
    prompt_tokens: int
    completion_tokens: int

    def __str__(self) -> str:
        return self.text


COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


def completion_of(said: dict[str, Any]) -> Completion:
    choice, usage = said["choices"][0], said["usage"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return Completion(text, choice["finish_reason"], usage["prompt_tokens"], usage["completion_tokens"])


class Pieces:
    """Reads the lines of a text that is streamed."""

    def __init__(self) -> None:
        self.over = False

    def line(self, line: str) -> str:
        """Return the piece of text that a line has; '' if it has none. Raise the error that it says."""
        data = line.removeprefix("data: ")
        if data == line:
            return ""
        self.over = data == "[DONE]"
        said = {} if self.over else json.loads(data)
        if "error" in said:
            raise error_of(200, said["error"])
        for choice in said.get("choices", ()):
            return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
        return ""

    def check(self, url: str) -> None:
        """Raise ServerError unless the text has come to its end."""
        if not self.over:
            raise ServerError(0, "unreachable", f"{url} ended before its text did.", "Ask again.")
