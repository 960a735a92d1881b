"""The workers that a server starts itself: processes of their own, there while there is something to train."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaptree.errors import AdaptreeError

if TYPE_CHECKING:
    from adaptree.serve.jobs.queue import Jobs

LOOK = 0.5
"""Seconds from one look at the queue to the next."""
IDLE = 300
"""Seconds after which a worker that has nothing to do ends; the next job starts another."""
GRACE = 20.0
"""Seconds that workers have to save a checkpoint when the server stops."""
YOUNG, PAUSE = 10.0, 30.0
"""A worker that dies before it is so old is started again only after a pause, which doubles up to this."""


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    began: float


class WorkerProcesses:
    """Keeps up to so many workers running while jobs wait; `with` starts it, and stops the workers at its end.

    `options` and `environment` are those of `adaptree worker`. A worker ends when this process
    does, however that comes.
    """

    def __init__(
        self, jobs: Jobs, count: int, options: list[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.jobs, self.count = jobs, count
        self._environment = {**os.environ, **(environment or {})}
        self._command = [sys.executable, "-m", "adaptree", "worker", *options, "--idle", str(IDLE), "--with-parent"]
        self._children: list[_Child] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="adaptree-workers", daemon=True)
        self._pause, self._not_before = 1.0, 0.0

    def __enter__(self) -> WorkerProcesses:
        if self.count:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self.count:
            self._thread.join()
        for child in self._children:
            child.process.terminate()
        until = time.monotonic() + GRACE
        for child in self._children:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, until - time.monotonic()))
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()
            self._bury(child)

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self._children]

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            for child in [each for each in self._children if each.process.poll() is not None]:
                self._children.remove(child)
                self._bury(child)
            with suppress(AdaptreeError):  # the database is away: look again
                if len(self._children) < self.count and time.monotonic() > self._not_before and self.jobs.waiting():
                    self._start()

    def _start(self) -> None:
        # A session of its own: a Ctrl-C on the terminal is for the server, and the kernel's share is the worker's own.
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True, env=self._environment)
        self._children.append(_Child(process, time.monotonic()))

    def _bury(self, child: _Child) -> None:
        """Give the job of a worker that is dead back to the queue, without waiting for its lease."""
        if child.process.stdin is not None:
            child.process.stdin.close()
        if child.process.returncode and time.monotonic() - child.began < YOUNG:
            self._not_before = time.monotonic() + self._pause
            self._pause = min(PAUSE, 2 * self._pause)
        else:
            self._pause = 1.0
        with suppress(AdaptreeError):
            self.jobs.take_back(f"{platform.node()}/{child.process.pid}/")
