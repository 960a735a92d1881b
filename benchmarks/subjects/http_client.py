"""A small HTTP client on loopback, for measuring servers: many connections that ask without a pause, or one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

Ask = Callable[[int], tuple[str, Any]]
"""The path and body of the nth request."""


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: Any) -> tuple[int, Any]:
    """Send a request over a connection that stays open; return the status and the body."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    writer.write(f"{head}\r\n\r\n".encode() + data)
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length:"))
    return int(lines[0].split()[1]), json.loads(await reader.readexactly(length))


async def _load(port: int, request: Ask, connections: int, seconds: float) -> list[float]:
    """Return the latency of each answer within so many seconds; raise RuntimeError for one that is no answer."""
    ends, count, latencies = time.perf_counter() + seconds, iter(range(10**9)), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < ends:
            code, found = await ask(reader, writer, *request(next(count)))
            if code != 200:
                raise RuntimeError(f"{code}: {found}")
            latencies.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(client() for _ in range(connections)))
    return latencies


def load(port: int, request: Ask, *, connections: int, seconds: float) -> list[float]:
    """Return the latency of each answer, in seconds, sorted."""
    return sorted(asyncio.run(_load(port, request, connections, seconds)))


def at(latencies: Sequence[float], share: float) -> float:
    """Return a quantile of sorted latencies."""
    return latencies[min(len(latencies) - 1, int(share * len(latencies)))]
