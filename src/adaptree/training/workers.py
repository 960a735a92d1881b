"""Who carries out the work of a stream: this process, or several of this machine.

An `Executor` is all that a stream knows of it, so that the machines of a cluster can do the same work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Event, Listener, silent
from adaptree.errors import AdaptreeError, CannotResume, DataError, Diverged, TrainingError, UsageError
from adaptree.tasks.record import STREAM, read_record
from adaptree.tasks.runs import LOCK, STREAMS
from adaptree.training.entries import Signature, signature
from adaptree.training.interrupt import ctrl_c

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

TRAINED, UNCHANGED, FAILED, STOPPED = "trained", "unchanged", "failed", "stopped"
LASTING = (DataError, UsageError, Diverged)
"""Errors that come again while the file and its settings are the same."""
REPORTED = ("start", "epoch", "estimate")
"""Events of a run that are sent to whoever waits for it, and warnings."""
TRIES = 2
"""How often work is begun whose process is killed."""
WorkListener = Callable[[str, Event], None]
"""A function of a task's name and an event of its run."""


@dataclass(frozen=True)
class Work:
    """A file to train a task on: plain values, which can be sent to another process."""

    task: str
    data: str
    options: dict[str, Any]
    """Those of `adaptree.train`."""
    key: str
    """The digest of the files' contents and of the settings."""
    files: tuple[str, ...]
    signature: Signature
    """That of the files when the key was computed."""


@dataclass(frozen=True)
class Outcome:
    """How a piece of work has ended: trained, unchanged (it was done before), failed or stopped."""

    task: str
    state: str
    version: int = 0
    why: str = ""
    lasting: bool = False
    """Whether it would fail again."""
    base_is_intact: bool = True
    """Whether the base's weights had the same fingerprint after training."""
    trace: str = ""


class Executor(ABC):
    """Carries out work. Every piece that is submitted has one outcome, in any order."""

    @abstractmethod
    def submit(self, work: Work) -> None:
        """Take on a piece of work, without waiting for it."""

    @abstractmethod
    def outcomes(self, timeout: float) -> list[Outcome]:
        """Return the outcomes since the last call; wait for the first of them, but not longer than `timeout` seconds.

        One that works in this process returns when a piece is done.
        """

    @abstractmethod
    def stop(self) -> None:
        """Begin no more work, and end what is under way at its next step, with a checkpoint."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; work that is still under way is lost."""


class InThisProcess(Executor):
    """Carries out the work itself, one piece with each call of `outcomes`."""

    def __init__(self, on_event: WorkListener, store: Store, base: Base | None = None) -> None:
        self._on_event = on_event
        self._trainer = FileTrainer(store, base)
        self._waiting: deque[Work] = deque()
        self._stopped = False

    def submit(self, work: Work) -> None:
        self._waiting.append(work)

    def outcomes(self, timeout: float) -> list[Outcome]:
        if not self._waiting:
            return []
        if self._stopped:
            dropped = [Outcome(work.task, STOPPED) for work in self._waiting]
            self._waiting.clear()
            return dropped
        work = self._waiting.popleft()
        return [self._trainer(work, lambda event: self._on_event(work.task, event))]

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        self._waiting.clear()


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Any
    work: Work | None = None


class LocalProcesses(Executor):
    """Carries out the work in processes of this machine, each with a base of its own and a share of the threads.

    A process that dies costs its work one more try, and is replaced.
    """

    def __init__(self, on_event: WorkListener, store: str | Path | None, jobs: int) -> None:
        self._on_event, self._store, self._jobs = on_event, store, jobs
        self._workers: list[_Worker] = []
        self._waiting: deque[Work] = deque()
        self._tries: dict[str, int] = {}
        self._stopped = False

    def submit(self, work: Work) -> None:
        self._waiting.append(work)

    def outcomes(self, timeout: float) -> list[Outcome]:
        found: list[Outcome] = []
        if self._stopped:
            found += [Outcome(work.task, STOPPED) for work in self._waiting]
            self._waiting.clear()
        self._hand_out()
        busy = {worker.pipe: worker for worker in self._workers if worker.work is not None}
        if not busy:
            return found
        for pipe in connection.wait(list(busy), 0 if found else timeout):
            outcome = self._hear(busy[pipe])
            if outcome is not None:
                self._tries.pop(outcome.task, None)
                found.append(outcome)
        return found

    def _hand_out(self) -> None:
        """Give waiting work to workers that have none; start workers while there are fewer than allowed."""
        while self._waiting:
            worker = next((worker for worker in self._workers if worker.work is None), None)
            if worker is None:
                if len(self._workers) >= self._jobs:
                    return
                worker = _start(self._store, self._jobs)
                self._workers.append(worker)
            try:
                worker.pipe.send(self._waiting[0])
            except OSError:  # it died while it had nothing to do
                self._bury(worker)
                continue
            worker.work = self._waiting.popleft()

    def _hear(self, worker: _Worker) -> Outcome | None:
        """Receive a message of a worker: an event, or the outcome of its work."""
        work = worker.work
        assert work is not None
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            return self._died(worker, work)
        if isinstance(message, Outcome):
            worker.work = None
            return message
        self._on_event(work.task, message)
        return None

    def _died(self, worker: _Worker, work: Work) -> Outcome | None:
        """Replace a worker that was killed; begin its work once more, or report that it failed."""
        code = self._bury(worker)
        self._tries[work.task] = self._tries.get(work.task, 1) + 1
        if self._tries[work.task] <= TRIES and not self._stopped:
            self._waiting.appendleft(work)
            return None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        error = TrainingError(
            f"the process that trained it {how}, in {TRIES} tries.", hint="If memory is short: fewer --jobs, or --fast."
        )
        return Outcome(work.task, STOPPED if self._stopped else FAILED, why=str(error))

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
                if worker.work is not None and worker.process.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(worker.process.pid, signal.SIGINT)

    def close(self) -> None:
        for worker in self._workers:
            if worker.work is not None:
                worker.process.kill()
            worker.pipe.close()  # one that waits for work ends by itself
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()


