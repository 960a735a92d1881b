"""An engine whose work replicas on a cluster do."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptree.errors import AdaptreeError
from adaptree.serve.batcher import MAX_QUEUE, QueueFull
from adaptree.serve.cluster.replica import ReplicaPlace, Said
from adaptree.serve.cluster.replicas import Application, Replicas
from adaptree.serve.engine import LATELY, MEMORY, Batch, Closed, DeadlineExceeded, ReplicaLost, averages
from adaptree.serve.generation import OnPiece, TextStream
from adaptree.training.work.shared_store import place_of

if TYPE_CHECKING:
    from adaptree.models.base import Base
    from adaptree.tasks.store import Store

TRIES = 3
"""Replicas that are asked for a prediction, if one after another is lost."""
LATE = 1.0
"""Seconds after a request's time is over that its replica has to say so itself."""
REACH = 5.0
"""Seconds that replicas have to answer what is asked of all of them."""
BEAT = 1.0
"""Seconds from one time that figures are asked for to the next."""
NOW = ("waiting", "writing", "tasks", "bytes", "memory", "replicas")
"""Figures of what there is now; the others are counted since the start."""


class ClusterEngine:
    """What a server asks in the place of an `Engine`; safe for any number of threads.

    The base is here too, for what is not computed by replicas; on one machine its weights are in memory once.
    """

    def __init__(
        self,
        base: Base,
        store: Store,
        *,
        cluster: str,
        least: int = 1,
        most: int = 1,
        device: str = "cpu",
        threads: int = 1,
        memory: int = MEMORY,
        max_queue: int = MAX_QUEUE,
        on_batch: Callable[[Batch], None] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.base, self.store = base, store
        self.lately: deque[Batch] = deque(maxlen=LATELY)
        self._on_batch = on_batch
        folder = Path(base.location).expanduser()
        place = ReplicaPlace(
            place_of(store), store.index.server, str(folder.resolve() if folder.is_dir() else base.location),
            base.fingerprint,
            device, threads, memory, max_queue, version("adaptree"),
        )  # fmt: skip
        weights = sum(each.nbytes for each in base.hooked.backbone.parameters())
        self._application = Application(cluster, place, Replicas(least, most, threads, memory + weights), say)
        self.joined = self._application.joined
        self._handle = self._application.handle
        self._id = uuid.uuid4().hex
        self._heard: dict[str, int] = {}
        """How many batches of each replica are known here."""
        self._counted: dict[str, dict[str, int]] = {}
        """What each replica had counted when it was last heard, also of those that are gone."""
        self._now: list[Said] = []
        self._hearing = threading.Lock()
        self._closed = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._threads = [
            threading.Thread(target=self._loop.run_forever, name="adaptree-ask", daemon=True),
            threading.Thread(target=self._listen, name="adaptree-hear", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # Requests

    def predict(self, task: str, inputs: Any, **options: Any) -> list[Any]:
        """Return a prediction for each input; the options are those of `Engine.submit`."""
        return self.submit(task, inputs, **options).result()

    def submit(
        self,
        task: str,
        inputs: Any,
        *,
        timeout: float | None = None,
        on_piece: OnPiece | None = None,
        **options: Any,
    ) -> Future[list[Any]]:
        """Return a future of the predictions, as `Engine.submit` does; it fails with ReplicaLost if all tries did."""
        if self._closed.is_set():
            raise Closed("the server is shutting down.", hint="Ask another one.")
        until = None if timeout is None else time.monotonic() + timeout
        return asyncio.run_coroutine_threadsafe(self._ask(task, inputs, until, on_piece, options), self._loop)

    def stream(self, task: str, inputs: Any, **options: Any) -> TextStream:
        """Return the texts that a task writes as they come, as `Engine.stream` does."""
        stream = TextStream()
        return stream.follow(self.submit(task, inputs, on_piece=stream.on_piece, **options))

    async def _ask(
        self, task: str, inputs: Any, until: float | None, on_piece: OnPiece | None, options: dict[str, Any]
    ) -> list[Any]:
        """Return what a replica answers; one that is lost is followed by another, unless some of a text was sent."""
        from ray.exceptions import ObjectLostError, RayActorError, WorkerCrashedError
        from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

        began: list[bool] = []
        for tries_left in reversed(range(TRIES)):
            left = None if until is None else max(0.001, until - time.monotonic())
            try:
                async with asyncio.timeout(None if left is None else left + LATE):
                    given = (task, inputs, {**options, "timeout": left})
                    if on_piece is None:
                        answer = await self._predicted(given)
                    else:
                        answer = await self._written(given, on_piece, began)
            except TimeoutError:
                raise DeadlineExceeded(
                    "the answer was not ready in time.", hint="Allow more time, or ask less."
                ) from None
            except BackPressureError:
                raise QueueFull("all replicas are busy.", 1.0) from None
            except DeploymentUnavailableError as error:
                raise ReplicaLost("there are no replicas any more.", hint="Try again.") from error
            except (RayActorError, WorkerCrashedError, ObjectLostError) as error:
                if not tries_left or began:
                    raise ReplicaLost("the replica that computed this is gone.", hint="Try again.") from error
                continue
            if isinstance(answer, AdaptreeError):
                raise answer
            return answer
        raise AssertionError("unreachable")

    async def _predicted(self, given: tuple[Any, ...]) -> list[Any] | AdaptreeError:
        response = self._handle.predict.remote(*given)
        try:
            found: list[Any] | AdaptreeError = await response
            return found
        except asyncio.CancelledError:
            response.cancel()
            raise

    async def _written(self, given: tuple[Any, ...], on_piece: OnPiece, began: list[bool]) -> list[Any] | AdaptreeError:
        """Hand on the pieces of texts; note in `began` that there was one."""
        from ray.util.client import ray as client

        if client.is_connected():  # Serve has no streams there: each text is one piece
            answer = await self._predicted(given)
            if not isinstance(answer, AdaptreeError):
                for number, text in enumerate(answer):
                    on_piece(number, text.text)
            return answer
        response = self._handle.options(stream=True).write.remote(*given)
        try:
            async for piece in response:
                if not isinstance(piece, tuple):
                    found: list[Any] | AdaptreeError = piece
                    return found
                began.append(True)
                on_piece(*piece)
            raise ReplicaLost("the replica that wrote this is gone.", hint="Try again.")
        except asyncio.CancelledError:
            response.cancel()
            raise

    # All replicas

    def _all(self, method: str, *given: Any) -> list[Any]:
        """Return what each replica answers that does within the time."""
        from ray.serve.exceptions import RayServeException

        try:
            found = self._handle.broadcast(method, *given).results(timeout_s=REACH, return_exceptions=True)
        except (RayServeException, TimeoutError):  # there is none just now
            return []
        return [each for each in found if not isinstance(each, Exception)]

    def refresh(self, task: str) -> None:
        """Look a task up again at its next request; a replica that is not reached does so within seconds itself."""
        self._all("refresh", task)

    def _hear(self) -> list[Said]:
        """Ask all replicas for their figures, and return them."""
        with self._hearing:
            self._now = self._all("tell", self._id, dict(self._heard))
            for said in self._now:
                self._heard[said.replica] = said.number
                self._counted[said.replica] = {
                    name: value for name, value in said.stats.items() if isinstance(value, int) and name not in NOW
                }
                for batch, is_prediction in said.batches:
                    if is_prediction:
                        self.lately.append(batch)
                    if self._on_batch is not None:
                        self._on_batch(batch)
            return self._now

    def _listen(self) -> None:
        while not self._closed.wait(BEAT):
            with suppress(Exception):  # the cluster is away for a while
                self._hear()

    def stats(self) -> dict[str, Any]:
        """Return the figures of all replicas together, with those counted by replicas that are gone."""
        said = self._hear()
        counts: dict[str, Any] = _sums(list(self._counted.values()))
        now = _sums([{name: each.stats[name] for name in NOW} for each in said])
        names = ("requests", "answered", "refused", "failures", "expired", "rows", "batches")
        empty = dict.fromkeys((*names, "prompt_tokens", "written_tokens", "hits", "loads", "evictions", *NOW), 0)
        return {**empty, **counts, **now, **averages(list(self.lately))}

    def close(self) -> None:
        """Take no more requests, answer those that wait, and stop; the last server takes the replicas away."""
        if self._closed.is_set():
            return
        self._closed.set()
        asyncio.run_coroutine_threadsafe(_finish(), self._loop).result()
        self._threads[1].join()
        with suppress(Exception):
            if not any(self._all("leave", self._id)):
                self._application.delete()
            self._handle.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[0].join()
        self._loop.close()

    def __enter__(self) -> ClusterEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sums(figures: Sequence[dict[str, int]]) -> dict[str, int]:
    return {name: sum(each.get(name, 0) for each in figures) for name in (figures[0] if figures else ())}


async def _finish() -> None:
    """Wait for what is still asked in this event loop."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
