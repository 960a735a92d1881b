"""A light client that sends requests at their times, whatever has been answered, over connections that it keeps."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scale.load import Arrival, Load, Router

Answered = Callable[[int, float], None]
"""Called with the status of an answer, and when it was there."""


class Connection(asyncio.Protocol):
    """One HTTP connection, with at most one request under way."""

    def __init__(self, idle: list[Connection]) -> None:
        self.idle, self.answered, self.transport = idle, _nobody, asyncio.Transport()
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def send(self, request: bytes, answered: Answered) -> None:
        self.answered = answered
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._data = b""
            answered, self.answered = self.answered, _nobody
            self.idle.append(self)
            answered(int(head[9:12]), time.perf_counter())

    def connection_lost(self, error: Exception | None) -> None:
        self.answered(0, time.perf_counter())


def _nobody(status: int, at: float) -> None:
    pass


@dataclass
class Sent:
    """What became of some requests."""

    latencies: list[float] = field(default_factory=list)
    """Seconds from the time at which a request was due to its answer, sorted."""
    statuses: Counter[int] = field(default_factory=Counter)
    within: int = 0
    """Answers that came before the load's time was over."""
    seconds: float = 0.0
    """From the first request to the last answer."""
    cpu: float = 0.0
    """Seconds of processor time that this client took."""


async def send(ports: Sequence[int], request: Callable[[Arrival], bytes], load: Load, router: Router) -> Sent:
    """Send a load to the replicas that the router chooses; return when all is answered."""
    loop, found, arrivals = asyncio.get_running_loop(), Sent(), load.arrivals()
    idle: list[list[Connection]] = [[] for _ in ports]
    under_way, sending = 0, True
    finished = loop.create_future()
    began, cpu = time.perf_counter(), time.process_time()

    def start(arrival: Arrival, due: float) -> Coroutine[Any, Any, None] | None:
        """Send a request; if that needs a new connection, return what makes it and sends then."""
        nonlocal under_way
        under_way += 1
        replica = router.choose(arrival.task)

        def answered(status: int, at: float) -> None:
            nonlocal under_way
            router.done(replica)
            under_way -= 1
            found.statuses[status] += 1
            if status == 200:
                found.latencies.append(at - due)
                found.within += at - began <= load.seconds
            if not load.rate and at - began < load.seconds:
                if (more := start(next(arrivals), at)) is not None:
                    making.add(made := loop.create_task(more))
                    made.add_done_callback(making.discard)
            elif not under_way and not sending and not finished.done():
                finished.set_result(None)

        async def connect() -> None:
            _, made = await loop.create_connection(lambda: Connection(idle[replica]), "127.0.0.1", ports[replica])
            made.send(request(arrival), answered)

        if not idle[replica]:
            return connect()
        idle[replica].pop().send(request(arrival), answered)
        return None

    making: set[asyncio.Task[None]] = set()
    for arrival in itertools.islice(arrivals, None if load.rate else load.clients):
        if (left := began + arrival.at - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        if (more := start(arrival, began + arrival.at)) is not None:
            await more
    sending = False
    if under_way:
        await finished
    found.seconds, found.cpu = time.perf_counter() - began, time.process_time() - cpu
    for each in idle:
        for connection in each:
            connection.transport.close()
    found.latencies.sort()
    return found
