"""Replicas under load, simulated by discrete events over measured service times.

    simulate(Load(rate=120, seconds=20, tasks=400), Times.of(measured), replicas=2, routing="affinity", fit=100)

A replica is `adaptree serve --threads 1` on one core. Its threads share the core evenly: the event loop (HTTP, reading
a text), the computing thread, the one that makes answers, and two that load tasks. Which rows are computed together is
decided by the server's own `Batcher`, here with a clock that is simulated.

This is a heap of events and no framework: the threads of a replica share a processor, which is the one thing that simpy
would not have brought, and a thousand replicas are simulated in minutes.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import statistics
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from adaptree.serve.batcher import MAX_WAIT, Batcher, QueueFull, Unit, _any
from adaptree.serve.limits import Limits
from adaptree.serve.service import KNOWN
from adaptree.serve.shelf import FRESH, GRACE, LOOK_UPS
from benchmarks.scale.load import Arrival, Load, Router, quantile

LOADERS = 2
"""Threads of a server that load tasks (`Shelf`)."""
Then = Callable[[], None]


@dataclass(frozen=True)
class Times:
    """What a replica's work takes, in seconds of a core; `_wait` is time in which it waits for the store."""

    batch: Callable[[float, int, float], float]
    """Of a batch, by rows, length and tasks in it."""
    loop: float
    """The event loop's work for a request: half of it before the row waits, half after it was computed."""
    loop_busy: float | None = None
    """The same while other requests are under way: it is woken less often."""
    wake: float = 0.0
    """What a lone request takes beyond all this work: threads that are woken, the client."""
    respond: float = 0.0
    load: float = 0.0
    load_wait: float = 0.0
    look_up: float = 0.0
    look_up_wait: float = 0.0
    lengths: tuple[int, ...] = (24,)
    """At what length each text of a load is computed."""

    @classmethod
    def of(cls, measured: Mapping[str, Any], method: str = "houlsby:48") -> Times:
        """Return the times that were measured, each alone.

        A batch takes longer among a server's other threads than by itself, and so does loading: by how much is known
        from one server whose clients each wait for their answer.
        """
        services = measured["services"]
        http, busy, missing = services["http"], services["http_busy"], services["http_missing"]
        loading, of_48 = services["loading"][method], services["loading"]["houlsby:48"]
        alone, lengths = BatchTimes(services["batches"][method]), tuple(services["lengths"])

        def of_rows(rows: float) -> float:
            return statistics.mean(alone(rows, length, rows) for length in lengths)

        serving = statistics.mean(each["compute"] / of_rows(each["rows_per_batch"]) for each in (http, busy))
        return cls(
            lambda rows, length, tasks: serving * alone(rows, length, tasks),
            wake=max(0.0, http["p50"] - http["loop"] - http["rest"] - MAX_WAIT - http["compute"]),
            loop=http["loop"],
            loop_busy=busy["loop"],
            respond=http["rest"],
            load=(missing["cpu"] - http["cpu"])
            / missing["loads"]
            * loading["load_processor"]
            / of_48["load_processor"],
            look_up=loading["look_up_processor"],
            lengths=lengths,
        )

    def at_speed(self, factor: float) -> Times:
        """Return the times of a machine on which all work takes so many times as long."""
        return replace(
            self,
            batch=lambda rows, length, tasks: factor * self.batch(rows, length, tasks),
            loop=factor * self.loop, loop_busy=None if self.loop_busy is None else factor * self.loop_busy,
            wake=factor * self.wake, respond=factor * self.respond, load=factor * self.load,
            look_up=factor * self.look_up,
        )  # fmt: skip

    def on_s3(self, measured: Mapping[str, Any], wait: float) -> Times:
        """Return the times with a store on S3, each of whose requests is answered after `wait` seconds."""
        found = measured["s3"]["from_server"]
        return replace(
            self,
            load=found["load_processor"], load_wait=wait * (found["load_listings"] + found["load_reads"]),
            look_up=found["look_up_processor"], look_up_wait=wait * found["look_up_listings"],
        )  # fmt: skip


