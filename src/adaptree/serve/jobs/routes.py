"""The routes of training jobs.

    POST /v1/files?name=reviews.csv     keep a data file        GET /v1/files/{id}/check      DELETE /v1/files/{id}
    POST /v1/jobs                       check a file, and queue a job          GET /v1/jobs, /v1/jobs/{id}
    GET  /v1/jobs/{id}/events           server-sent events      POST /v1/jobs/{id}/cancel, /v1/jobs/{id}/retry

A tenant's job or file is for others as if it did not exist.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from adaptree.data.stem import stem
from adaptree.errors import StoreError, UsageError
from adaptree.serve import receive
from adaptree.serve.jobs import schemas
from adaptree.serve.jobs.checking import check_file
from adaptree.serve.jobs.files import DataFile
from adaptree.serve.jobs.job import ENDED, MORE_FILES, Job, moment
from adaptree.serve.jobs.settings import check_settings
from adaptree.serve.jobs.streams import MEDIA, stream
from adaptree.serve.jobs.uploads import FORM, TYPES, receive_file, receive_form
from adaptree.serve.predicting import as_json
from adaptree.serve.problems import Problem
from adaptree.serve.receive import JSON, parse_as
from adaptree.serve.service import Service, qualified

if TYPE_CHECKING:
    from adaptree.serve.jobs.queue import Jobs
    from adaptree.serve.keys import Caller

router = APIRouter(tags=["jobs"])
PAGE = 100
MoreFile = Annotated[str, Query(max_length=64, description="The id of another file of the job.")]


def _asked(request: Request) -> tuple[Service, Jobs, Caller]:
    """Return the service, its queue, and who asks; raise a Problem if they may not, or there are no jobs here."""
    service: Service = request.app.state.service
    caller = service.caller(request, "train")
    return service, service.queue, caller


# Files


@router.post("/v1/files", summary="Send a data file", status_code=201)
async def add_file(
    request: Request, name: Annotated[str, Query(max_length=1000, description="Its name, which says its format.")]
) -> Response:
    """Keep a data file, to check it and to train on it; one that no job uses is deleted after a day."""
    service, jobs, caller = _asked(request)
    receive.content_type(request, *TYPES)
    async with service.receiving:
        file = await receive_file(request, jobs.files, service.limits, caller.tenant, name)
    return as_json(_shown(file), 201)


def _shown(file: DataFile) -> dict[str, Any]:
    return {"id": file.id, "name": file.name, "bytes": file.bytes, "expires": moment(file.expires)}


@router.get("/v1/files/{id}/check", summary="Check a data file")
async def check(
    request: Request,
    id: str,
    settings: Annotated[str, Query(max_length=2048, description="The job's settings, as JSON.")] = "{}",
    validation: MoreFile = "",
    test: MoreFile = "",
    descriptions: MoreFile = "",
) -> Response:
    """Say what is in a file, what would be trained on it and why, and what looks wrong, as `adaptree check` does."""
    service, jobs, caller = _asked(request)
    file = await asyncio.to_thread(jobs.files.get, id, caller.tenant)
    others = {"validation": validation, "test": test, "descriptions": descriptions}
    more = await asyncio.to_thread(_more_files, jobs, caller, others)
    try:
        given = json.loads(settings)
    except ValueError:
        raise Problem(422, "bad_json", "settings is no JSON.", hint='settings={"label": "stars"}') from None
    options = _options(caller, given, file.name)
    return as_json(await _checked(service, jobs, file, more, options))


@router.delete("/v1/files/{id}", summary="Delete a data file")
async def remove_file(request: Request, id: str) -> Response:
    """Delete a file; one that a job still needs stays."""
    _, jobs, caller = _asked(request)
    file = await asyncio.to_thread(jobs.files.get, id, caller.tenant)
    await asyncio.to_thread(jobs.files.delete, file.id)
    return as_json({"removed": file.id})


def _options(caller: Caller, given: Any, file_name: str) -> dict[str, Any]:
    """Return a job's settings with the whole name of its task; raise a Problem for what a client cannot set."""
    if not isinstance(given, Mapping):
        raise Problem(422, "bad_input", "settings is not an object.", hint='{"name": "reviews"}')
    try:
        options = check_settings(given)
    except UsageError as error:
        raise Problem(422, "bad_input", error.what, hint=error.hint) from error
    asked = str(options.get("name") or stem(Path(file_name)))
    name = qualified(caller.tenant, asked)
    if name is None:
        what = f"a task cannot be called '{asked:.80}'."
        raise Problem(422, "bad_input", what, hint="A name is 1 to 64 of a-z, 0-9, '_' and '-': reviews")
    return {**options, "name": name}


