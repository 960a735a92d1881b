"""A training job of a server, as its client sees it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from adaptree.errors import AdaptreeError

if TYPE_CHECKING:
    from adaptree.client.clients import AsyncClient, Client

ENDED = ("done", "failed", "cancelled")
LOOK = 0.5
"""Seconds from one look at a job to the next, and before a stream of events that was cut off is asked for again."""


class JobFailed(AdaptreeError):
    """A training job ended without a task: `state` is failed or cancelled."""

    def __init__(self, state: str, what: str, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.state = state


class _JobInfo:
    """What the server last said of a job: `info` is all of it."""

    def __init__(self, info: dict[str, Any]) -> None:
        self.info = info

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.name!r}, {self.state})"

    @property
    def id(self) -> str:
        return str(self.info["id"])

    @property
    def name(self) -> str:
        """The task's name."""
        return str(self.info["name"])

    @property
    def state(self) -> str:
        """queued, running, done, failed or cancelled"""
        return str(self.info["state"])

    @property
    def task(self) -> str | None:
        """The version that it became, as name@version."""
        return self.info["task"]  # type: ignore[no-any-return]

    @property
    def metrics(self) -> dict[str, Any] | None:
        return self.info["metrics"]  # type: ignore[no-any-return]

    @property
    def bill(self) -> dict[str, Any]:
        """Rows, seconds and bytes."""
        return dict(self.info["bill"])

    @property
    def _path(self) -> str:
        return f"/v1/jobs/{quote(self.id, safe='')}"

    def _check(self) -> None:
        """Raise JobFailed unless it is done."""
        if self.state != "done":
            error = self.info["error"] or {}
            what = error.get("message") or f"the job '{self.id}' was {self.state}."
            raise JobFailed(self.state, what, error.get("hint", ""))


class Job(_JobInfo):
    """A training job of a server."""

    def __init__(self, client: Client, info: dict[str, Any]) -> None:
        super().__init__(info)
        self._client = client

    def refresh(self) -> Job:
        """Ask how it is; return itself."""
        self.info = self._client.ask("GET", self._path)
        return self

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until it is done, and return itself; raise JobFailed if it ends otherwise, or TimeoutError."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.refresh().state not in ENDED:
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"the job '{self.id}' is {self.state}")
            time.sleep(LOOK)
        self._check()
        return self

    def events(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield what happens to it, until it ends: {"id", "event": note, progress, epoch or state, …}."""
        read = _Events(after)
        while not read.over:
            try:
                with self._client.http.stream("GET", f"{self._path}/events", **read.request()) as answer:
                    if answer.status_code >= 400:
                        answer.read()
                        self._client.read(answer)
                    read.over = answer.status_code == 204
                    for line in answer.iter_lines():
                        yield from read.line(line)
            except self._client.httpx.TransportError:
                pass  # it goes on where it was
            if not read.over:
                time.sleep(LOOK)
        self.refresh()

    def cancel(self, keep: str = "nothing") -> Job:
        """End it; with keep="best" its best epoch so far becomes the task."""
        self.info = self._client.ask("POST", f"{self._path}/cancel", params={"keep": keep})
        return self

    def retry(self) -> Job:
        """Queue it again, after it failed."""
        self.info = self._client.ask("POST", f"{self._path}/retry")
        return self


class AsyncJob(_JobInfo):
    """The same in a coroutine."""

    def __init__(self, client: AsyncClient, info: dict[str, Any]) -> None:
        super().__init__(info)
        self._client = client

    async def refresh(self) -> AsyncJob:
        """Ask how it is; return itself."""
        self.info = await self._client.ask("GET", self._path)
        return self

    async def wait(self, timeout: float | None = None) -> AsyncJob:
        """Wait until it is done, and return itself; raise JobFailed if it ends otherwise, or TimeoutError."""
        until = None if timeout is None else time.monotonic() + timeout
        while (await self.refresh()).state not in ENDED:
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"the job '{self.id}' is {self.state}")
            await asyncio.sleep(LOOK)
        self._check()
        return self

    async def events(self, after: int = 0) -> AsyncIterator[dict[str, Any]]:
        """Yield what happens to it, until it ends: {"id", "event": note, progress, epoch or state, …}."""
        read = _Events(after)
        while not read.over:
            try:
                async with self._client.http.stream("GET", f"{self._path}/events", **read.request()) as answer:
                    if answer.status_code >= 400:
                        await answer.aread()
                        self._client.read(answer)
                    read.over = answer.status_code == 204
                    async for line in answer.aiter_lines():
                        for event in read.line(line):
                            yield event
            except self._client.httpx.TransportError:
                pass  # it goes on where it was
            if not read.over:
                await asyncio.sleep(LOOK)
        await self.refresh()

    async def cancel(self, keep: str = "nothing") -> AsyncJob:
        """End it; with keep="best" its best epoch so far becomes the task."""
        self.info = await self._client.ask("POST", f"{self._path}/cancel", params={"keep": keep})
        return self

    async def retry(self) -> AsyncJob:
        """Queue it again, after it failed."""
        self.info = await self._client.ask("POST", f"{self._path}/retry")
        return self


class _Events:
    """Reads server-sent events line by line, and remembers the last one."""

    def __init__(self, after: int) -> None:
        self.last, self.over = after, False
        self._fields: dict[str, str] = {}

    def request(self) -> dict[str, Any]:
        """Return the options of a request that goes on after the last event."""
        self._fields = {}
        return {"headers": {"Last-Event-ID": str(self.last)}}

    def line(self, line: str) -> list[dict[str, Any]]:
        """Return the event that a line completes, if it does."""
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return []
        found, self._fields = self._fields, {}
        if "id" not in found:
            return []
        self.last = int(found["id"])
        event = {"id": self.last, "event": found["event"], **json.loads(found["data"])}
        self.over = event["event"] == "state" and event["state"] in ENDED
        return [event]