class BatchTimes:
    """Seconds of a batch by rows, length and tasks: between the measured points on a straight line."""

    def __init__(self, cells: list[dict[str, Any]]) -> None:
        self._curves: dict[tuple[int, bool], tuple[list[int], list[float]]] = {}
        for length in {each["length"] for each in cells}:
            for mixed in (False, True):
                found = sorted(
                    (each["rows"], each["seconds"])
                    for each in cells
                    if each["length"] == length and each["tasks"] == (each["rows"] if mixed else 1)
                )
                self._curves[length, mixed] = [rows for rows, _ in found], [seconds for _, seconds in found]

    def __call__(self, rows: float, length: int, tasks: float) -> float:
        one, mixed = self._on(length, False, rows), self._on(length, True, rows)
        return one + (mixed - one) * ((tasks - 1) / (rows - 1) if rows > 1 else 0.0)

    def _on(self, length: int, mixed: bool, rows: float) -> float:
        xs, ys = self._curves[length, mixed]
        i = min(max(bisect.bisect_left(xs, rows), 1), len(xs) - 1)
        return ys[i - 1] + (ys[i] - ys[i - 1]) * (rows - xs[i - 1]) / (xs[i] - xs[i - 1])


# The machinery: a clock, a processor, threads


class Clock:
    """The time that is simulated, and what happens at which."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Then]] = []
        self._count = 0

    def at(self, when: float, then: Then) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, then))

    def run(self) -> None:
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()


class Processor:
    """Cores that all who run share evenly, nobody having more than one."""

    def __init__(self, clock: Clock, cores: float = 1.0) -> None:
        self.clock, self.cores = clock, cores
        self.used = 0.0
        """Seconds of cores, so far."""
        self._jobs: list[tuple[float, int, Then]] = []
        """By how much each of them must have got to be done: all get the same, so this order does not change."""
        self._got = self._since = 0.0
        self._count = self._planned = 0

    def run(self, seconds: float, then: Then) -> None:
        """Compute for so many seconds of a core, then go on."""
        self._advance()
        self._count += 1
        heapq.heappush(self._jobs, (self._got + seconds, self._count, then))
        self._plan()

    def _rate(self) -> float:
        return min(1.0, self.cores / len(self._jobs)) if self._jobs else 0.0

    def _advance(self) -> None:
        got = (self.clock.now - self._since) * self._rate()
        self._got += got
        self.used += got * len(self._jobs)
        self._since = self.clock.now

    def _plan(self) -> None:
        self._planned += 1
        if self._jobs:
            plan = self._planned
            left = max(0.0, self._jobs[0][0] - self._got)
            self.clock.at(self.clock.now + left / self._rate(), lambda: self._finish(plan))

    def _finish(self, plan: int) -> None:
        if plan == self._planned:  # else somebody came or went since
            self._advance()
            _, _, then = heapq.heappop(self._jobs)
            self._plan()
            then()


class Threads:
    """Threads of one process that do one piece of work after the other."""

    def __init__(self, processor: Processor, count: int = 1) -> None:
        self.processor, self.free = processor, count
        self._queue: deque[tuple[float, float, Then]] = deque()

    def do(self, seconds: float, then: Then, wait: float = 0.0) -> None:
        """Wait for something else, then compute, then go on; a thread is taken for both."""
        self._queue.append((seconds, wait, then))
        self._next()

    def _next(self) -> None:
        if not self.free or not self._queue:
            return
        self.free -= 1
        seconds, wait, then = self._queue.popleft()

        def done() -> None:
            self.free += 1
            self._next()
            then()

        if wait:
            clock = self.processor.clock
            clock.at(clock.now + wait, lambda: self.processor.run(seconds, done))
        else:
            self.processor.run(seconds, done)


# A replica


@dataclass(eq=False, slots=True)
class Request:
    """A request on its way; `answered` is called once, with its status."""

    task: int
    length: int
    answered: Callable[[int], None]


class Replica:
    """One `adaptree serve --threads 1`, with memory for `fit` tasks."""

    def __init__(self, clock: Clock, times: Times, fit: int, *, cores: float = 1.0, wait: float | None = None) -> None:
        self.clock, self.times, self.fit = clock, times, fit
        self.processor = Processor(clock, cores)
        self.loop, self.computing, self.responding = (Threads(self.processor) for _ in range(3))
        self.loaders, self.look_ups = Threads(self.processor, LOADERS), Threads(self.processor, LOOK_UPS)
        self.batcher = Batcher() if wait is None else Batcher(max_wait=wait)
        self.counts: Counter[str] = Counter()
        self.under_way = 0
        self._limit = Limits().in_flight
        self._memory: OrderedDict[int, float] = OrderedDict()
        """Tasks in memory, the least recently used first, and when each was looked up."""
        self._users: Counter[int] = Counter()
        self._loading: dict[int, list[Request]] = {}
        self._known: dict[int, float] = {}
        self._computing = False
        self._took = 0
        self._began: float | None = None
        """Since when a batch that is not full waits for more rows."""

    def fill(self, tasks: list[int]) -> None:
        """Have tasks in memory, the last one most recently used."""
        for task in tasks:
            self._memory[task] = self._known[task] = 0.0

    def receive(self, request: Request) -> None:
        if self.under_way >= self._limit:
            self.counts["refused"] += 1
            request.answered(429)
            return
        self.under_way += 1
        self.loop.do(self._http(), lambda: self._name(request))

    def _http(self) -> float:
        """Return half of the event loop's work for a request."""
        busy = self.times.loop_busy is not None and self.under_way > 1
        seconds = (self.times.loop_busy if busy else self.times.loop) / 2  # type: ignore[operator]
        self.counts["HTTP"] += seconds  # type: ignore[assignment]
        return seconds

    def _name(self, request: Request) -> None:
        """Find out whether there is such a task, if nobody has for a minute."""
        if self.clock.now - self._known.get(request.task, float("-inf")) > KNOWN:
            self._known[request.task] = self.clock.now
            self.counts["look_ups"] += 1
            looked = Threads(self.processor)  # asyncio's own, which are many
            looked.do(self.times.look_up, lambda: self._find(request), self.times.look_up_wait)
        else:
            self._find(request)

    def _find(self, request: Request) -> None:
        task, now = request.task, self.clock.now
        if task in self._memory:
            self.counts["hits"] += 1
            self._memory.move_to_end(task)
            age = now - self._memory[task]
            if age > FRESH:
                self._memory[task] = now
                self.counts["look_ups"] += 1
                waits = age > FRESH + GRACE
                self.look_ups.do(
                    self.times.look_up, lambda: self._put(request) if waits else None, self.times.look_up_wait
                )
                if waits:
                    return
            self._put(request)
        elif task in self._loading:
            self._loading[task].append(request)
        else:
            self._loading[task] = [request]
            self.counts["loads"] += 1
            self.loaders.do(self.times.load, lambda: self._loaded(task), self.times.load_wait)

    def _loaded(self, task: int) -> None:
        self._memory[task] = self.clock.now
        for request in self._loading.pop(task):
            self._put(request)
        for other in [each for each in self._memory if not self._users[each]]:
            if len(self._memory) <= self.fit:
                break
            del self._memory[other]
            self.counts["evictions"] += 1

    def _put(self, request: Request) -> None:
        self._users[request.task] += 1
        try:
            self.batcher.put([Unit(request, 0, request.length, request.length, str(request.task))])
        except QueueFull:
            self.counts["refused"] += 1
            self._answer(request, 429)
            return
        self._take()

    def _take(self) -> None:
        """Compute the next batch if it is full or has waited long enough, as `Batcher.take` does."""
        if self._computing or not self.batcher.waiting:
            return
        if self._began is None:
            self._began = self.clock.now
            self._took += 1
            took = self._took
            self.clock.at(self._began + self.batcher.max_wait, lambda: self._waited(took))
        if self.batcher._ready(1.0):
            self._compute()

    def _waited(self, took: int) -> None:
        if took == self._took and self._began is not None:
            self._compute()

    def _compute(self) -> None:
        self._began, self._computing = None, True
        batch, _ = self.batcher._pick(lambda unit: False, _any)
        tasks = len({unit.request.task for unit in batch})
        self.counts.update(batches=1, rows=len(batch), tasks=tasks)
        seconds = self.times.batch(len(batch), batch[0].tokens, tasks)
        self.counts["computing"] += seconds  # type: ignore[assignment]
        self.computing.do(seconds, lambda: self._computed(batch))

    def _computed(self, batch: list[Unit]) -> None:
        self._computing = False
        for unit in batch:
            self.responding.do(self.times.respond, lambda request=unit.request: self._respond(request))  # type: ignore[misc]
        self._take()

    def _respond(self, request: Request) -> None:
        self.loop.do(self._http(), lambda: self._answer(request, 200))

    def _answer(self, request: Request, status: int) -> None:
        self._users[request.task] -= 1
        self.under_way -= 1
        request.answered(status)


