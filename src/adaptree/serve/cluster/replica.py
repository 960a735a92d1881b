"""An engine in a process of a cluster, which servers ask."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from adaptree.errors import AdaptreeError, StoreError, UsageError, WrongBase
from adaptree.models.opening import base_of
from adaptree.serve.engine import LATELY, Batch, Engine
from adaptree.serve.heap import set_aside, share_heap
from adaptree.tasks.store import Store

FORGET = 15.0
"""Seconds after which a server that was not heard of is gone."""


@dataclass(frozen=True)
class ReplicaPlace:
    """What a replica on another machine needs to know: plain values."""

    store: str
    index: str | None
    base: str
    fingerprint: str
    device: str
    threads: int
    memory: int
    max_queue: int
    version: str = ""

    def engine(self, on_batch: Any) -> Engine:
        """Start an engine on this machine; raise an error if it would not be the same as on the others."""
        here = socket.gethostname()
        if (installed := version("adaptree")) != self.version:
            raise UsageError(
                f"the machine {here} has adaptree {installed}, and the server {self.version}.",
                hint="Install the same version on all machines.",
            )
        store = Store(self.store, index=self.index)
        if "://" not in store.location and not store.path.is_dir():
            raise StoreError(
                f"the machine {here} does not see the folder of the store, {store.path}.",
                hint="Use a folder that all machines share, or a store behind a URL: --store s3://…",
            )
        base = base_of(self.base, self.device, self.threads)
        if base.fingerprint != self.fingerprint:
            raise WrongBase(
                f"the base '{self.base}' of the machine {here} is another one than the server's.",
                hint="Put the same base onto all machines.",
            )
        return Engine(base, store, memory=self.memory, max_queue=self.max_queue, on_batch=on_batch)


@dataclass(frozen=True)
class Said:
    """What a replica tells about itself."""

    replica: str
    stats: dict[str, Any]
    number: int
    """How many batches it has computed."""
    batches: list[tuple[Batch, bool]]
    """Those that the server has not heard of; and whether they are predictions, or a step of texts that are written."""


class EngineReplica:
    """What Ray Serve deploys.

    Errors that a user can meet are returned, and not raised: so they arrive as themselves.
    """

    def __init__(self, place: ReplicaPlace) -> None:
        from ray import serve

        share_heap()
        self._id: str = serve.get_replica_context().replica_id.unique_id
        self._batches: deque[tuple[Batch, bool]] = deque(maxlen=LATELY)
        self._number = 0
        self._servers: dict[str, float] = {}
        self._engine = place.engine(self._computed)
        set_aside()

    def _computed(self, batch: Batch) -> None:
        lately = self._engine.lately
        self._batches.append((batch, bool(lately) and lately[-1] is batch))
        self._number += 1

    async def predict(self, task: str, inputs: Any, options: dict[str, Any]) -> list[Any] | AdaptreeError:
        """Return the predictions for some inputs, as `Engine.predict` does."""
        try:
            return await asyncio.wrap_future(self._engine.submit(task, inputs, **options))
        except AdaptreeError as error:
            return error

    async def write(
        self, task: str, inputs: Any, options: dict[str, Any]
    ) -> AsyncIterator[tuple[int, str] | list[Any] | AdaptreeError]:
        """Yield the pieces of texts as they are written; at the end, the texts as a whole."""
        try:
            stream = self._engine.stream(task, inputs, **options)
            async for piece in stream:
                yield piece
            yield stream.texts
        except AdaptreeError as error:
            yield error

    async def refresh(self, task: str) -> None:
        """Look a task up again at its next request."""
        self._engine.refresh(task)

    async def tell(self, server: str, heard: Mapping[str, int]) -> Said:
        """Return figures, to a server that has heard of so many batches of each replica."""
        self._servers[server] = time.monotonic()
        number, batches = self._number, list(self._batches)
        new = min(number - heard.get(self._id, 0), len(batches))
        return Said(self._id, self._engine.stats(), number, batches[len(batches) - new :])

    async def leave(self, server: str) -> int:
        """Hear that a server stops; return how many others there are."""
        self._servers.pop(server, None)
        return sum(time.monotonic() - seen < FORGET for seen in self._servers.values())

    def __del__(self) -> None:
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.close()
