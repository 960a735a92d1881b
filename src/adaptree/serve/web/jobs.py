"""Jobs, and one of them live: the pages are of the moment, and follow the job's events from there on."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from adaptree.serve.improving import improves
from adaptree.serve.jobs.job import CANCELLED, DONE, FAILED, STATES, Job
from adaptree.serve.web.frame import page, service_of

router = APIRouter(include_in_schema=False)

PAGE = 30
"""Jobs of a page."""


@router.get("/jobs")
async def jobs(
    request: Request,
    state: Annotated[str, Query(max_length=20)] = "",
    task: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    service = service_of(request)
    caller = service.caller(request, "train")
    queue, state = service.queue, state if state in STATES else ""

    def read() -> list[Job]:
        last = queue.get(after, caller.tenant).number if after else 0
        return queue.list(tenant=caller.tenant, state=state, name=task, limit=PAGE + 1, after=last)

    found = await asyncio.to_thread(read)
    shown = found[:PAGE]
    said = {key: value for key, value in (("state", state), ("task", task)) if value}
    older = f"/jobs?{urlencode({**said, 'after': shown[-1].id})}" if len(found) > PAGE else ""
    return page(
        request, "jobs.html", caller, jobs=shown, states=STATES, state=state, task=task, older=older, after=after,
        active=any(not job.ended for job in shown), address=_address(task),
    )  # fmt: skip


def _address(task: str) -> Any:
    def address(state: str) -> str:
        said = {key: value for key, value in (("state", state), ("task", task)) if value}
        return f"/jobs?{urlencode(said)}" if said else "/jobs"

    return address


@router.get("/jobs/{id}")
async def job(request: Request, id: str) -> Response:
    service = service_of(request)
    caller = service.caller(request, "train")
    found = await asyncio.to_thread(service.queue.get, id, caller.tenant)
    return page(
        request, "job.html", caller, job=found, again=found.state in (FAILED, CANCELLED), improves=improves(found),
        done=found.state == DONE,
    )  # fmt: skip
