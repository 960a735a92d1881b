"""A light client that sends requests at their times, whatever has been answered (open loop), over kept connections."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.scale.load import Arrival, Router

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
    """Answers that came before the last request was sent."""
    seconds: float = 0.0
    """From the first request to the last answer."""
    cpu: float = 0.0
    """Seconds of processor time that this client took."""


async def send(ports: Sequence[int], requests: Callable[[Arrival], bytes], arrivals: Sequence[Arrival],
               router: Router, until: float) -> Sent:  # fmt: skip
    """Send each request at its time to the replica that the router chooses; return when all are answered."""
    loop, found = asyncio.get_running_loop(), Sent()
    idle: list[list[Connection]] = [[] for _ in ports]
    waiting = len(arrivals)
    finished = loop.create_future()
    began, cpu = time.perf_counter(), time.process_time()

    def answer(arrival: Arrival, replica: int) -> Answered:
        def answered(status: int, at: float) -> None:
            nonlocal waiting
            router.done(replica)
            found.statuses[status] += 1
            if status == 200:
                found.latencies.append(at - began - arrival.at)
                found.within += at - began <= until
            waiting -= 1
            if not waiting:
                finished.set_result(None)

        return answered

    async def connect(replica: int) -> Connection:
        _, made = await loop.create_connection(lambda: Connection(idle[replica]), "127.0.0.1", ports[replica])
        return made

    for arrival in arrivals:
        if (left := began + arrival.at - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        replica = router.choose(arrival.task)
        connection = idle[replica].pop() if idle[replica] else await connect(replica)
        connection.send(requests(arrival), answer(arrival, replica))
    await finished
    found.seconds, found.cpu = time.perf_counter() - began, time.process_time() - cpu
    for each in idle:
        for connection in each:
            connection.transport.close()
    found.latencies.sort()
    return found
