"""From a request's inputs to its answers: of one task, of many at once, or line by line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from adaptree.reports.json_text import json_text
from adaptree.serve.batcher import QueueFull
from adaptree.serve.keys import Caller
from adaptree.serve.problems import Problem, problem_of
from adaptree.serve.receive import NDJSON, check_count, check_input, lines
from adaptree.serve.schemas import Options
from adaptree.serve.service import Service

PIECE = 65_536
"""Bytes of finished lines that are sent at once."""
PAUSE = 0.05
"""Seconds after which a line that found the queue full is tried again."""


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a value as a response; never NaN."""
    return Response(json_text(value).encode(), status, headers, "application/json")


def wants_lines(request: Request) -> bool:
    """Return whether a client asks for a line for each answer."""
    return NDJSON in request.headers.get("accept", "").lower()


async def predict(
    service: Service,
    request: Request,
    caller: Caller,
    given: Sequence[tuple[str, Any]],
    options: Options,
    *,
    apart: bool = False,
) -> list[dict[str, Any]]:
    """Return an answer for each (task, input), in their order; all tasks are submitted before any is waited for.

    The first error ends it. With `apart`, what is wrong with an input or its task is the answer to that input, as
    {"error": …}, unless there is no other answer; errors that are not about it (`everyones`) end it all the same.
    """
    check_count(len(given), service.limits)
    timeout = min(options.timeout or service.limits.timeout, service.limits.timeout)
    until = time.monotonic() + timeout
    answers: list[Any] = [None] * len(given)
    problems: dict[int, Problem] = {}
    by_task: dict[str, list[int]] = {}
    inputs: dict[int, tuple[Any, int]] = {}

    def note(error: Exception, numbers: Sequence[int]) -> None:
        problem = problem_of(error)
        if not apart or everyones(problem):
            raise error
        if problem.status == 500:
            service.log.failure(error, request.state.id)
        for i in numbers:
            problems[i], answers[i] = problem, problem.to_dict()

    for i, (task, each) in enumerate(given):
        try:
            inputs[i] = check_input(each, service.limits, f"input {i}")
            by_task.setdefault(task, []).append(i)
        except Problem as problem:
            note(problem, [i])
    groups: list[tuple[str, list[int]]] = []
    for task, numbers in by_task.items():
        try:
            groups.append((await service.resolve(caller, task), numbers))
        except Problem as problem:
            note(problem, numbers)
    request.state.tasks = len(groups)
    service.count_texts(request, caller, sum(len(numbers) for _, numbers in groups))
    service.counts.use({task: len(numbers) for task, numbers in groups})
    while groups:
        again: list[tuple[str, list[int]]] = []
        found = await _computed(service, request, caller, groups, inputs, until, options, apart)
        for (task, numbers), those in zip(groups, found, strict=True):
            if not isinstance(those, Exception):
                for i, answer in zip(numbers, those, strict=True):
                    answers[i] = shaped(answer, options.top_k)
            elif apart and len(numbers) > 1 and problem_of(those).status == 422:
                again += [(task, [i]) for i in numbers]  # one of them is wrong: which?
            else:
                note(those, numbers)
        groups = again
    if problems and len(problems) == len(given):
        raise problems[0]
    return answers


def everyones(problem: Problem) -> bool:
    """Return whether an error is not about one input or its task: the caller has to come again, with all of them."""
    return problem.status in (429, 499, 503)


async def _computed(
    service: Service,
    request: Request,
    caller: Caller,
    groups: Sequence[tuple[str, Sequence[int]]],
    inputs: dict[int, tuple[Any, int]],
    until: float,
    options: Options,
    apart: bool,
) -> list[Any]:
    """Return the predictions of each group of inputs, or with `apart` its error."""
    timeout = max(0.001, until - time.monotonic())
    futures: list[Future[list[Any]]] = []
    try:
        for task, numbers in groups:
            rows, sizes = zip(*(inputs[i] for i in numbers), strict=True)
            future = await service.submit(
                caller, task, list(rows), sum(sizes), timeout=timeout, min_score=options.min_score
            )
            futures.append(future)
        return await service.wait(
            futures, timeout, request, ends=lambda error: not apart or everyones(problem_of(error))
        )
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def shaped(answer: Any, top_k: int | None) -> dict[str, Any]:
    """Return a prediction as JSON holds it; with `top_k`, only the best of its scores."""
    found: dict[str, Any] = answer.to_dict()
    if top_k is not None:
        for key, value in found.items():
            if key == "scores" and isinstance(value, dict):
                best = sorted(value.items(), key=lambda item: -item[1])[:top_k]
                found[key] = dict(best)
            elif key == "n_best":
                found[key] = value[:top_k]
            elif key == "fills":
                found[key] = [words[:top_k] for words in value]
    return found