def _more_files(jobs: Jobs, caller: Caller, given: Mapping[str, str | None]) -> dict[str, DataFile]:
    """Return a job's other files by what they are; raise FileNotHere for one that is not the caller's."""
    return {part: jobs.files.get(id, caller.tenant) for part, id in given.items() if id}


async def _checked(
    service: Service, jobs: Jobs, file: DataFile, more: Mapping[str, DataFile], options: dict[str, Any]
) -> dict[str, Any]:
    """Return what a check says; raise a Problem if the file cannot be trained on so."""
    base, encoder, limits = service.base_info, service.engine.base.encoder, service.limits

    def look() -> dict[str, Any]:
        try:
            service.engine.store.check_room(options["name"])
        except StoreError as error:  # 'lang/3' where that is version 3 of 'lang'
            hint = "Choose a name with a letter in it."
            raise Problem(422, "bad_input", f"a task cannot be called '{options['name']}'.", hint=hint) from error
        with ExitStack() as opened:
            path = opened.enter_context(jobs.files.open(file))
            others = {part: opened.enter_context(jobs.files.open(each)) for part, each in more.items()}
            return check_file(
                path, options, base, encoder, more_files=others, most_rows=limits.job_rows, timeout=limits.check
            )

    async with service.checks:
        return await asyncio.to_thread(look)


# Jobs


@router.post("/v1/jobs", summary="Train a task", status_code=202)
async def add_job(request: Request) -> Response:
    """Check a data file and queue a job that trains a task on it, on the base that is served.

    The body is JSON that names files, or a form with the parts `file` and `settings`, and where they are wanted
    `validation`, `test` and `descriptions`. The files are checked first: what cannot be trained on is answered with 422
    and the numbers of its rows.
    """
    service, jobs, caller = _asked(request)
    if receive.content_type(request, JSON, FORM) == FORM:
        async with service.receiving:
            files, values = await receive_form(request, jobs.files, service.limits, caller.tenant)
        ids = {part: file.id for part, file in files.items()}
        try:
            wanted = parse_as(schemas.JobRequest, json.dumps({**values, **ids}).encode())
            job = await _queued(service, jobs, caller, wanted)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(jobs.files.discard, *ids.values()))  # nobody else knows them
            raise
    else:
        wanted = parse_as(schemas.JobRequest, await receive.body(request, service.limits))
        job = await _queued(service, jobs, caller, wanted)
    answer = as_json(job.to_json(), 202)
    answer.headers["Location"] = f"/v1/jobs/{job.id}"
    return answer


async def _queued(service: Service, jobs: Jobs, caller: Caller, wanted: schemas.JobRequest) -> Job:
    limits = service.limits
    file = await asyncio.to_thread(jobs.files.get, wanted.file, caller.tenant)
    more = await asyncio.to_thread(_more_files, jobs, caller, wanted.model_dump(include={*MORE_FILES}))
    options = _options(caller, wanted.settings, file.name)
    found = await _checked(service, jobs, file, more, options)
    job = await asyncio.to_thread(
        jobs.add, caller.tenant, file.id, options, wanted.keep_data,
        more_files={part: each.id for part, each in more.items()}, base=service.base_info.fingerprint,
        rows=sum(found["parts"].values()), most_queued=limits.jobs_queued,
        most_running=limits.jobs_running, most_seconds=limits.job_seconds, most_rows=limits.rows_a_day,
    )  # fmt: skip
    service.metrics.jobs.inc()
    return job


