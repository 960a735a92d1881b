"""What all routes share: who asks, which of the store's tasks that caller means, and the engine that answers."""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import Request

from adaptree.compose import parse
from adaptree.errors import AdaptreeError, near
from adaptree.hub.search import by_words
from adaptree.serve.counts import Counts, added
from adaptree.serve.engine import DeadlineExceeded
from adaptree.serve.jobs.attending import Attendant
from adaptree.serve.jobs.settings import BaseInfo
from adaptree.serve.keys import COOKIE, Caller, Keys
from adaptree.serve.limits import Limits
from adaptree.serve.observe import COUNTERS, GAUGES, Metrics, RequestLog
from adaptree.serve.problems import Problem, not_found, problem_of
from adaptree.serve.shelf import is_composition
from adaptree.tasks.names import NAME

if TYPE_CHECKING:
    from adaptree.serve.cluster import ClusterEngine
    from adaptree.serve.engine import Engine
    from adaptree.serve.jobs.queue import Jobs
    from adaptree.tasks.summary import Row

    AnyEngine = Engine | ClusterEngine

FRESH = 2.0
"""Seconds for which a list of the store's tasks counts."""
SAY = 1.0
"""Seconds from one time that a process says its figures to the next, where there are several."""
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
        engine: AnyEngine,
        *,
        keys: Keys | None = None,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        log: RequestLog | None = None,
        hosts: Sequence[str] = (),
        open_metrics: bool = False,
        jobs: Jobs | None = None,
        results: Path | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.engine, self.keys, self.limits = engine, keys, limits or Limits()
        self.counts = counts or Counts()
        self.metrics, self.log = metrics or Metrics(), log or RequestLog("")
        self.hosts = frozenset(hosts)
        """Names under which the server may be asked; any if there are none."""
        self.open_metrics, self.results = open_metrics, None if results is None else Path(results)
        self.draining = False
        """Whether the server is about to stop."""
        self.in_flight = 0
        self.uploads = asyncio.Semaphore(2)
        self.receiving = asyncio.Semaphore(16)
        """Data files that come at once, which go straight to disk."""
        self.checks = asyncio.Semaphore(2)
        """Data files that are checked at once."""
        self.streams = 0
        """Clients that follow jobs."""
        self.heavy = asyncio.Semaphore(1)
        """What pages compute beside the engine, one at a time: words' scores, a file's evaluation."""
        self._known: dict[str, float] = {}
        self._rows: list[Row] = []
        self._listed = float("-inf")
        self._listing = asyncio.Lock()
        self.metrics.watch(engine)
        if self.counts.shared:
            threading.Thread(target=self._say_figures, name="adaptree-figures", daemon=True).start()
        self._jobs = jobs
        if jobs is not None:
            self.metrics.watch_jobs(jobs)
            jobs.on_end = self.log.bill
            Attendant(self, jobs).start()

    # Jobs

    @property
    def has_jobs(self) -> bool:
        """Whether this server takes training jobs."""
        return self._jobs is not None

    @property
    def queue(self) -> Jobs:
        """The queue of training jobs; raise a Problem if this server takes none."""
        if self._jobs is None:
            what = "this server takes no training jobs."
            raise Problem(404, "no_jobs", what, hint="A store behind a URL needs PostgreSQL for them: --index")
        return self._jobs

    @cached_property
    def base_info(self) -> BaseInfo:
        return BaseInfo.of(self.engine.base)

    @cached_property
    def base_bytes(self) -> int:
        """The memory that the base takes."""
        return sum(each.nbytes for each in self.engine.base.hooked.backbone.parameters())

    # Figures

    def figures(self) -> dict[str, Any]:
        """Return what the processes of this server have counted together, as `total`, and what there is `now`.

        Those of other processes are at most a second old; of one that has ended, `total` has what it counted.
        """
        own = self._own_figures()
        others = self.counts.of_others() if self.counts.shared else {}
        found: dict[str, Any] = added(own, others) if others else own
        return found

    def _own_figures(self) -> dict[str, Any]:
        total, now = self.metrics.samples()
        stats, lately = self.engine.stats(), list(self.engine.lately)
        batches = {
            "count": len(lately),
            "rows": sum(batch.rows for batch in lately),
            "tasks": sum(batch.tasks for batch in lately),
            "tokens": sum(batch.tokens for batch in lately),
            "seconds": sum(batch.seconds for batch in lately),
            "by_rows": _sizes(batch.rows for batch in lately),
            "by_tasks": _sizes(batch.tasks for batch in lately),
        }
        gauges = {name: stats[name] for name in GAUGES}
        return {
            "total": {"samples": total, "engine": {name: stats[name] for name in COUNTERS}},
            "now": {"samples": now, "engine": gauges, "batches": batches, "in_flight": self.in_flight},
        }

    def _say_figures(self) -> None:
        """Tell the other processes this one's figures, for as long as it lives."""
        while True:
            with suppress(sqlite3.Error):  # the file is locked for longer, or gone as the server stops
                self.counts.publish(self._own_figures())
            time.sleep(SAY)

    # Who asks

    def caller(self, request: Request, scope: str) -> Caller:
        """Return who asks; raise a Problem unless they may do this, now."""
        if self.keys is None:
            return ANYONE
        caller = self.keys.caller(self._key(request))
        request.state.tenant = caller.tenant
        caller.check(scope)
        self.keys.count_request(caller)
        return caller

    def known_caller(self, request: Request) -> Caller | None:
        """Return who asks, without counting the request; None for one who cannot be known."""
        if self.keys is None:
            return ANYONE
        try:
            return self.keys.caller(self._key(request))
        except Problem:
            return None

    def _key(self, request: Request) -> str | None:
        """Return the key that a request has, as an Authorization header: its own, or that of a browser's cookie."""
        header = request.headers.get("authorization")
        if header is None and (cookie := request.cookies.get(COOKIE)):
            return f"Bearer {cookie}"
        return header

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
        self.engine.refresh(name)

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
        """Return whether requests can be answered: there are the store and a replica, and the server does not stop."""
        store = self.engine.store
        try:
            if "://" in store.location:
                store.versions("adaptree")
            else:
                os.listdir(store.path)
        except (AdaptreeError, OSError):
            return False
        return not self.draining and self.engine.stats()["replicas"] > 0

    # Answers

    async def submit(
        self, caller: Caller, task: str, inputs: list[Any], size: int, *, timeout: float, **options: Any
    ) -> Future[list[Any]]:
        """Queue inputs of one task with options of `Engine.submit`; raise a Problem if that cannot be."""

        def put() -> Future[list[Any]]:
            return self.engine.submit(task, inputs, customer=caller.customer, timeout=timeout, **options)

        found: Future[list[Any]] = await (asyncio.to_thread(put) if size > MANY else _at_once(put))
        return found

    async def wait(
        self,
        futures: Sequence[Future[list[Any]]],
        timeout: float,
        request: Request,
        *,
        watch: bool = True,
        ends: Callable[[Exception], bool] = lambda error: True,
    ) -> list[Any]:
        """Return what the futures hold, or their errors, in their order; an error that `ends` it all cancels them.

        With `watch`, do so too if the client has gone away; not while its body is still read.
        """
        waiting = [asyncio.wrap_future(future) for future in futures]
        until = time.monotonic() + timeout + 1.0  # the engine says so itself, unless the task is still on its way
        late = DeadlineExceeded("the answer was not ready in time.", hint="Allow more time, or ask less.")
        pending: set[Any] = set(waiting)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
                for each in done:
                    if isinstance(error := each.exception(), Exception) and ends(error):
                        raise error
                if pending and time.monotonic() > until:
                    if ends(late):
                        raise late
                    break
                if watch and not done and pending and await request.is_disconnected():
                    raise Problem(499, "gone", "nobody waits any more.")
            return [late if each in pending else each.exception() or each.result() for each in waiting]
        finally:
            for each in waiting:  # nothing, where all are done
                each.cancel()
                if each.done() and not each.cancelled():
                    each.exception()


def _sizes(values: Iterable[int]) -> dict[str, int]:
    """Return how many values are 1, 2, 3-4, 5-8, …, by the last number of each span."""
    return dict(Counter(str(1 << max(0, value - 1).bit_length()) for value in values))


async def _at_once(put: Any) -> Any:
    return put()


def qualified(tenant: str, name: str) -> str | None:
    """Return a task's whole name: of a tenant, 'reviews' is 'acme/reviews'; None for what is not theirs, or no name."""
    if tenant and "/" not in name:
        name = f"{tenant}/{name}"
    if not NAME.fullmatch(name) or (tenant and not name.startswith(f"{tenant}/")):
        return None
    return name