@dataclass
class Result:
    """What replicas did under a load; seconds."""

    throughput: float
    """Answers a second, until the last request was sent."""
    mean: float
    p50: float
    p95: float
    p99: float
    rows_per_batch: float
    hit_rate: float
    busy: float
    """The part of the cores' time that was used."""
    look_ups: float
    """A second, of all replicas."""
    loads: float
    """A second, of all replicas."""
    shares: dict[str, float] = field(default_factory=dict)
    """What the used time of the cores was used for."""
    statuses: dict[int, int] = field(default_factory=dict)


def simulate(
    load: Load,
    times: Times,
    *,
    replicas: int,
    routing: str,
    fit: int,
    cores: float = 1.0,
    wait: float | None = None,
    warm: float = 0.0,
) -> Result:
    """Return what replicas do under a load, which begins with the most popular tasks in memory.

    `fit` is how many tasks a replica has room for, `cores` what it may use, and `wait` how long a batch waits for rows.
    The figures are of the time after the first `warm` seconds.
    """
    clock, router = Clock(), Router(replicas, routing)
    found = [Replica(clock, times, fit, cores=cores, wait=wait) for _ in range(replicas)]
    for replica, tasks in zip(found, router.in_memory(fit, load.tasks), strict=True):
        replica.fill(tasks)
    latencies: list[float] = []
    statuses: Counter[int] = Counter()
    within = 0

    def send(arrival: Arrival, at: float) -> None:
        chosen = router.choose(arrival.task)

        def answered(status: int) -> None:
            nonlocal within
            router.done(chosen)
            statuses[status] += 1
            if status == 200 and at >= warm:
                latencies.append(clock.now - at)
            within += status == 200 and warm <= clock.now <= load.seconds
            if not load.rate and clock.now < load.seconds:
                send(next(arrivals), clock.now)

        request = Request(arrival.task, times.lengths[arrival.text % len(times.lengths)], answered)
        clock.at(clock.now + times.wake, lambda: found[chosen].receive(request))

    arrivals = load.arrivals()

    def next_one() -> None:
        if (arrival := next(arrivals, None)) is not None:
            clock.at(arrival.at, lambda: (send(arrival, arrival.at), next_one()))  # type: ignore[func-returns-value]

    before: Counter[str] = Counter()
    clock.at(warm, lambda: before.update(_total(found)))
    if load.rate:
        next_one()
    for arrival in itertools.islice(arrivals, 0 if load.rate else load.clients):
        clock.at(0.0, lambda arrival=arrival: send(arrival, 0.0))  # type: ignore[misc]
    clock.run()
    latencies.sort()
    total = _total(found)
    total.subtract(before)
    seconds = clock.now - warm
    http = total["HTTP"] + total["rows"] * times.respond
    spent = {"computing": total["computing"], "HTTP": http, "loading": total["loads"] * times.load,
             "looking up": total["look_ups"] * times.look_up}  # fmt: skip
    return Result(
        throughput=within / (load.seconds - warm),
        mean=sum(latencies) / max(len(latencies), 1),
        p50=quantile(latencies, 0.5), p95=quantile(latencies, 0.95), p99=quantile(latencies, 0.99),
        rows_per_batch=total["rows"] / max(total["batches"], 1),
        hit_rate=1 - total["loads"] / max(len(latencies), 1),
        busy=total["used"] / seconds / replicas / cores,
        look_ups=total["look_ups"] / seconds, loads=total["loads"] / seconds,
        shares={name: each / max(sum(spent.values()), 1e-9) for name, each in spent.items()},
        statuses=dict(statuses),
    )  # fmt: skip


def _total(replicas: list[Replica]) -> Counter[str]:
    """Return what replicas have counted together so far."""
    found: Counter[str] = Counter()
    for each in replicas:
        found.update(each.counts)
        found["used"] += each.processor.used  # type: ignore[assignment]
    return found
