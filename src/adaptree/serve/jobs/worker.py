"""A worker: takes jobs out of the queue and trains them, one at a time, with the pipeline of `adaptree train`.

    Worker(store, jobs, base).run()

A thread sends heartbeats meanwhile. A worker that cannot send any stops before its lease ends, and one that was paused
for longer finds that its token is no good any more; neither can publish a task twice (`adaptree.serve.jobs.queue`).
"""

from __future__ import annotations

import os
import platform
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from adaptree.data.events import Event
from adaptree.errors import AdaptreeError, CannotResume, DataError, Diverged, TrainingError, UsageError, VersionTaken
from adaptree.serve.jobs.claims import Claim
from adaptree.serve.jobs.job import BEST, CANCELLED, DONE, FAILED, NOTHING, FileNotHere, LeaseLost
from adaptree.serve.jobs.queue import Jobs
from adaptree.serve.jobs.settings import run_of, without_folders
from adaptree.serve.observe import RequestLog
from adaptree.serve.problems import problem_of
from adaptree.tasks.record import STREAM
from adaptree.tasks.runs import remember
from adaptree.tasks.task import Task
from adaptree.training import checkpoint
from adaptree.training.pipeline import train
from adaptree.training.work.interrupt import ctrl_c, press

if TYPE_CHECKING:
    from pathlib import Path

    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

LEASE = float(os.environ.get("ADAPTREE_JOB_LEASE", "30"))
"""Seconds without a heartbeat after which a worker counts as dead."""
LOOK = 0.5
"""Seconds from one look at an empty queue to the next."""
LEAVE = "leave"
"""A worker is told to stop: its job goes back to the queue."""
LOST = "lost"


class Stopped(BaseException):
    """Ends a training from within, as a second Ctrl-C does."""


