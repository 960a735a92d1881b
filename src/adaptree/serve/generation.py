"""Texts that an engine writes: those of all tasks that share passes in one loop, those of each other task in its own.

The engine's thread takes one step between any two batches of other tasks, so that neither waits long for the other.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adaptree.kinds.generate import TextPrediction
from adaptree.models.decoding_loop import MOST_TEXTS, DecodingLoop, Text
from adaptree.serve.batcher import Unit

if TYPE_CHECKING:
    from adaptree.models.bank import Bank
    from adaptree.models.base import Base
    from adaptree.serve.served import Served

WRITE = "write"
"""The shape of units in the queue that are prompts."""
KEPT = 0.25
"""The part of the texts under way that one customer leaves to others."""
OnPiece = Callable[[int, str], None]
"""Gets the number of a request's input, and the next piece of its text."""


@dataclass(frozen=True)
class Written(TextPrediction):
    """A text, with how many tokens its prompt has."""

    prompt_tokens: int = 0


class Writing:
    """The texts under way in an engine. Only the engine's computing thread uses it."""

    def __init__(self, base: Base, bank: Bank, *, most: int = MOST_TEXTS) -> None:
        self._base, self._most = base, most
        self._shared = DecodingLoop(base, bank=bank, most=most)
        self._loops: dict[Served | None, DecodingLoop] = {None: self._shared}
        self._units: dict[Text, Unit] = {}
        self._customers: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._units)

    def may(self, customer: str, shape: Hashable) -> bool:
        """Return whether a unit can be computed now: a prompt only if there is room, also in its customer's share."""
        if shape != WRITE or not self._units:
            return True
        if len(self._units) >= self._most or any(loop.waiting for loop in self._loops.values()):
            return False
        return self._customers[customer] < self._most - int(KEPT * self._most)

    def add(self, units: Sequence[Unit]) -> None:
        """Let texts join."""
        for unit in units:
            text: Text = unit.request.texts[unit.number]
            self._units[text] = unit
            self._customers[unit.customer] += 1
            self._loop_of(unit.request.served).add(text)

    def _loop_of(self, served: Served) -> DecodingLoop:
        if served.place is not None:
            return self._shared
        if served not in self._loops:
            assert served.bound is not None
            hooked, plan = served.bound.runs_on
            self._loops[served] = DecodingLoop(self._base, hooked=hooked, plan=plan, most=self._most)
        return self._loops[served]

    def drop(self, gone: Callable[[Unit], bool], expire: Callable[[Unit], None]) -> None:
        """Forget texts that nobody waits for any more, and those whose time is over.

        It comes before each step: the weights of a task whose last request has failed may be another's by now.
        """
        now = time.monotonic()
        for unit in self._units.values():
            if unit.deadline is not None and unit.deadline < now:
                expire(unit)
        over = {text for text, unit in self._units.items() if gone(unit)}
        if over:
            for loop in self._loops.values():
                loop.drop(over.__contains__)
            for text in over:
                self._forget(text)
        self._loops = {served: loop for served, loop in self._loops.items() if served is None or len(loop)}

    def step(self) -> tuple[list[tuple[Unit, Written]], list[tuple[Unit, BaseException]]]:
        """Write one token of each text; return what is written, and what failed."""
        done: list[tuple[Unit, Written]] = []
        failed: list[tuple[Unit, BaseException]] = []
        for served, loop in self._loops.items():
            try:
                over = loop.step()
            except Exception as error:
                loop.clear()
                mine = [text for text, unit in self._units.items() if _key(unit) is served]
                failed += [(self._forget(text), error) for text in mine]
                continue
            for text in over:
                unit = self._forget(text)
                if text.failed is not None:
                    failed.append((unit, text.failed))
                else:
                    said = text.prediction
                    done.append((unit, Written(said.text, said.finished, said.tokens, None, len(text.prompt))))
        return done, failed

    def _forget(self, text: Text) -> Unit:
        unit = self._units.pop(text)
        self._customers[unit.customer] -= 1
        if not self._customers[unit.customer]:
            del self._customers[unit.customer]
        return unit

    @property
    def tasks(self) -> int:
        """How many tasks write just now."""
        return len({id(unit.request.served) for unit in self._units.values()})


def _key(unit: Unit) -> Served | None:
    """Return what the loop of a text is known by."""
    served: Served = unit.request.served
    return None if served is None or served.place is not None else served


class TextStream:
    """The pieces of a request's texts as they are written: an async iterator of (number of the input, piece).

    When it has ended, `texts` are the texts as a whole. To leave it early cancels the request.
    """

    def __init__(self) -> None:
        self.texts: list[Written] = []
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()
        self._future: Future[list[Any]] = Future()

    def follow(self, future: Future[list[Any]]) -> TextStream:
        """Listen to a request whose pieces `on_piece` gets, and return itself."""
        self._future = future
        future.add_done_callback(lambda _: self._hand_on(None))
        return self

    def on_piece(self, number: int, piece: str) -> None:
        """Take the next piece, in any thread."""
        self._hand_on((number, piece))

    def _hand_on(self, piece: tuple[int, str] | None) -> None:
        with suppress(RuntimeError):  # the event loop is closed: nobody listens
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    async def __aiter__(self) -> AsyncIterator[tuple[int, str]]:
        try:
            while (piece := await self._pieces.get()) is not None:
                yield piece
            self.texts = self._future.result()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Say that nobody listens any more."""
        self._future.cancel()