def _start(store: str | Path | None, jobs: int) -> _Worker:
    """Start a process that waits for work. It inherits a blocked Ctrl-C until it can cope with one."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_serve, args=(theirs, store, jobs), daemon=True)
    with _ctrl_c_held_back():
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _serve(pipe: Any, store: str | Path | None, jobs: int) -> None:
    """Carry out the work that comes through a pipe, until it is closed or the process that started this one is gone."""
    from adaptree.tasks.store import Store

    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a Ctrl-C on the terminal is for the stream, which passes it on once
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with ctrl_c():
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        trainer = FileTrainer(Store(store), share=jobs)
        while True:
            try:
                work = pipe.recv()
            except (EOFError, OSError):
                return
            pipe.send(trainer(work, pipe.send))


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


class FileTrainer:
    """Trains a task on one file after another, over a base that it loads once."""

    def __init__(self, store: Store, base: Base | None = None, *, share: int = 1) -> None:
        self.store = store
        self._given = base
        """A base of the caller's, which need not be loaded."""
        self._loaded: tuple[Any, Base] | None = None
        self._share = share
        """How many processes share the machine's threads."""
        self._threads: int | None = None

    def __call__(self, work: Work, on_event: Listener = silent) -> Outcome:
        """Train what a piece of work asks for, and return how that ended; no error of a file is raised."""
        try:
            with ctrl_c() as pressed:
                return self._train(work, on_event, pressed)
        except KeyboardInterrupt:
            return Outcome(work.task, STOPPED)
        except AdaptreeError as error:
            lasting = isinstance(error, LASTING)
            return Outcome(work.task, FAILED, why=str(error), lasting=lasting, trace=traceback.format_exc())
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            why = f"unexpected {type(error).__name__}: {first}"
            return Outcome(work.task, FAILED, why=why, trace=traceback.format_exc())

    def _train(self, work: Work, on_event: Listener, pressed: Callable[[], bool]) -> Outcome:
        from adaptree.models.cache_files import alone
        from adaptree.models.fingerprint import fingerprint
        from adaptree.training.pipeline import train
        from adaptree.training.run import Run, checkpoint_folder

        store = self.store
        with alone(streams_folder(store) / f"{work.task.replace('/', '.')}{LOCK}", pressed):
            if done := version_of(store, work.task, work.key):  # by another process
                return Outcome(work.task, UNCHANGED, done)
            base = self._base(work)
            options = {**work.options, "base": base, "threads": self._share_of_threads(work)}
            resume = checkpoint_folder(store, work.task).is_dir()
            run = Run.of(work.data, name=work.task, store=store, stream=work.key, resume=resume, **options)
            listener = _reporting(work, on_event)
            try:
                trained = train(run, listener)[0]
            except CannotResume:  # it was of the file as it was before
                trained = train(replace(run, resume=False), listener)[0]
        intact = fingerprint(base.hooked.backbone) == base.fingerprint
        return Outcome(work.task, TRAINED, trained.task.record.version, base_is_intact=intact)

    def _base(self, work: Work) -> Base:
        from adaptree.models.opening import base_of

        wanted = work.options.get("base", "minilm")
        if self._given is not None and wanted == self._given.location:
            return self._given
        options = {name: work.options.get(name, False) for name in ("trust_remote_code", "allow_pickle")}
        device = str(work.options.get("device", "auto"))
        key = (str(wanted), device, *options.values())
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = None  # two at once may be too many for the memory
            self._loaded = key, base_of(wanted, device, self._share_of_threads(work), **options)
        return self._loaded[1]

    def _share_of_threads(self, work: Work) -> int | None:
        import torch

        if self._share == 1 or work.options.get("threads"):
            return work.options.get("threads")
        self._threads = self._threads or max(1, torch.get_num_threads() // self._share)
        return self._threads


def _reporting(work: Work, on_event: Listener) -> Listener:
    """Return a listener that passes on what a stream shows; it raises TrainingError if the file has changed."""

    def listen(event: Event) -> None:
        if event["event"] == "start" and signature(map(Path, work.files)) != work.signature:
            raise TrainingError("it was changed while it was read.", hint="Run the command again.")
        if event["event"] in REPORTED or event.get("warning"):
            on_event(event)

    return listen


def streams_folder(store: Store) -> Path:
    """Return the folder, in a store's, of what streams keep there: locks, and which files were set aside."""
    return store.path / STREAMS


def version_of(store: Store, task: str, key: str) -> int:
    """Return the newest version of a task that was trained on files and settings with this digest; 0 if none was."""
    for version in reversed(store.versions(task)):
        reference = f"{task}@{version}"
        with contextlib.suppress(AdaptreeError):  # a damaged version is none
            if read_record(store.path_of(reference), called=reference).extra.get(STREAM) == key:
                return version
    return 0
