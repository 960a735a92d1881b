"""The serving engine: requests that name their task become batches that mix tasks, in one forward pass of the base.

    engine = Engine(load_base(), Store("my-store"), memory=2 << 30)
    engine.predict("reviews", ["great phone"])            # waits; `submit` returns a future
    engine.close()

A request is read where it arrives, its rows wait in the `Batcher`, one thread computes, another makes predictions of
what comes out. Texts are written a token at a time, between two batches (`Writing`). A task that is not in memory is
loaded meanwhile (`Shelf`).
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adaptree.data.batch import canonical
from adaptree.data.decoding import Decoding
from adaptree.data.encode import Encoding
from adaptree.errors import AdaptreeError, UsageError
from adaptree.kinds import Example
from adaptree.models.decoding_loop import Text
from adaptree.models.passes import NotShareable
from adaptree.serve.batcher import MAX_QUEUE, MAX_TOKENS, MAX_WAIT, Batcher, Unit
from adaptree.serve.generation import WRITE, OnPiece, TextStream, Writing
from adaptree.serve.served import Served
from adaptree.serve.shelf import Shelf

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

MEMORY = 2 << 30
LATELY = 1000
"""Batches that the figures of `stats` look back on."""
LOW = -1
"""The priority of requests that only compare versions."""


class DeadlineExceeded(AdaptreeError):
    """A request was not computed in time."""


class Closed(AdaptreeError):
    """The engine takes no more requests."""


class ReplicaLost(AdaptreeError):
    """The process of a cluster that computed a request is gone: ask again."""


@dataclass(eq=False)
class Request:
    """Inputs for one task, on their way through the engine."""

    name: str
    inputs: Any
    future: Future[list[Any]]
    customer: str
    priority: int
    deadline: float | None
    min_score: float | None
    decoding: Decoding | None = None
    on_piece: OnPiece | None = None
    began: float = field(default_factory=time.monotonic)
    served: Served | None = None
    read: list[Any] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    """What is written for each input, of a task that writes."""
    outs: list[Any] = field(default_factory=list)
    missing: int = 0
    out: Any = None

    def fail(self, error: BaseException) -> None:
        """Tell the one who waits; only the first word counts."""
        self.done()
        with suppress(InvalidStateError):  # cancelled, or told already
            self.future.set_exception(error)

    def done(self) -> None:
        """Stop using the task."""
        served, self.served = self.served, None
        if served is not None:
            served.release()


@dataclass
class Shadow:
    """A version that answers some of the requests for another too, for comparison; nobody sees its answers."""

    name: str
    other: str
    share: float
    compared: int = 0
    differs: int = 0
    failed: int = 0
    examples: deque[tuple[Any, Any, Any]] = field(default_factory=lambda: deque(maxlen=20))
    """Inputs with both answers, where they differ."""


@dataclass(frozen=True)
class Batch:
    """What was computed at once."""

    rows: int
    tokens: int
    tasks: int
    seconds: float
    apart: bool


class Engine:
    """Serves the tasks of a store on one base; safe for any number of threads."""

    def __init__(
        self,
        base: Base,
        store: Store,
        *,
        memory: int = MEMORY,
        max_tokens: int = MAX_TOKENS,
        max_wait: float = MAX_WAIT,
        max_queue: int = MAX_QUEUE,
        on_batch: Callable[[Batch], None] | None = None,
    ) -> None:
        self.base, self.store = base, store
        self.shelf = Shelf(base, store, memory=memory)
        self.batcher = Batcher(max_tokens, max_wait, max_queue)
        self.writing = Writing(base, self.shelf.bank)
        self.counts: Counter[str] = Counter()
        """Requests, rows, failures, … since the start."""
        self.lately: deque[Batch] = deque(maxlen=LATELY)
        self.shadows: dict[str, Shadow] = {}
        self._on_batch = on_batch
        self._closed = False
        self._finished: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._compute, name="adaptree-compute", daemon=True),
            threading.Thread(target=self._respond, name="adaptree-respond", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # Requests

    def predict(self, task: str, inputs: Any, **options: Any) -> list[Any]:
        """Return a prediction for each input, as `Bound.predict` does; the options are those of `submit`."""
        return self.submit(task, inputs, **options).result()

    def submit(
        self,
        task: str,
        inputs: Any,
        *,
        customer: str = "",
        priority: int = 0,
        timeout: float | None = None,
        min_score: float | None = None,
        decoding: Decoding | None = None,
        on_piece: OnPiece | None = None,
    ) -> Future[list[Any]]:
        """Return a future of the predictions; cancel it if nobody waits any more.

        `decoding` says how a task that writes texts chooses them; `on_piece` gets them piece by piece, and is called
        by the computing thread: it must return at once.

        `customer` is who shares the base fairly with others: by default, the task. Raise QueueFull if too much waits
        already. The future fails with DeadlineExceeded after `timeout` seconds, and with what is wrong with the task or
        the inputs.
        """
        if self._closed:
            raise Closed("the server is shutting down.", hint="Ask another one.")
        deadline = None if timeout is None else time.monotonic() + timeout
        own = customer or task
        request = Request(task, inputs, Future(), own, priority, deadline, min_score, decoding, on_piece)
        self.counts["requests"] += 1
        found = self.shelf.get(task)
        if isinstance(found, Served):
            self._read(request, found)
        else:
            found.add_done_callback(lambda loaded: self._loaded(request, loaded))
        if task in self.shadows and priority != LOW:
            self._shadow(request, self.shadows[task])
        return request.future

    def stream(self, task: str, inputs: Any, **options: Any) -> TextStream:
        """Return the texts that a task writes as an async iterator of (number of the input, piece), as they come.

        The options are those of `submit`. It must be called in a running event loop.
        """
        stream = TextStream()
        return stream.follow(self.submit(task, inputs, on_piece=stream.on_piece, **options))

    def _loaded(self, request: Request, loaded: Future[Served]) -> None:
        error = loaded.exception()
        if error is not None:
            self.counts["failures"] += 1
            request.fail(error)
            return
        try:
            self._read(request, loaded.result())
        except Exception as problem:  # the queue is full by now, for one
            self.counts["failures"] += 1
            request.fail(problem)

    def _read(self, request: Request, served: Served) -> None:
        """Encode a request's inputs and queue their rows; raise QueueFull if there is no room."""
        request.served = served
        if request.deadline is not None and time.monotonic() > request.deadline:  # it took long to load
            self._expire(request)
            return
        try:
            _check_options(request, served)
            request.read, request.examples = served.read(request.inputs)
            units = list(self._units(request, served))
            if units:
                self.batcher.put(units)
            else:
                self._finish(request)
        except UsageError as error:
            self.counts["refused"] += 1
            request.fail(error)
        except BaseException:
            request.done()
            raise

    def _units(self, request: Request, served: Served) -> Iterator[Unit]:
        if served.kind.generates:
            how = request.decoding or Decoding()
            request.texts = [self._text(request, i, how) for i in range(len(request.examples))]
            request.outs, request.missing = [None] * len(request.texts), len(request.texts)
            for i, text in enumerate(request.texts):
                yield self._unit(request, i, WRITE, len(text.prompt))
            return
        if served.place is None:  # one unit for the whole request
            tokens = sum(len(row.ids) for example in request.examples for row in example)
            request.missing = 1
            if request.read:
                yield self._unit(request, 0, ("apart", served.reference), tokens or len(request.read))
            return
        rows = [row for example in request.examples for row in example]
        request.outs, request.missing = [None] * len(rows), len(rows)
        for i, row in enumerate(rows):
            length = canonical(len(row.ids))
            yield self._unit(request, i, length, length)

    def _text(self, request: Request, number: int, how: Decoding) -> Text:
        assert request.served is not None
        on_piece = request.on_piece

        def on_text(piece: str) -> None:
            try:
                on_piece(number, piece)  # type: ignore[misc]
            except Exception as error:  # of its own request alone: others are written in the same step
                request.fail(error)

        ids = request.examples[number][0].ids
        return Text(ids, how, self.base, place=request.served.place, on_text=None if on_piece is None else on_text)

    def _unit(self, request: Request, number: int, shape: Any, tokens: int) -> Unit:
        return Unit(request, number, shape, tokens, request.customer, request.priority, request.deadline)

    # Computing

    def _compute(self) -> None:
        try:
            while True:
                batch = self.batcher.take(self._expire_unit, self._gone, self.writing.may, block=not self.writing)
                if not batch and not self.writing:
                    break
                try:
                    if batch:
                        self._compute_batch(batch)
                    if self.writing:
                        self._write()
                except BaseException as error:
                    for request in {id(unit.request): unit.request for unit in batch}.values():
                        self.counts["failures"] += 1
                        request.fail(error)
        finally:
            self._finished.put(None)

    def _write(self) -> None:
        """Write one token of each text that is under way."""
        self.writing.drop(self._gone, self._expire_unit)
        rows, tasks, began = len(self.writing), self.writing.tasks, time.perf_counter()
        done, failed = self.writing.step()
        for unit, text in done:
            self.batcher.charge(unit.customer, unit.priority, text.tokens)
            self.counts.update(prompt_tokens=text.prompt_tokens, written_tokens=text.tokens)
            if self._arrived(unit, text):
                self._finish(unit.request)
        for unit, error in failed:
            self.counts["failures"] += 1
            unit.request.fail(error)
        if rows and self._on_batch is not None:
            self._on_batch(Batch(rows, rows, tasks, time.perf_counter() - began, False))

    def _arrived(self, unit: Unit, out: Any) -> bool:
        """Keep what was computed for a row; return whether its request is complete."""
        request = unit.request
        request.outs[unit.number] = out
        request.missing -= 1
        return not request.missing

    def _compute_batch(self, batch: Sequence[Unit]) -> None:
        if batch[0].shape == WRITE:
            self.writing.add(batch)
            return
        began = time.perf_counter()
        apart = batch[0].request.served.place is None
        done = (self._apart if apart else self._together)(batch)
        self._count(batch, time.perf_counter() - began, apart)
        for request in done:
            self._finish(request)

    def _gone(self, unit: Unit) -> bool:
        """Return whether a row need not be computed: its request was cancelled, or has failed."""
        if unit.request.future.cancelled():
            unit.request.done()
        return unit.request.served is None

    def _expire_unit(self, unit: Unit) -> None:
        self._expire(unit.request)

    def _expire(self, request: Request) -> None:
        if request.served is not None:
            self.counts["expired"] += 1
            late = DeadlineExceeded("the answer was not ready in time.", hint="Allow more time, or ask less.")
            request.fail(late)

    def _together(self, batch: Sequence[Unit]) -> list[Request]:
        """Compute rows of any tasks in one forward pass; return the requests that are complete."""
        done = []
        by_task: dict[int, list[Unit]] = {}
        for unit in batch:
            by_task.setdefault(id(unit.request.served), []).append(unit)
        groups = [(members[0].request.served, [_row(unit) for unit in members]) for members in by_task.values()]
        try:
            states = self.shelf.bank.states([(served.place, rows) for served, rows in groups])
        except NotShareable:  # a module that the probe did not meet: each alone
            states = [self.shelf.bank.states([(served.place, rows)])[0] for served, rows in groups]
        for (served, rows), members, (hidden, mask) in zip(groups, by_task.values(), states, strict=True):
            out = served.run_head(hidden, mask, rows)
            for i, unit in enumerate(members):
                if self._arrived(unit, out[i]):
                    done.append(unit.request)
        return done

    def _apart(self, batch: Sequence[Unit]) -> list[Request]:
        """Compute requests for one task that has passes of its own, and return them."""
        served = batch[0].request.served
        requests = [unit.request for unit in batch]
        read = [each for request in requests for each in request.read]
        examples = [each for request in requests for each in request.examples]
        out = served.run_apart(read, examples)
        rows = 0
        for request in requests:
            count = sum(map(len, request.examples)) or len(request.read)
            request.out = out[rows : rows + count]
            rows += count
        return requests

    def _count(self, batch: Sequence[Unit], seconds: float, apart: bool) -> None:
        tokens = sum(unit.tokens for unit in batch)
        if not tokens:
            return
        tasks = len({id(unit.request.served) for unit in batch})
        done = Batch(len(batch), tokens, tasks, seconds, apart)
        self.lately.append(done)
        self.counts.update(rows=done.rows, tokens=tokens, batches=1)
        self.batcher.tokens_per_second += 0.1 * (tokens / max(seconds, 1e-6) - self.batcher.tokens_per_second)
        if self._on_batch is not None:
            self._on_batch(done)

    # Answers

    def _finish(self, request: Request) -> None:
        self._finished.put(request)

    def _respond(self) -> None:
        """Make predictions of what was computed, while the next batch is computed."""
        while (request := self._finished.get()) is not None:
            served = request.served
            if served is None:
                continue
            try:
                out = request.out if request.out is not None else served.collected(request.outs)
                answers = served.respond(out, request.examples, request.read, request.min_score)
            except BaseException as error:
                self.counts["failures"] += 1
                request.fail(error)
                continue
            request.done()
            if request.future.set_running_or_notify_cancel():
                self.counts["answered"] += 1
                request.future.set_result(answers)

    # Hot changes

    def shadow(self, task: str, other: str, *, share: float = 1.0) -> Shadow:
        """Let another version answer a share of a task's requests too, and compare; return what counts the answers."""
        if not 0 < share <= 1:
            raise UsageError(f"share must be above 0 and at most 1, not {share!r}.")
        self.shadows[task] = Shadow(task, other, share)
        return self.shadows[task]

    def _shadow(self, request: Request, shadow: Shadow) -> None:
        if random.random() >= shadow.share:
            return
        try:
            second = self.submit(
                shadow.other, request.inputs, customer="shadow", priority=LOW, decoding=request.decoding
            )
        except AdaptreeError:
            shadow.failed += 1
            return
        second.add_done_callback(
            lambda _: request.future.add_done_callback(lambda __: _compare(shadow, request, second))
        )

    def refresh(self, task: str) -> None:
        """Look a task, its versions and its tags up again at the next request, whatever was found before."""
        self.shelf.forget(task)

    def stats(self) -> dict[str, Any]:
        """Return figures: since the start, and of the last batches."""
        return {
            **{name: self.counts[name] for name in ("requests", "answered", "refused", "failures", "expired")},
            **{name: self.counts[name] for name in ("rows", "batches", "prompt_tokens", "written_tokens")},
            "waiting": self.batcher.waiting,
            "writing": len(self.writing),
            "tasks": len(self.shelf),
            "bytes": self.shelf.bytes,
            "memory": self.shelf.memory,
            "hits": self.shelf.hits,
            "loads": self.shelf.loads,
            "evictions": self.shelf.evictions,
            "replicas": 1,
            **averages(list(self.lately)),
        }

    def close(self) -> None:
        """Take no more requests, answer those that wait, and stop."""
        self._closed = True
        self.batcher.close()
        for thread in self._threads:
            thread.join()
        self.shelf.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def averages(lately: Sequence[Batch]) -> dict[str, float]:
    """Return the means of some batches, and how many tokens a second were computed."""
    seconds = sum(batch.seconds for batch in lately)
    return {
        "rows_per_batch": sum(batch.rows for batch in lately) / len(lately) if lately else 0.0,
        "tasks_per_batch": sum(batch.tasks for batch in lately) / len(lately) if lately else 0.0,
        "tokens_per_second": sum(batch.tokens for batch in lately) / seconds if seconds else 0.0,
    }


