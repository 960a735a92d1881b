"""How a text that a base writes is chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaptree.errors import UsageError

MOST_NEW = 128
"""Tokens of a text, unless more or fewer are asked for."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How a text is chosen."""

    max_new_tokens: int | None = None
    """The most tokens of a text. Default: 128, or as many as the base has room for."""
    temperature: float = 0.0
    """0 takes the likeliest token each time; above, tokens are drawn, the higher the more freely."""
    top_p: float = 1.0
    """Tokens are drawn from the likeliest that have this probability together."""
    beams: int = 1
    """How many beginnings of a text are followed, to find the likeliest as a whole."""
    stop: tuple[str, ...] = ()
    """A text before which the writing stops; repeat for several."""
    choices: tuple[str, ...] = ()
    """A text that may be written, if not any: the likeliest is chosen; repeat for each."""
    seed: int = 0
    """Seed of the drawing."""

    def __post_init__(self) -> None:
        for name in ("stop", "choices"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        wrong = None
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            wrong = f"max_new_tokens must be at least 1, not {self.max_new_tokens}"
        elif not 0 <= self.temperature < math.inf:
            wrong = f"temperature must be 0 or more, not {self.temperature}"
        elif not 0 < self.top_p <= 1:
            wrong = f"top_p must be above 0 and at most 1, not {self.top_p}"
        elif self.beams < 1:
            wrong = f"beams must be at least 1, not {self.beams}"
        elif self.beams > 1 and self.temperature > 0:
            wrong = "beams are for the likeliest text, and a temperature draws one"
        elif self.top_p < 1 and not self.temperature:
            wrong = "top_p is for drawing tokens: give a temperature, too"
        elif self.choices and (self.beams > 1 or self.temperature > 0 or self.stop):
            wrong = "the likeliest of some choices is found without beams, temperature and stop"
        elif any(not each for each in (*self.stop, *self.choices)):
            wrong = "a text to stop at, or to choose, is empty"
        elif self.choices and len(set(self.choices)) < max(2, len(self.choices)):
            wrong = "choices must be at least two different texts"
        if wrong is not None:
            raise UsageError(f"{wrong}.")
