"""Training jobs on a Ray cluster: each is a Ray task that runs the worker for one job.

The queue stays what decides: the task claims the job itself, renews its lease and publishes, as a worker does that was
started by hand. One whose machine is lost stops renewing, and when its lease has run out another task goes on from the
job's checkpoint.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Event, Listener
from adaptree.errors import AdaptreeError
from adaptree.serve.jobs.worker import LEASE, Worker
from adaptree.training.work.executor import Call, Executor, executor_for
from adaptree.training.work.shared_store import check_known, known, place_of

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.serve.jobs.queue import Jobs
    from adaptree.tasks.store import Store

LOOK = 0.5
"""Seconds from one look at the queue to the next."""
GRACE = 20.0
"""Seconds that tasks have to give their jobs back when this process is told to stop."""
PAUSE = 30.0
"""After a task that failed, the next one starts after a pause, which doubles up to so many seconds."""


@dataclass(frozen=True)
class JobPlace:
    """What a worker on another machine needs to know: plain values."""

    store: str
    index: str | None
    base: str | Path
    """A Path if it is a folder here, a copy of which goes to other machines."""
    device: str = "auto"
    threads: int = 1
    log: str = ""
    lease: float = LEASE

    @classmethod
    def of(cls, store: Store, base: str, **more: Any) -> JobPlace:
        """Return what workers of a store need; raise an error if its base is not here."""
        from adaptree.models.opening import encoder_of

        encoder_of(base)
        folder = Path(base).expanduser()
        return cls(place_of(store), store.index.server, folder.resolve() if folder.is_dir() else base, **more)


class ClusterWorkers:
    """Has jobs trained on a cluster, up to so many at once, while any wait.

    `run` does so in this thread; as a context it does so in a thread of its own, and stops at the end of the `with`.
    """

    def __init__(
        self, store: Store, jobs: Jobs, place: JobPlace, cluster: str, count: int, say: Callable[[str], None]
    ) -> None:
        self.store, self.jobs, self.place, self.count, self.say = store, jobs, place, count, say
        self.executor: Executor = executor_for(cluster, 1, self._hear)
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self.run, name="adaptree-cluster-workers", daemon=True)

    def __enter__(self) -> ClusterWorkers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()

    def stop(self, *_: object) -> None:
        """Have the jobs under way given back, and end; may be called by any thread, or as a signal's handler."""
        self._leaving.set()

    def run(self, *, once: bool = False, drain: bool = False, idle: float | None = None) -> int:
        """Have jobs trained until `stop`; with `once` one of them, with `drain` all that there are. Return how many.

        With `idle`, end after so many seconds without one.
        """
        with contextlib.closing(self.executor), known(self.store, self.executor) as mark:
            return self._run(mark, once, drain, idle)

    def _run(self, mark: str, once: bool, drain: bool, idle: float | None) -> int:
        begun = running = trained = 0
        last, pause, not_before = time.monotonic(), 1.0, 0.0
        while not self._leaving.is_set():
            waiting = self._waiting()
            if waiting and running < self.count and time.monotonic() > not_before and not (once and begun):
                begun, running = begun + 1, running + 1
                call = Call(f"job {begun}", train_one, (self.place, mark), cores=self.place.threads)
                self.executor.submit(call)
            if not running:
                if (once and begun) or (not waiting and (once or drain)):
                    break
                if idle is not None and time.monotonic() - last > idle:
                    break
                self._leaving.wait(LOOK)
            for outcome in self.executor.outcomes(LOOK):
                running, last = running - 1, time.monotonic()
                if outcome.error:
                    self.say(outcome.error)
                    not_before, pause = time.monotonic() + pause, min(PAUSE, 2 * pause)
                    begun -= once
                else:
                    trained, pause = trained + int(outcome.value or 0), 1.0
        self._give_back(running)
        return trained

    def _give_back(self, running: int) -> None:
        """Have the tasks under way save their checkpoints and give their jobs back."""
        self.executor.stop()
        until = time.monotonic() + GRACE
        while running > 0 and time.monotonic() < until:
            running -= len(self.executor.outcomes(LOOK))

    def _waiting(self) -> bool:
        try:
            return self.jobs.waiting()
        except AdaptreeError as error:  # the database is away for longer: it may come back
            self.say(str(error))
            self._leaving.wait(5)
            return False

    def _hear(self, key: str, event: Event) -> None:
        self.say(event["text"])


_opened: dict[tuple[str, str], Base] = {}
"""The base of the last job that this process had: the next one usually has the same."""


def train_one(place: JobPlace, mark: str, on_event: Listener) -> int:
    """Claim a job, train it and publish its task, in this process; return 0 if another worker has taken it."""
    import torch

    from adaptree.models.opening import base_of
    from adaptree.serve.jobs.queue import Jobs
    from adaptree.serve.observe import RequestLog
    from adaptree.tasks.store import Store

    store = Store(place.store, index=place.index)
    check_known(store, mark)
    key = str(place.base), place.device
    if key not in _opened:
        _opened.clear()
        _opened[key] = base_of(place.base, place.device, place.threads)
    torch.set_num_threads(place.threads)
    jobs = Jobs(store)

    def say(text: str) -> None:
        on_event({"event": "note", "text": text})

    try:
        log = RequestLog(place.log, _Lines(say))  # type: ignore[arg-type]
        return Worker(store, jobs, _opened[key], log=log, lease=place.lease, say=say).run(once=True)
    finally:
        jobs.database.dispose()


class _Lines:
    """A text file whose lines are sent to whoever had a job trained."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send

    def write(self, text: str) -> int:
        if text.strip():
            self._send(text.rstrip("\n"))
        return len(text)

    def flush(self) -> None:
        pass