@router.get("/v1/jobs", summary="List jobs")
async def list_jobs(
    request: Request,
    state: Annotated[
        Literal["", "queued", "running", "done", "failed", "cancelled"], Query(description="Only those in this state.")
    ] = "",
    name: Annotated[str, Query(max_length=200, description="Only those of this task.")] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="Jobs of a page.")] = PAGE,
    after: Annotated[str, Query(max_length=64, description="The last id of the page before.")] = "",
) -> Response:
    """List the caller's jobs, the newest first."""
    _, jobs, caller = _asked(request)
    if name:
        name = qualified(caller.tenant, name) or "-"

    def read() -> list[Job]:
        last = jobs.get(after, caller.tenant).number if after else 0
        return jobs.list(tenant=caller.tenant, state=state, name=name, limit=limit + 1, after=last)

    found = await asyncio.to_thread(read)
    shown = found[:limit]
    more = shown[-1].id if len(found) > limit else None
    return as_json({"jobs": [job.to_json() for job in shown], "next": more})


@router.get("/v1/jobs/{id}", summary="Show a job")
async def show_job(request: Request, id: str) -> Response:
    """Show a job: its state, its place in the queue or its progress, and in the end its task, scores and bill."""
    _, jobs, caller = _asked(request)
    return as_json((await asyncio.to_thread(jobs.get, id, caller.tenant)).to_json())


@router.get("/v1/jobs/{id}/events", summary="Follow a job")
async def follow_job(
    request: Request,
    id: str,
    after: Annotated[int, Query(ge=0, le=2**53, description="The last event seen; or Last-Event-ID.")] = 0,
) -> Response:
    """Send a job's events as they come: note, progress, epoch and state; the last is a state that has ended.

    A client that lost the connection goes on with `Last-Event-ID`. If there is nothing more to come, the answer is 204.
    """
    service, jobs, caller = _asked(request)
    job = await asyncio.to_thread(jobs.get, id, caller.tenant)
    said = request.headers.get("last-event-id", "").strip()
    last = int(said) if said.isdecimal() and len(said) < 16 else after
    if job.state in ENDED and last >= job.events:
        return Response(status_code=204)
    if service.streams >= service.limits.streams:
        raise Problem(429, "too_busy", f"{service.streams:,} clients follow jobs already.", hint="Try again in 1 s.")

    async def counted() -> AsyncIterator[bytes]:
        service.streams += 1
        try:
            async for piece in stream(service, jobs, job.id, last):
                yield piece
        finally:
            service.streams -= 1

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(counted(), headers=headers, media_type=MEDIA)


@router.post("/v1/jobs/{id}/cancel", summary="Cancel a job")
async def cancel_job(
    request: Request,
    id: str,
    keep: Annotated[Literal["nothing", "best"], Query(description="best: its best epoch so far is kept.")] = "nothing",
) -> Response:
    """Cancel a job: one that waits at once, one that runs at its next step; `keep=best` makes a task of what it has."""
    _, jobs, caller = _asked(request)
    await asyncio.to_thread(jobs.get, id, caller.tenant)
    return as_json((await asyncio.to_thread(jobs.cancel, id, keep)).to_json())


@router.post("/v1/jobs/{id}/retry", summary="Try a job again")
async def retry_job(request: Request, id: str) -> Response:
    """Queue a job again that failed, or was cancelled and its data kept."""
    _, jobs, caller = _asked(request)
    await asyncio.to_thread(jobs.get, id, caller.tenant)
    return as_json((await asyncio.to_thread(jobs.retry, id)).to_json())
