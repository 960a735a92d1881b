"""One text through all tasks, or those that a search finds: mixed batches, each answer sent as soon as it is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from adaptree.errors import UsageError
from adaptree.reports.json_text import json_text
from adaptree.serve import receive
from adaptree.serve.batcher import QueueFull
from adaptree.serve.keys import Caller
from adaptree.serve.predicting import PAUSE, shaped
from adaptree.serve.problems import problem_of, too_large
from adaptree.serve.receive import parse_as
from adaptree.serve.service import Service
from adaptree.serve.web.frame import HEADERS, page, service_of
from adaptree.tasks.summary import Summary

router = APIRouter(include_in_schema=False)

OTHERS = ("answer", "choose", "attached")
"""Kinds whose input is more than one text."""
TOP = 5
"""Scores of an answer that are sent."""


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: str
    q: str = Field("", max_length=200)


@router.get("/all")
async def all_tasks(request: Request, text: str = "", q: str = "") -> Response:
    service = service_of(request)
    caller = service.caller(request, "predict")
    rows = await service.rows(caller)
    count = len(_fitting(service, [row.summary for row in rows]))
    return page(request, "all.html", caller, text=text[:2000], q=q[:200], count=count, of=len(rows))


@router.post("/all")
async def answers(request: Request) -> Response:
    """Answer with a line of JSON for each task as it is computed, and a last line with the figures of all."""
    service = service_of(request)
    caller = service.caller(request, "predict")
    receive.content_type(request, receive.JSON)
    wanted = parse_as(Wanted, await receive.body(request, service.limits))
    if len(wanted.text) > service.limits.characters:
        raise too_large(f"the text has more than {service.limits.characters:,} characters.", "Cut it.")
    rows = await (service.search(caller, wanted.q) if wanted.q.strip() else service.rows(caller))
    summaries = _fitting(service, [row.summary for row in rows])
    service.count_texts(request, caller, len(summaries))
    request.state.tasks = len(summaries)
    return StreamingResponse(
        _lines(service, caller, wanted.text, summaries), media_type=receive.NDJSON, headers=HEADERS
    )


def _fitting(service: Service, summaries: Sequence[Summary]) -> list[Summary]:
    """Return the tasks that take one text, and are of the server's base."""
    base = service.engine.base.fingerprint
    return [each for each in summaries if not each.problem and each.kind not in OTHERS and each.fingerprint == base]


async def _lines(service: Service, caller: Caller, text: str, tasks: Sequence[Summary]) -> AsyncIterator[bytes]:
    before = (await asyncio.to_thread(service.engine.stats))["batches"]
    began = time.perf_counter()
    pending: set[asyncio.Task[dict[str, Any]]] = set()
    answered = 0
    left = iter(tasks)
    try:
        while True:
            while len(pending) < service.limits.window and (task := next(left, None)) is not None:
                pending.add(asyncio.create_task(_answer(service, caller, task, text)))
            if not pending:
                break
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            found = [each.result() for each in done]
            answered += sum("answer" in each for each in found)
            yield "".join(f"{json_text(each)}\n" for each in found).encode()
        seconds = time.perf_counter() - began
        batches = (await asyncio.to_thread(service.engine.stats))["batches"] - before
        yield f"{json_text({'done': answered, 'seconds': seconds, 'batches': batches})}\n".encode()
    finally:
        for each in pending:
            each.cancel()


async def _answer(service: Service, caller: Caller, task: Summary, text: str) -> dict[str, Any]:
    """Return a task's answer, or that it takes other inputs, or why there is none."""
    about = {"task": task.name, "kind": task.kind}
    until = time.monotonic() + service.limits.timeout
    while True:
        try:
            future = await service.submit(
                caller, task.name, [text], len(text), timeout=service.limits.timeout, min_score=None
            )
            service.counts.use({task.name: 1})
            return {**about, "answer": shaped((await asyncio.wrap_future(future))[0], TOP)}
        except QueueFull as error:
            if time.monotonic() > until:
                return {**about, **problem_of(error).to_dict()}
            await asyncio.sleep(PAUSE)
        except UsageError:  # a pair of texts, for one
            return {**about, "other": True}
        except Exception as error:
            return {**about, **problem_of(error).to_dict()}
