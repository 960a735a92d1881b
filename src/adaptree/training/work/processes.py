"""Calls in processes of this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from adaptree.errors import TrainingError
from adaptree.training.work.executor import TRIES, Call, CallListener, Executor, Outcome, carry_out
from adaptree.training.work.interrupt import ctrl_c

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Any
    call: Call | None = None


class LocalProcesses(Executor):
    """Carries out calls in so many processes. One that dies costs its call one more try, and is replaced."""

    def __init__(self, on_event: CallListener, jobs: int) -> None:
        self._on_event, self._jobs = on_event, jobs
        self._workers: list[_Worker] = []
        self._waiting: deque[Call] = deque()
        self._tries: dict[str, int] = {}
        self._stopped = False

    def submit(self, call: Call) -> None:
        self._waiting.append(call)

    def outcomes(self, timeout: float) -> list[Outcome]:
        found: list[Outcome] = []
        if self._stopped:
            found += [Outcome(call.key, stopped=True) for call in self._waiting]
            self._waiting.clear()
        self._hand_out()
        busy = {worker.pipe: worker for worker in self._workers if worker.call is not None}
        if not busy:
            return found
        for pipe in connection.wait(list(busy), 0 if found else timeout):
            outcome = self._hear(busy[pipe])
            if outcome is not None:
                self._tries.pop(outcome.key, None)
                found.append(outcome)
        return found

    def _hand_out(self) -> None:
        """Give waiting calls to workers that have none; start workers while there are fewer than allowed."""
        while self._waiting:
            worker = next((worker for worker in self._workers if worker.call is None), None)
            if worker is None:
                if len(self._workers) >= self._jobs:
                    return
                worker = _start()
                self._workers.append(worker)
            try:
                worker.pipe.send(self._waiting[0])
            except OSError:  # it died while it had nothing to do
                self._bury(worker)
                continue
            worker.call = self._waiting.popleft()

    def _hear(self, worker: _Worker) -> Outcome | None:
        """Receive a message of a worker: an event, or the outcome of its call."""
        call = worker.call
        assert call is not None
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            return self._died(worker, call)
        if isinstance(message, Outcome):
            worker.call = None
            return message
        self._on_event(call.key, message)
        return None

    def _died(self, worker: _Worker, call: Call) -> Outcome | None:
        """Replace a worker that was killed; make its call once more, or report that it failed."""
        code = self._bury(worker)
        self._tries[call.key] = self._tries.get(call.key, 1) + 1
        if self._stopped:
            return Outcome(call.key, stopped=True)
        if self._tries[call.key] <= TRIES:
            self._waiting.appendleft(call)
            return None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        error = TrainingError(
            f"the process that trained it {how}, in {TRIES} tries.", hint="If memory is short: fewer --jobs, or --fast."
        )
        return Outcome(call.key, error=str(error))

    def _bury(self, worker: _Worker) -> int | None:
        """Forget a worker that is dead; return its exit code."""
        self._workers.remove(worker)
        worker.pipe.close()
        worker.process.join()
        return worker.process.exitcode

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            for worker in self._workers:
                if worker.call is not None and worker.process.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.process.pid, signal.SIGINT)

    def close(self) -> None:
        for worker in self._workers:
            if worker.call is not None:
                worker.process.kill()
            worker.pipe.close()  # one that waits for a call ends by itself
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


def _start() -> _Worker:
    """Start a process that waits for calls. It inherits a blocked Ctrl-C until it can cope with one."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
    with _ctrl_c_held_back():
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(pipe: Any) -> None:
    """Carry out the calls that come through a pipe, until it is closed or the process that started this one is gone."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a Ctrl-C on the terminal is for the first process, which passes it on once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with ctrl_c():
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        while True:
            try:
                call = pipe.recv()
            except (EOFError, OSError):
                return
            pipe.send(carry_out(call, pipe.send))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


@contextlib.contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """Deliver a Ctrl-C that is pressed in a `with` block at its end."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
