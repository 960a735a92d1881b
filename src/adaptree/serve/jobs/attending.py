"""What a server does for jobs beside answering: it serves new tasks at once, and clears away what nobody needs."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING

from adaptree.errors import AdaptreeError

if TYPE_CHECKING:
    from adaptree.serve.jobs.queue import Jobs
    from adaptree.serve.service import Service

LOOK = 1.0
"""Seconds from one look at the queue to the next; a new version of a task is served within two of them."""
SWEEP = 60.0


class Attendant(threading.Thread):
    """A thread that ends with its service."""

    def __init__(self, service: Service, jobs: Jobs) -> None:
        super().__init__(name="adaptree-jobs", daemon=True)
        self._service, self._jobs = weakref.ref(service), jobs

    def run(self) -> None:
        seen: dict[str, float] = {}
        since, swept = time.time() - 60, -SWEEP
        while (service := self._service()) is not None and not service.draining:
            try:
                if time.monotonic() - swept > SWEEP:
                    swept = time.monotonic()
                    self._jobs.sweep()
                for name, when in self._jobs.done_since(since - 60):
                    if seen.get(name) != when:  # clocks differ by less than a minute
                        seen[name] = max(seen.get(name, 0.0), when)
                        service.forget(name)
                        since = max(since, when)
            except AdaptreeError:
                pass  # the database or the store is away: look again
            del service
            time.sleep(LOOK)
