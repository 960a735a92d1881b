"""What clients ask and which replica they ask: the very same for the real replicas and for the simulated ones."""

from __future__ import annotations

import bisect
import functools
import hashlib
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

POINTS = 64
"""Points of a replica on the ring: more of them, more even shares."""
BOUND = 1.25
"""How far above the mean the requests under way at one replica may be, before its tasks are asked for elsewhere."""
FEW = 4
"""Requests under way that never make a replica one that is behind: they go into its next batch together."""


class Arrival(NamedTuple):
    """A request: when it is sent, the rank of its task (0 is the most popular), and which of the texts it has."""

    at: float
    task: int
    text: int


@dataclass(frozen=True)
class Load:
    """Requests of independent clients (Poisson), for tasks whose popularity falls with their rank (Zipf)."""

    rate: float
    """Requests a second; 0 for as many as `clients` get answered."""
    seconds: float
    tasks: int
    texts: int = 64
    """How many texts there are to choose from, each as likely as the others."""
    zipf: float = 1.0
    """The exponent of the popularity: task number k is asked for 1/k**zipf as often as the first."""
    seed: int = 0
    clients: int = 0
    """With a rate of 0: so many clients, each of which asks again as soon as it has its answer."""

    def arrivals(self) -> Iterator[Arrival]:
        """Yield the requests in the order of their times; without a rate, any number of them, due at any time."""
        rng = random.Random(self.seed)
        popularity = list(itertools.accumulate((k + 1) ** -self.zipf for k in range(self.tasks)))
        now = rng.expovariate(self.rate) if self.rate else 0.0
        while now < self.seconds:
            task = bisect.bisect_left(popularity, rng.random() * popularity[-1])
            yield Arrival(now, task, rng.randrange(self.texts))
            now += rng.expovariate(self.rate) if self.rate else 0.0


class Router:
    """Chooses a replica for each request: any at random, or by `affinity` that which has the task, unless it is behind.

    Affinity is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2018): a task belongs to the
    first replica after it on a ring; one that has more than `BOUND` times the mean number of requests under way (and
    more than a few) is passed over for the next.
    """

    def __init__(self, replicas: int, routing: str, seed: int = 0) -> None:
        if routing not in ("random", "affinity"):
            raise ValueError(f"routing is random or affinity, not {routing!r}")
        self.routing, self.rng = routing, random.Random(seed)
        self.under_way = [0] * replicas
        ring = sorted((_hash(f"replica {r}.{i}"), r) for r in range(replicas) for i in range(POINTS))
        self._at, self._replica = [at for at, _ in ring], [r for _, r in ring]
        self._total = 0

    def homes(self, task: int, count: int = 1) -> list[int]:
        """Return the replicas that a task is for, in the order in which they are asked."""
        at, found = bisect.bisect(self._at, _hash(f"task {task}")), dict[int, None]()
        count = min(count, len(self.under_way))
        while len(found) < count:
            found[self._replica[at % len(self._at)]] = None
            at += 1
        return list(found)

    def choose(self, task: int) -> int:
        """Return the replica for a request, which is under way there from now on."""
        count = len(self.under_way)
        if self.routing == "random":
            chosen = self.rng.randrange(count)
        else:
            limit = max(FEW, math.ceil(BOUND * (self._total + 1) / count))
            at = bisect.bisect(self._at, _hash(f"task {task}"))
            while self.under_way[chosen := self._replica[at % len(self._at)]] >= limit:
                at += 1
        self.under_way[chosen] += 1
        self._total += 1
        return chosen

    def done(self, replica: int) -> None:
        """Count a request as answered."""
        self.under_way[replica] -= 1
        self._total -= 1

    def in_memory(self, fit: int, tasks: int) -> list[list[int]]:
        """Return what each replica, with room for `fit` tasks, has in memory after long; the most popular comes last.

        By affinity those are its own tasks and, where there is room, those that it is asked for in the second place.
        """
        if self.routing == "random":
            return [list(range(min(fit, tasks)))[::-1]] * len(self.under_way)
        own: list[list[int]] = [[] for _ in self.under_way]
        others: list[list[int]] = [[] for _ in self.under_way]
        for task in range(tasks):
            for kept, replica in zip((own, others), self.homes(task, 2), strict=False):
                kept[replica].append(task)
        return [(first + second)[:fit][::-1] for first, second in zip(own, others, strict=True)]


@functools.cache
def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]
