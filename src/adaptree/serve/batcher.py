"""The queue in front of the base: which rows are computed next, and together.

Rows of one length go together. Among the waiting, the highest priority comes first; within one, every customer gets the
same share of the computed tokens, however much each has sent: who had least so far is next.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from adaptree.errors import AdaptreeError

MAX_TOKENS = 512
"""Tokens of a batch: enough for full speed, and few enough that nobody waits long for others' batches."""
MAX_WAIT = 0.002
"""Seconds that a batch which is not full waits for more rows, while nothing else is computed."""
MAX_QUEUE = 4096
"""Rows that may wait."""
AHEAD = 64
"""Tokens by which a customer may be ahead of one who waits with rows of another length, and still fill up a batch."""
SHARE = 0.5
"""The part of the queue that one customer may fill."""


May = Callable[[str, Hashable], bool]


def _any(customer: str, shape: Hashable) -> bool:
    return True


class QueueFull(AdaptreeError):
    """The queue is full: try again in `retry_after` seconds."""

    def __init__(self, what: str, retry_after: float) -> None:
        super().__init__(what, hint=f"Try again in {max(1, round(retry_after))} s.")
        self.retry_after = max(1.0, retry_after)


@dataclass(eq=False, slots=True)
class Unit:
    """One row of a request, waiting to be computed."""

    request: Any
    number: int
    """Which row of the request it is."""
    shape: Hashable
    """Units of one shape are computed together."""
    tokens: int
    customer: str
    priority: int = 0
    deadline: float | None = None
    """On the clock of time.monotonic."""


@dataclass(eq=False, slots=True)
class _Customer:
    """What a customer has waiting at one priority, by shape, and how many tokens were computed for it."""

    spent: float = 0.0
    waiting: int = 0
    queues: dict[Hashable, deque[Unit]] = field(default_factory=dict)


class Batcher:
    """Units wait here; `take` returns the next batch. Safe for any number of threads."""

    def __init__(
        self, max_tokens: int = MAX_TOKENS, max_wait: float = MAX_WAIT, max_queue: int = MAX_QUEUE, share: float = SHARE
    ) -> None:
        self.max_tokens, self.max_wait, self.max_queue, self.share = max_tokens, max_wait, max_queue, share
        self._changed = threading.Condition()
        self._levels: dict[int, dict[str, _Customer]] = {}
        """Customers with something waiting, by priority."""
        self._spent: dict[int, float] = {}
        """By priority, what the customer had spent who was served last: one who comes anew starts there."""
        self._by_customer: dict[str, int] = {}
        self._tokens: dict[Hashable, int] = {}
        """Tokens waiting, by shape."""
        self._closed = False
        self.waiting = 0
        """Rows that wait."""
        self.tokens_per_second = 1000.0
        """How quickly they are computed, for the time to try again."""

    def put(self, units: Iterable[Unit]) -> None:
        """Queue all rows of a request; raise QueueFull, and queue none, if there is no room for them."""
        units = list(units)
        if not units:
            return
        customer = units[0].customer
        with self._changed:
            mine = self._by_customer.get(customer, 0)
            alone = not self.waiting  # a request larger than the queue is taken when nothing else waits
            if not alone and self.waiting + len(units) > self.max_queue:
                raise QueueFull(f"the queue is full: {self.waiting:,} texts wait.", self._delay())
            if mine and mine + len(units) > self.max_queue * self.share:
                raise QueueFull(f"{mine:,} of your texts wait already.", self._delay())
            self._by_customer[customer] = mine + len(units)
            self.waiting += len(units)
            for unit in units:
                level = self._levels.setdefault(unit.priority, {})
                if unit.customer not in level:
                    level[unit.customer] = _Customer(self._spent.get(unit.priority, 0.0))
                own = level[unit.customer]
                own.queues.setdefault(unit.shape, deque()).append(unit)
                own.waiting += 1
                self._tokens[unit.shape] = self._tokens.get(unit.shape, 0) + unit.tokens
            self._changed.notify()

    def _delay(self) -> float:
        return sum(self._tokens.values()) / max(self.tokens_per_second, 1.0)

    def take(
        self, expired: Callable[[Unit], None], gone: Callable[[Unit], bool], may: May = _any, *, block: bool = True
    ) -> list[Unit]:
        """Return the next batch, waiting for one; [] when the queue is closed and empty.

        Units after their deadline are handed to `expired`, and those for which `gone` says that nobody waits any more
        are dropped: neither is computed. Units for which `may` is false, by customer and shape, stay. Without `block`,
        return [] at once if there is no batch.
        """
        while True:
            with self._changed:
                while block and not self.waiting:
                    if self._closed:
                        return []
                    self._changed.wait()
                began = time.monotonic()
                while block and not self._closed and not self._ready(left := began + self.max_wait - time.monotonic()):
                    self._changed.wait(left)
                batch, late = self._pick(gone, may)
            for unit in late:
                expired(unit)
            if batch or not block:
                return batch

    def _ready(self, left: float) -> bool:
        """Return whether a batch is full, or has waited long enough."""
        return left <= 0 or any(tokens >= self.max_tokens for tokens in self._tokens.values())

    def charge(self, customer: str, priority: int, tokens: int) -> None:
        """Count tokens that were computed for a customer after its units were taken; it matters if others wait."""
        with self._changed:
            if (own := self._levels.get(priority, {}).get(customer)) is not None:
                own.spent += tokens

    def _pick(self, gone: Callable[[Unit], bool], may: May) -> tuple[list[Unit], list[Unit]]:
        """Return a batch, and the units that are too late."""
        batch: list[Unit] = []
        late: list[Unit] = []
        now, room, shape = time.monotonic(), self.max_tokens, None
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            open_ = {name: [each for each in own.queues if may(name, each)] for name, own in level.items()}
            if shape is None:
                first = min((name for name in level if open_[name]), key=lambda name: level[name].spent, default=None)
                if first is None:
                    continue
                shape = open_[first][0]
            order = [(own.spent, i, name) for i, (name, own) in enumerate(level.items()) if shape in open_[name]]
            heapq.heapify(order)
            others = (own.spent for name, own in level.items() if open_[name] and shape not in open_[name])
            behind = min(others, default=math.inf)
            while order and (room > 0 or not batch):
                spent, i, name = heapq.heappop(order)
                if batch and spent > behind + AHEAD:
                    break  # others' turn has come, with rows that go into another batch
                own = level[name]
                unit = own.queues[shape].popleft()
                self._forget(level, name, own, unit)
                if unit.deadline is not None and unit.deadline < now:
                    late.append(unit)
                elif not gone(unit):
                    self._spent[priority] = max(self._spent.get(priority, 0.0), own.spent)
                    own.spent += unit.tokens
                    room -= unit.tokens
                    batch.append(unit)
                if shape in own.queues:
                    heapq.heappush(order, (own.spent, i, name))
            if not level:
                del self._levels[priority]
        return batch, late

    def _forget(self, level: dict[str, _Customer], name: str, own: _Customer, unit: Unit) -> None:
        """Count a unit that was taken out of a queue."""
        if not own.queues[unit.shape]:
            del own.queues[unit.shape]
        own.waiting -= 1
        if not own.waiting:
            del level[name]
        self.waiting -= 1
        self._by_customer[name] -= 1
        if not self._by_customer[name]:
            del self._by_customer[name]
        self._tokens[unit.shape] -= unit.tokens
        if not self._tokens[unit.shape]:
            del self._tokens[unit.shape]

    def close(self) -> None:
        """Let `take` return [] as soon as nothing waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