def in_lines(answers: Sequence[dict[str, Any]]) -> Response:
    """Return answers that are there, a line for each."""
    return Response("".join(f"{json_text(each)}\n" for each in answers).encode(), media_type=NDJSON)


Reader = Callable[[bytes], tuple[str, Any]]
"""What a line says: a task's name in the store, as the caller names it, and an input."""


def stream(service: Service, request: Request, caller: Caller, read: Reader, options: Options) -> Response:
    """Return a response that answers each line of a request as it comes, in order, with few of them in memory."""
    return Lines(_answered(service, request, caller, read, options), media_type=NDJSON)


class Lines(StreamingResponse):
    """A response that is sent while its request is still read: nobody else may wait for the client's next words."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


async def _answered(
    service: Service, request: Request, caller: Caller, read: Reader, options: Options
) -> AsyncIterator[bytes]:
    """Yield a line for each line; one that is wrong gets its error, and a body that ends wrongly a last one."""
    waiting: asyncio.Queue[Awaitable[dict[str, Any]] | None] = asyncio.Queue(service.limits.window)

    async def receive() -> None:
        try:
            async for line in lines(request, service.limits):
                begun = await _begin(service, request, caller, read, line, options)
                await waiting.put(begun)
        except ClientDisconnect:
            pass
        except Exception as error:
            await waiting.put(_ready(_said(service, request, error)))
        finally:
            await waiting.put(None)

    receiver = asyncio.create_task(receive())
    try:
        ready: list[bytes] = []
        size = 0
        while (begun := await waiting.get()) is not None:
            if ready and not _is_done(begun):
                yield b"".join(ready)
                ready, size = [], 0
            ready.append(f"{json_text(await begun)}\n".encode())
            size += len(ready[-1])
            if waiting.empty() or size > PIECE:
                yield b"".join(ready)
                ready, size = [], 0
        if ready:
            yield b"".join(ready)
    finally:
        receiver.cancel()
        while not waiting.empty():
            if isinstance(left := waiting.get_nowait(), asyncio.Task):
                left.cancel()


async def _begin(
    service: Service, request: Request, caller: Caller, read: Reader, line: bytes, options: Options
) -> Awaitable[dict[str, Any]]:
    """Submit one line, and return what waits for its answer; while the queue is full, wait."""
    timeout = min(options.timeout or service.limits.timeout, service.limits.timeout)
    until = time.monotonic() + timeout

    async def put() -> Future[list[Any]]:
        while True:
            try:
                future = await service.submit(
                    caller, meant, [found], size, timeout=timeout, min_score=options.min_score
                )
                service.counts.use({meant: 1})
                return future
            except QueueFull:
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(PAUSE)

    async def answer(future: Future[list[Any]]) -> dict[str, Any]:
        try:
            while True:
                try:
                    return shaped((await service.wait([future], timeout, request, watch=False))[0][0], options.top_k)
                except QueueFull:  # it was full when the task was loaded
                    if time.monotonic() > until:
                        raise
                    future = await put()
        except Exception as error:
            return _said(service, request, error)

    try:
        task, given = read(line)
        found, size = check_input(given, service.limits, "this line")
        meant = await service.resolve(caller, task)
        service.count_texts(request, caller, 1)
        return asyncio.create_task(answer(await put()))
    except Exception as error:
        return _ready(_said(service, request, error))


def _said(service: Service, request: Request, error: Exception) -> dict[str, Any]:
    problem = problem_of(error)
    if problem.status == 500:
        service.log.failure(error, getattr(request.state, "id", ""))
    return problem.to_dict()


def _ready(value: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
    future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


def _is_done(begun: Awaitable[Any]) -> bool:
    return isinstance(begun, asyncio.Future) and begun.done()