class Worker:
    """Trains the jobs of one base; `run` returns when it is told to stop, or with `drain` when the queue is empty."""

    def __init__(
        self,
        store: Store,
        jobs: Jobs,
        base: Base,
        *,
        log: RequestLog | None = None,
        lease: float = LEASE,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.store, self.jobs, self.base = store, jobs, base
        self.log, self.lease, self.say = log or RequestLog(""), lease, say or (lambda text: None)
        self.name = f"{platform.node()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._leaving = threading.Event()
        self._running: _Running | None = None
        jobs.on_end = self.log.bill

    def run(self, *, once: bool = False, drain: bool = False, idle: float | None = None) -> int:
        """Train jobs until `stop`; with `once` one of them, with `drain` all that there are. Return how many.

        With `idle`, end after so many seconds without one.
        """
        count, last = 0, time.monotonic()
        self.jobs.sweep()
        swept = time.monotonic()
        while not self._leaving.is_set():
            claim = self._claim()
            if claim is not None:
                self.train(claim)
                count, last = count + 1, time.monotonic()
                if once:
                    break
                continue
            if once or drain or (idle is not None and time.monotonic() - last > idle):
                break
            if time.monotonic() - swept > 60:
                swept = time.monotonic()
                with suppress(AdaptreeError):
                    self.jobs.sweep()
            self._leaving.wait(LOOK)
        return count

    def _claim(self) -> Claim | None:
        try:
            if not self.jobs.waiting():  # without a lock, as most looks find nothing
                return None
            return self.jobs.claim(self.name, self.base.fingerprint, lease=self.lease)
        except AdaptreeError as error:  # the database is away for longer: it may come back
            self.say(f"{error}")
            self._leaving.wait(5)
            return None

    def stop(self) -> None:
        """Give the job back at its next step, and end; may be called by any thread."""
        self._leaving.set()
        if (running := self._running) is not None:
            running.stop(LEAVE)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Do the same when a signal comes, which interrupts what the main thread does."""
        self._leaving.set()
        if (running := self._running) is not None:
            running.stopping = running.stopping or LEAVE
            running.interrupt()

    def on_wake(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the main thread, as another thread has said that the job is to stop."""
        if (running := self._running) is not None:
            running.interrupt()

    # one job

    def train(self, claim: Claim) -> None:
        """Train a job and publish its task, or leave it in the state that says why not."""
        job = claim.job
        self.say(f"{job.id}: {job.name}, from {job.file_name}")
        running = _Running(self, claim)
        self._running = running
        try:
            with running:
                running.carry_out()
        except LeaseLost:
            self.say(f"{job.id}: another worker has it, or it was cancelled")
        except AdaptreeError as error:  # the database is away: the lease will run out, and somebody go on
            self.say(f"{job.id}: {error}")
        finally:
            self._running = None


class _Running:
    """A job that is being trained, and the thread that sends its heartbeats."""

    def __init__(self, worker: Worker, claim: Claim) -> None:
        self.worker, self.claim, self.jobs, self.store = worker, claim, worker.jobs, worker.store
        self.stopping = claim.job.cancel
        """'' while it goes on; else why it ends: LEAVE, LOST, NOTHING or BEST."""
        self.began = self.reported = time.monotonic()
        self.progress: dict[str, Any] = dict(claim.job.progress)
        self._told = (0.0, 0.0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="adaptree-heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    # stopping

    def stop(self, why: str) -> None:
        """End the training for a reason: at its next event, or sooner where a signal can interrupt it."""
        if self.stopping in (LEAVE, LOST, NOTHING):
            return
        self.stopping = why
        if hasattr(signal, "SIGUSR1") and signal.getsignal(signal.SIGUSR1) == self.worker.on_wake:
            os.kill(os.getpid(), signal.SIGUSR1)

    def interrupt(self) -> None:
        """In the thread that trains: stop as `stopping` says."""
        if self.stopping == BEST:
            press()
        elif self.stopping:
            press(at_once=True)

    def _beat(self) -> None:
        """Renew the lease, and hear whether somebody cancels; stop the training if the lease may have run out."""
        job, sent = self.claim.job, 0
        while not self._over.wait(self.worker.lease / 6):
            try:
                cancel = self.jobs.beat(self.claim, self.seconds, lease=self.worker.lease)
            except LeaseLost:
                self.stop(LOST)
                return
            except Exception:
                if time.monotonic() - self.reported > self.worker.lease:
                    self.stop(LOST)
                    return
                continue
            self.reported = time.monotonic()
            with suppress(AdaptreeError, OSError):
                sent = self.jobs.files.send_checkpoint(job.id, sent)
            if cancel:
                self.stop(cancel)
            elif job.most_seconds and job.seconds + self.seconds > job.most_seconds:
                self.stop(BEST)

    # training

    def carry_out(self) -> None:
        """Train and publish, or say why not."""
        claim, job = self.claim, self.claim.job
        folder = self.jobs.files.checkpoints(job.id)
        try:
            reference = self._published(job.version)
            if not reference:
                with ctrl_c():
                    self.interrupt()
                    task = self._train(folder)
                reference = self._publish(task)
            self._finish(DONE, task=reference, metrics=self.store.record(reference).metrics)
        except (Stopped, KeyboardInterrupt):
            if self.stopping == NOTHING:
                self._finish(CANCELLED)
            elif self.stopping == LOST:
                raise LeaseLost("the lease was lost.") from None
            else:
                self.worker.stop()  # also for a Ctrl-C on the terminal
                with suppress(AdaptreeError):
                    self.jobs.files.send_checkpoint(job.id, 0)
                self.jobs.give_back(claim, self.seconds)
                return
        except LeaseLost:
            if self.jobs.get(job.id).cancel == NOTHING:
                self._finish(CANCELLED)
            else:
                raise
        except AdaptreeError as error:
            if self.stopping == BEST:  # before the first epoch there is nothing to keep
                self._finish(CANCELLED)
            else:
                self._fail(error)
                return  # it may be tried again, from its checkpoint
        except Exception as error:
            self.worker.log.failure(error, job.id)
            self.worker.say(traceback.format_exc())
            self._finish(FAILED, error={
                "code": "internal_error", "message": "something went wrong.", "hint": "Tell the owner the job's id.",
            })  # fmt: skip
        with suppress(AdaptreeError):
            self.jobs.files.drop_checkpoint(job.id)

    def _train(self, folder: Path) -> Task:
        job, base = self.claim.job, self.worker.base
        files = self.jobs.files
        files.fetch_checkpoint(job.id)
        with ExitStack() as opened:
            path = opened.enter_context(files.open(files.get(job.file)))
            more = {part: opened.enter_context(files.open(files.get(id))) for part, id in job.more_files.items()}
            options = {"base": base, "checkpoints": folder, "store": None, **more}
            begun = any((folder / name).is_file() for name in (checkpoint.FILE, checkpoint.SEARCH))
            run = run_of(path, job.settings, **options, resume=begun)
            try:
                task = train(run, self._listen)[0].task
            except CannotResume:
                task = train(replace(run, resume=False), self._listen)[0].task
        if not task.record.settings["finished"] and self.stopping != BEST:  # Ctrl-C on the terminal
            raise Stopped
        return task

    def _fail(self, error: AdaptreeError) -> None:
        """End a job with an error that its client may see: of the store nothing but that it does not work."""
        own = {DataError: "bad_data", UsageError: "bad_input", Diverged: "diverged", FileNotHere: "data_is_gone",
               TrainingError: "training_failed"}  # fmt: skip
        code = next((code for kind, code in own.items() if isinstance(error, kind)), "")
        if code:
            place = f"{self.jobs.files.folder}{os.sep}"
            said = {"code": code, "message": without_folders(error.what, place), "hint": error.hint}
        else:
            self.worker.log.failure(error, self.claim.job.id)
            said = problem_of(error).to_dict()["error"]
        self._finish(FAILED, error=said)

    def _finish(self, state: str, **more: Any) -> None:
        self.jobs.finish(self.claim, state, seconds=self.seconds, **more)
        self.worker.say(f"{self.claim.job.id}: {state} {more.get('task', '')}".rstrip())

    # publishing

    def _published(self, number: int) -> str:
        """Return the version that a worker before this one published; '' if none did."""
        job = self.claim.job
        if not number or number not in self.store.versions(job.name):
            return ""
        reference = f"{job.name}@{number}"
        return reference if self.store.record(reference).extra.get(STREAM) == job.key else ""

    def _publish(self, task: Task) -> str:
        """Keep a task as the version whose number is reserved for it, unless that was done; return its reference."""
        job, number = self.claim.job, self.claim.job.version
        record = replace(task.record, name=job.name, extra={**task.record.extra, STREAM: job.key})
        task = Task(record, task.tensors)
        while True:
            if not number:
                number = self.jobs.reserve(self.claim, self.store.next_number(job.name), 0)
            if done := self._published(number):
                return done
            try:
                kept = self.store.add(task, number=number)
                with suppress(AdaptreeError):
                    remember(self.store, self.worker.base)
                return kept.record.reference
            except VersionTaken:
                if done := self._published(number):
                    return done
                number = self.jobs.reserve(self.claim, self.store.next_number(job.name), number)

    # telling

    def _listen(self, event: Event) -> None:
        """Tell clients how the training goes on; end it if it is to stop."""
        if self.stopping:
            if self.stopping == BEST:
                press()
            else:
                raise Stopped
        kind = event["event"]
        if kind == "start":
            said = {name: event[name] for name in ("kind", "why", "base", "method", "train", "validation", "settings")}
            self._note("note", {"text": "training begins", **said})
        elif kind == "note":
            warning = {"warning": True} if event.get("warning") else {}
            text = event["text"].partition("; Ctrl-C")[0]  # a job has no terminal
            self._note("note", {"text": text, **warning})
        elif kind == "estimate":
            self.progress["seconds_left"] = round(event["seconds"], 1)
            self.progress["steps"] = event["steps"]
        elif kind == "step":
            self._step(event)
        elif kind == "epoch":
            score = event.get(event["metric"])
            self.progress |= {"epoch": event["epoch"], "epochs": event["epochs"], "score": score,
                              "metric": event["metric"], "loss": event["train_loss"],
                              "share": round(event["epoch"] / max(event["epochs"], 1), 4)}  # fmt: skip
            if event.get("left") is not None:
                self.progress["seconds_left"] = round(event["left"], 1)
            self._note("epoch", {key: value for key, value in event.items() if key != "event"}, progress=True)

    def _step(self, event: Event) -> None:
        """Note a step's progress, but not every one: once a second, and then at each part of 500, or ten seconds."""
        share = event["seen"] / max(event["total"], 1)
        now = time.monotonic()
        before, last = self._told
        if now - before < 1.0 or (share - last < 0.002 and now - before < 10.0):
            return
        self._told = now, share
        left = event["seconds"] * (1 - share) / share if share else None
        self.progress |= {
            "epoch": event["epoch"], "epochs": event["epochs"], "step": event["step"], "loss": event["loss"],
            "share": round(share, 4), "seconds_left": None if left is None else round(left, 1),
        }  # fmt: skip
        self._note("progress", dict(self.progress), progress=True)

    def _note(self, event: str, data: dict[str, Any], *, progress: bool = False) -> None:
        try:
            self.jobs.note(self.claim, event, data, self.progress if progress else None)
        except LeaseLost:
            self.stopping = LOST
            raise Stopped from None
        except AdaptreeError:
            pass  # the database is away: heartbeats say whether it is for too long