def _check_options(request: Request, served: Served) -> None:
    """Raise UsageError for options that are for another kind of task."""
    if served.kind.generates:
        if request.min_score is not None:
            raise UsageError("a text that is written has no score to abstain by.", hint="Leave min_score out.")
    elif request.decoding is not None or request.on_piece is not None:
        raise UsageError(
            f"'{request.name}' is a task of kind {served.kind.name}, and writes no texts.", hint="Ask for predictions."
        )


def _row(unit: Unit) -> Encoding:
    """Return the row of tokens that a unit stands for."""
    at = unit.number
    for example in unit.request.examples:
        if at < len(example):
            return example[at]  # type: ignore[no-any-return]
        at -= len(example)
    raise IndexError(unit.number)


def _compare(shadow: Shadow, request: Request, second: Future[list[Any]]) -> None:
    """Count whether two versions gave the same answers."""
    if request.future.cancelled() or second.cancelled() or request.future.exception() or second.exception():
        shadow.failed += 1
        return
    for given, one, other in zip(_listed(request.inputs), request.future.result(), second.result(), strict=False):
        shadow.compared += 1
        if one.columns()["prediction"] != other.columns()["prediction"]:
            shadow.differs += 1
            shadow.examples.append((given, one, other))


def _listed(inputs: Any) -> list[Any]:
    return [inputs] if isinstance(inputs, str) else list(inputs)
