"""A job's events as server-sent events, which a client can go on with where it lost them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from adaptree.reports.json_text import json_text
from adaptree.serve.jobs.job import ENDED, JobEvent

if TYPE_CHECKING:
    from adaptree.serve.jobs.queue import Jobs
    from adaptree.serve.service import Service

LOOK = 0.3
"""Seconds from one look for new events to the next."""
QUIET = 15.0
"""Seconds after which a comment says that the connection is alive."""
RETRY = 2000
"""Milliseconds after which a browser that lost the connection asks again."""
MEDIA = "text/event-stream"


def as_text(event: JobEvent) -> str:
    """Return an event as it is sent; JSON has no line ends in it."""
    return f"id: {event.number}\nevent: {event.event}\ndata: {json_text({**event.data, 'time': event.time})}\n\n"


def is_last(event: JobEvent) -> bool:
    return event.event == "state" and event.data.get("state") in ENDED


async def stream(service: Service, jobs: Jobs, id: str, after: int) -> AsyncIterator[bytes]:
    """Yield a job's events after a number, as they come; end with the job, or when the server is about to stop."""
    heard = time.monotonic()
    yield f"retry: {RETRY}\n\n".encode()
    while not service.draining:
        found = await asyncio.to_thread(jobs.events, id, after)
        if found:
            after, heard = found[-1].number, time.monotonic()
            yield "".join(map(as_text, found)).encode()
            if is_last(found[-1]):
                return
        elif time.monotonic() - heard > QUIET:
            heard = time.monotonic()
            yield b": still here\n\n"
        if not found:
            await asyncio.sleep(LOOK)
