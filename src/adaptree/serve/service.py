"""What all routes share: who asks, which of the store's tasks that caller means, and the engine that answers."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fastapi import Request

from adaptree.compose import parse
from adaptree.errors import AdaptreeError, near
from adaptree.hub.search import by_words
from adaptree.serve.engine import DeadlineExceeded
from adaptree.serve.keys import Caller, Keys
from adaptree.serve.limits import Limits
from adaptree.serve.observe import Metrics, RequestLog
from adaptree.serve.problems import Problem, not_found, problem_of
from adaptree.serve.shelf import is_composition
from adaptree.tasks.names import NAME

if TYPE_CHECKING:
    from adaptree.serve.engine import Engine
    from adaptree.tasks.summary import Row

FRESH = 2.0
"""Seconds for which a list of the store's tasks counts."""
KNOWN = 60.0
"""Seconds for which a task that was there is not looked for again before it is asked."""
LONGEST = 1000
"""Characters of a task's name or composition."""
MANY = 20_000
"""Characters from which texts are encoded in a thread, so that other requests go on."""
NEAR = 500
"""Names among which a near one is looked for."""
ANYONE = Caller()


class Service:
    """The engine and what surrounds it; one for each process."""

    def __init__(
        self,
        engine: Engine,
        *,
        keys: Keys | None = None,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        log: RequestLog | None = None,
        hosts: Sequence[str] = (),
        open_metrics: bool = False,
    ) -> None:
        self.engine, self.keys, self.limits = engine, keys, limits or Limits()
        self.metrics, self.log = metrics or Metrics(), log or RequestLog("")
        self.hosts = frozenset(hosts)
        """Names under which the server may be asked; any if there are none."""
        self.open_metrics = open_metrics
        self.draining = False
        """Whether the server is about to stop."""
        self.in_flight = 0
        self.uploads = asyncio.Semaphore(2)
        self._known: dict[str, float] = {}
        self._rows: list[Row] = []
        self._listed = float("-inf")
        self._listing = asyncio.Lock()
        self.metrics.watch(engine)

    # Who asks

    def caller(self, request: Request, scope: str) -> Caller:
        """Return who asks; raise a Problem unless they may do this, now."""
        if self.keys is None:
            return ANYONE
        caller = self.keys.caller(request.headers.get("authorization"))
        request.state.tenant = caller.tenant
        caller.check(scope)
        self.keys.count_request(caller)
        return caller

    def count_texts(self, request: Request, caller: Caller, texts: int) -> None:
        """Count inputs that a caller sends; raise a Problem if the key has no more today."""
        if self.keys is not None:
            self.keys.count_texts(caller, texts)
        self.metrics.texts.inc(texts)
        request.state.texts = getattr(request.state, "texts", 0) + texts

    # Which task is meant

    async def resolve(self, caller: Caller, asked: str) -> str:
        """Return the store's name for what a caller asks for; raise a Problem if there is no such task of theirs."""
        if len(asked) > LONGEST:
            raise not_found(asked, "")
        if not is_composition(asked):
            return await self._known_name(caller, asked)
        try:
            expression = parse(asked)
            return repr(expression.renamed({each: await self._known_name(caller, each) for each in expression.names}))
        except RecursionError:
            raise Problem(422, "bad_input", "the composition is nested too deeply.") from None
        except AdaptreeError as error:
            raise problem_of(error) from error

    async def _known_name(self, caller: Caller, asked: str) -> str:
        """Return a task's name in the store, with the version or tag that was asked for.

        What is not the caller's is looked up under a name of their own that nobody has: it takes the same work as a
        task that does not exist, and says the same.
        """
        plain, at, version = asked.partition("@")
        name = qualified(caller.tenant, plain)
        if name is None:
            name = f"{caller.tenant or 'nobody'}/{secrets.token_hex(16)}"
        now = time.monotonic()
        if now - self._known.get(name, float("-inf")) > KNOWN:
            versions = await asyncio.to_thread(self._versions, name)
            if not versions:
                self._known.pop(name, None)
                raise not_found(asked, await self.near(caller, plain))
            if len(self._known) > 100_000:
                self._known.clear()
            self._known[name] = now
        return f"{name}{at}{version}"

    def _versions(self, name: str) -> list[int]:
        try:
            return self.engine.store.versions(name)
        except AdaptreeError as error:
            raise problem_of(error) from error

    def forget(self, name: str) -> None:
        """Look a task up again: it was added, replaced or removed."""
        self._known.pop(name, None)
        self._listed = float("-inf")
        store = self.engine.store
        others = [each for each in self.engine.shelf.references() if each.startswith(f"{name}@")]
        for each in {name, *others, *(f"{name}@{tag}" for tag in store.tags(name))}:
            self.engine.refresh(each)

    # What there is

    async def rows(self, caller: Caller) -> list[Row]:
        """Return the caller's tasks, by name."""
        async with self._listing:
            if time.monotonic() - self._listed > FRESH:
                began = time.monotonic()
                try:
                    self._rows = await asyncio.to_thread(self.engine.store.rows, text=True)
                except AdaptreeError as error:
                    raise problem_of(error) from error
                self._listed = began
        prefix = f"{caller.tenant}/" if caller.tenant else ""
        return [row for row in self._rows if row.summary.name.startswith(prefix)]

    async def near(self, caller: Caller, name: str) -> str:
        """Return a hint with a name of the caller's that is like this one, if there is one."""
        names = [row.summary.name for row in await self.rows(caller)]
        if caller.tenant and "/" not in name:
            name = f"{caller.tenant}/{name}"
        if len(names) > NEAR:
            start = name[: len(caller.tenant) + 2 if caller.tenant else 1]
            names = [each for each in names if each.startswith(start)][:NEAR]
        return near(name[:130], names)

    async def search(self, caller: Caller, words: str) -> list[Row]:
        """Return the caller's tasks that match some words, the best first; others' tasks do not change the order."""
        rows = {row.summary.name: row for row in await self.rows(caller) if row.text}
        found = await asyncio.to_thread(by_words, words, list(rows.values())) if rows else []
        return [rows[hit.summary.name] for hit in found]

    def is_ready(self) -> bool:
        """Return whether requests can be answered: the store can be read, and the server is not about to stop."""
        store = self.engine.store
        try:
            if "://" in store.location:
                store.versions("adaptree")
            else:
                os.listdir(store.path)
        except (AdaptreeError, OSError):
            return False
        return not self.draining

    # Answers

    async def submit(
        self, caller: Caller, task: str, inputs: list[Any], size: int, *, timeout: float, min_score: float | None
    ) -> Future[list[Any]]:
        """Queue inputs of one task; raise a Problem if that cannot be."""

        def put() -> Future[list[Any]]:
            return self.engine.submit(
                task, inputs, customer=caller.customer, timeout=timeout, min_score=min_score
            )  # fmt: skip

        return await (asyncio.to_thread(put) if size > MANY else _at_once(put))

    async def wait(
        self, futures: Sequence[Future[list[Any]]], timeout: float, request: Request, *, watch: bool = True
    ) -> list[list[Any]]:
        """Return what the futures hold, in their order; on the first error cancel all.

        With `watch`, do so too if the client has gone away; not while its body is still read.
        """
        waiting = [asyncio.wrap_future(future) for future in futures]
        until = time.monotonic() + timeout + 1.0  # the engine says so itself, unless the task is still on its way
        pending: set[Any] = set(waiting)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
                for each in done:
                    each.result()
                if pending and time.monotonic() > until:
                    raise DeadlineExceeded("the answer was not ready in time.", hint="Allow more time, or ask less.")
                if watch and not done and pending and await request.is_disconnected():
                    raise Problem(499, "gone", "nobody waits any more.")
        except BaseException:
            for future in waiting:
                future.cancel()
                if future.done() and not future.cancelled():
                    future.exception()
            raise
        return [each.result() for each in waiting]


async def _at_once(put: Any) -> Any:
    return put()


def qualified(tenant: str, name: str) -> str | None:
    """Return a task's whole name: of a tenant, 'reviews' is 'acme/reviews'; None for what is not theirs, or no name."""
    if tenant and "/" not in name:
        name = f"{tenant}/{name}"
    if not NAME.fullmatch(name) or (tenant and not name.startswith(f"{tenant}/")):
        return None
    return name
