"""The server's routes.

    app = create_app(engine)            # an ASGI application: `adaptree serve` runs it with uvicorn

    POST /v1/predict                    inputs for any tasks, in one forward pass
    POST /v1/tasks/{task}/predict       inputs for one task
    GET  /v1/tasks                      POST: upload a bundle       GET, DELETE /v1/tasks/{task}
    POST /v1/completions, /v1/chat/completions      texts, in OpenAI's shape: see `adaptree.serve.openai`
    GET  /v2, /v2/models/{task}         POST /v2/models/{task}/infer        the Open Inference Protocol
    POST /v1/files, /v1/jobs, …         training jobs: see `adaptree.serve.jobs.routes`
    GET  /health, /ready, /metrics, /docs, /openapi.json
    GET  /, /task/{task}, …             the pages (`serve/web`)

A task's name may have a slash in it, a version or a tag: /v1/tasks/acme/reviews@2/predict.
"""

from __future__ import annotations

import asyncio
import math
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from adaptree import __version__
from adaptree.errors import AdaptreeError, StoreError, UsageError
from adaptree.hub.sharing import import_file
from adaptree.kinds.findings import without_rows
from adaptree.reports.json_text import json_text
from adaptree.serve import inference, receive
from adaptree.serve.counts import Counts
from adaptree.serve.front import Front
from adaptree.serve.jobs.queue import Jobs
from adaptree.serve.jobs.routes import router as jobs_router
from adaptree.serve.keys import Caller, Keys
from adaptree.serve.limits import Limits
from adaptree.serve.manual import describe, manual
from adaptree.serve.observe import Metrics, RequestLog
from adaptree.serve.openai import router as openai_router
from adaptree.serve.predicting import as_json, in_lines, predict, stream, wants_lines
from adaptree.serve.problems import Problem, problem_of
from adaptree.serve.receive import JSON, NDJSON, parse_as
from adaptree.serve.schemas import (
    AnyInput,
    Input,
    Item,
    MixedRequest,
    Options,
    TaskRequest,
)
from adaptree.serve.service import Service, qualified
from adaptree.serve.web import all_tasks, composing, improve, listing, new_task, quality, sign_in, static, task
from adaptree.serve.web import jobs as jobs_pages
from adaptree.serve.web import methods as methods_page
from adaptree.serve.web import server as server_page
from adaptree.serve.web.frame import problem_page, wants_page
from adaptree.tasks.bundle import unpack
from adaptree.tasks.names import check_name
from adaptree.tasks.parts import needs
from adaptree.tasks.record import read_record

if TYPE_CHECKING:
    from adaptree.serve.service import AnyEngine
    from adaptree.serve.traces import Traces

ZIP = ("application/octet-stream", "application/zip")
PAGE = 100
"""Tasks of a page, unless a client asks for more or fewer."""
OPTIONS = ("top_k", "min_score", "timeout")

router = APIRouter()
router.include_router(jobs_router)
router.include_router(openai_router)
PAGES = tuple(
    each.router
    for each in (
        static, sign_in, listing, task, quality, all_tasks, methods_page, composing, server_page, new_task, jobs_pages,
        improve,
    )
)  # fmt: skip


def create_app(
    engine: AnyEngine,
    *,
    keys: Keys | None = None,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    log: RequestLog | None = None,
    hosts: Sequence[str] = (),
    open_metrics: bool = False,
    traces: Traces | None = None,
    jobs: Jobs | bool = True,
    results: Path | None = None,
    counts: Counts | None = None,
) -> FastAPI:
    """Return the application over an engine, which the caller closes.

    Without `keys` anybody may do everything. `hosts` are the names that clients may call the server by (any, if there
    are none): without keys it keeps web pages of others from asking a server on this machine. `results` is a folder of
    comparisons that the pages show. `jobs` is the queue of training jobs, by default that of the store; workers,
    which are processes of their own, train them. `counts` may be shared with other processes that serve the same.
    """
    service = Service(
        engine, keys=keys, limits=limits, metrics=metrics, log=log, hosts=hosts, open_metrics=open_metrics,
        jobs=_queue_of(engine, jobs), results=results, counts=counts,
    )  # fmt: skip
    app = FastAPI(title="adaptree", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    app.include_router(router)
    for each in PAGES:
        app.include_router(each)
    app.state.pages = frozenset(route.path for each in PAGES for route in each.routes if isinstance(route, APIRoute))
    app.add_middleware(Front, service=service, traces=traces)
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(AdaptreeError, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.openapi = lambda: describe(app, service.limits, bool(keys))  # type: ignore[method-assign]
    return app


def _queue_of(engine: AnyEngine, jobs: Jobs | bool) -> Jobs | None:
    """Return the queue that was given, or the store's own; None if there is to be none, or there cannot be one."""
    if not isinstance(jobs, bool):
        return jobs
    try:
        return Jobs(engine.store) if jobs else None
    except UsageError:  # a store behind a URL, without PostgreSQL
        return None


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


# Errors


def _sent(problem: Problem) -> Response:
    more = {"Connection": "close"} if problem.closes else {}
    return Response(problem.to_json(), problem.status, {**problem.headers, **more}, JSON)


def _answer(request: Request, problem: Problem) -> Response:
    """Return an error as a page for a browser, and as JSON for all others."""
    return problem_page(request, problem) if wants_page(request) else _sent(problem)


async def _problem(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    if problem.status == 500:
        _service(request).log.failure(error, request.state.id)
    return _answer(request, problem)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(request, receive.invalid(list(error.errors())))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, what, hint = {
        404: ("no_such_route", "there is nothing here.", "GET /docs lists what there is."),
        405: ("method_not_allowed", f"{request.method} is not for this.", "GET /docs lists what there is."),
    }.get(error.status_code, ("bad_request", str(error.detail), ""))
    more = {"Allow": _allowed(request)} if error.status_code == 405 else {}
    return _answer(request, Problem(error.status_code, code, what, hint=hint, headers=more))


def _allowed(request: Request) -> str:
    """Return the methods of a path: those of all routes that are spelled as the first that fits."""
    every = (router, jobs_router, openai_router, *PAGES)
    routes = [route for each in every for route in each.routes if isinstance(route, APIRoute)]
    path = next(route.path for route in routes if route.path_regex.match(request.scope["path"]))
    return ", ".join(sorted({method for route in routes if route.path == path for method in route.methods or ()}))


# Predictions


@router.post("/v1/predict", tags=["predict"], summary="Predict for any tasks at once")
async def predict_mixed(request: Request) -> Response:
    """Answer inputs that each name their task; one forward pass computes them together.

    What is wrong with one of them, or with its task, is the answer to that one: `{"error": …}` among the predictions.
    If none can be answered, the first one's error is the answer to the request.

    As `application/x-ndjson`, each line is an item and gets a line as it is computed, in order: any number of them,
    with `top_k`, `min_score` and `timeout` in the query. A line that is wrong gets its error as a line.
    """
    service = _service(request)
    caller = service.caller(request, "predict")
    options = _query_options(request)
    if receive.content_type(request, JSON, NDJSON) == NDJSON:
        return stream(service, request, caller, _read_item, options)
    wanted = parse_as(MixedRequest, await receive.body(request, service.limits))
    given = [(item.task, item) for item in wanted.items]
    answers = await predict(service, request, caller, given, _merged(options, wanted), apart=True)
    return in_lines(answers) if wants_lines(request) else as_json({"predictions": answers})


def _read_item(line: bytes) -> tuple[str, Any]:
    item = parse_as(Item, line)
    return item.task, item


@router.post("/v1/tasks/{task:path}/predict", tags=["predict"], summary="Predict for one task")
async def predict_one(request: Request, task: str) -> Response:
    """Answer inputs for one task. As `application/x-ndjson`, each line is an input: a JSON string, list or object."""
    service = _service(request)
    caller = service.caller(request, "predict")
    options = _query_options(request)
    if receive.content_type(request, JSON, NDJSON) == NDJSON:
        await service.resolve(caller, task)
        return stream(service, request, caller, lambda line: (task, _read_input(line)), options)
    wanted = parse_as(TaskRequest, await receive.body(request, service.limits))
    if not wanted.inputs:
        await service.resolve(caller, task)
    given = [(task, each) for each in wanted.inputs]
    answers = await predict(service, request, caller, given, _merged(options, wanted))
    return in_lines(answers) if wants_lines(request) else as_json({"task": task, "predictions": answers})


def _read_input(line: bytes) -> AnyInput:
    if line.lstrip().startswith(b"{"):
        return parse_as(Input, line)
    given: AnyInput = parse_as(TaskRequest, b'{"inputs": [' + line + b"]}").inputs[0]
    return given


def _query_options(request: Request) -> Options:
    """Return the options in a request's query."""
    if not request.url.query:
        return Options()
    try:
        said = {
            name: (int if name == "top_k" else float)(request.query_params[name])
            for name in OPTIONS
            if name in request.query_params
        }
    except ValueError:
        said = {"top_k": math.nan}
    if not all(map(math.isfinite, said.values())):
        raise Problem(422, "bad_input", "top_k, min_score and timeout are numbers.", hint="top_k=3")
    return parse_as(Options, json_text(said).encode())


def _merged(query: Options, body: Options) -> Options:
    """Return the options of a request: those of its body count before those of its query."""
    found = {name: getattr(query, name) if (value := getattr(body, name)) is None else value for name in OPTIONS}
    return Options.model_construct(**found)


# Tasks


@router.get("/v1/tasks", tags=["tasks"], summary="List tasks")
async def list_tasks(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000, description="Tasks of a page.")] = PAGE,
    after: Annotated[str, Query(max_length=200, description="The last name of the page before.")] = "",
    search: Annotated[str, Query(max_length=200, description="Words to search for; the best match first.")] = "",
) -> Response:
    """List the newest version of each task that the caller may name, by name."""
    service = _service(request)
    caller = service.caller(request, "predict")
    rows = await (service.search(caller, search) if search.strip() else service.rows(caller))
    names = [row.summary.name for row in rows]
    if search.strip():
        start = names.index(after) + 1 if after in names else 0
    else:
        start = next((i for i, name in enumerate(names) if name > after), len(names))
    shown = rows[start : start + limit]
    more = start + limit < len(rows)
    return as_json(
        {"tasks": [asdict(row.summary) for row in shown], "next": names[start + limit - 1] if more else None}
    )


@router.get("/v1/tasks/{task:path}", tags=["tasks"], summary="Show a task")
async def show_task(request: Request, task: str) -> Response:
    """Show a task's record: its kind, labels, method, base, data and scores."""
    service = _service(request)
    caller = service.caller(request, "predict")
    reference = await _stored(service, caller, task)
    return as_json(await asyncio.to_thread(_details, service, reference))


async def _stored(service: Service, caller: Caller, task: str) -> str:
    """Return the store's name for a task that is no composition."""
    if task.endswith(("/predict", "/infer")):  # a task of that name can be shown as NAME@1
        raise HTTPException(405)
    if "(" in task:
        raise Problem(422, "bad_input", "this is a composition.", hint="Name one of its tasks.")
    return await service.resolve(caller, task)


def _details(service: Service, reference: str) -> dict[str, Any]:
    store, name = service.engine.store, reference.partition("@")[0]
    record = store.record(reference)
    hidden = ("probe", "examples", "history", "machine")  # texts of the data, and where it was trained
    values = {key: value for key, value in record.to_json().items() if key not in hidden}
    values["software"] = values.pop("versions")
    values["extra"] = {**record.extra, "insight": without_rows(record.extra.get("insight") or {})}
    served = record.base.get("fingerprint") == service.engine.base.fingerprint
    return {**values, "versions": store.versions(name), "tags": store.tags(name), "served": served}


@router.delete("/v1/tasks/{task:path}", tags=["tasks"], summary="Remove a task")
async def remove_task(request: Request, task: str) -> Response:
    """Remove a task, or one version of it; one that has a tag, or that others are made of, stays."""
    service = _service(request)
    caller = service.caller(request, "admin")
    reference = await _stored(service, caller, task)
    name = reference.partition("@")[0]

    def remove() -> int:
        try:
            return service.engine.store.remove(reference)
        except StoreError as error:
            if "has the tag" in error.what or "is part of" in error.what:
                raise Problem(409, "in_use", error.what, hint="Take the tag off, or remove those first.") from error
            raise
        finally:
            service.forget(name)

    return as_json({"removed": await asyncio.to_thread(remove)})


@router.post("/v1/tasks", tags=["tasks"], summary="Upload a task", status_code=201)
async def add_task(
    request: Request,
    name: Annotated[str | None, Query(max_length=200, description="Another name for the bundle's one task.")] = None,
) -> Response:
    """Add the tasks of a bundle that `adaptree export` wrote; they are served at once.

    All of it is checked before anything is added. A tenant's bundle holds one task that is not made of others.
    """
    service = _service(request)
    caller = service.caller(request, "train")
    receive.content_type(request, *ZIP)
    async with service.uploads:
        with tempfile.TemporaryDirectory(prefix="adaptree-upload-") as folder:
            file = Path(folder) / "bundle.adaptree"
            with file.open("wb") as out:
                await receive.save(request, service.limits, out)
            done = await asyncio.to_thread(_add, service, caller, file, name)
    request.state.tasks = len(done)
    return as_json({"tasks": done}, 201)


def _add(service: Service, caller: Caller, file: Path, name: str | None) -> list[dict[str, Any]]:
    if caller.tenant:
        name = _name_for(caller, file, name)
    elif name is not None:
        try:
            check_name(name)
        except UsageError as error:
            raise Problem(422, "bad_input", error.what, hint=error.hint) from error
    try:
        done = import_file(file, service.engine.store, name=name, base=service.engine.base)
    except UsageError as error:
        raise Problem(422, "bad_bundle", error.what, hint="Leave out the name.") from error
    for each in done:
        service.forget(each.task.partition("@")[0])
    return [asdict(each) for each in done]


def _name_for(caller: Caller, file: Path, name: str | None) -> str:
    """Return the name that a tenant's bundle gets; raise a Problem if it would touch more than that one task."""
    with tempfile.TemporaryDirectory(prefix="adaptree-upload-") as folder:
        manifest = unpack(file, Path(folder))
        first = manifest.versions[0]
        record = read_record(Path(folder) / first.replace("@", "/"), called=first)
    if len(manifest.versions) > 1 or needs(record):
        what = "the bundle holds more than one task, or one that is made of others."
        raise Problem(422, "bad_bundle", what, hint="Export one task by itself.")
    asked = name if name is not None else first.partition("@")[0].rpartition("/")[2]
    found = qualified(caller.tenant, asked)
    if found is None:
        raise Problem(422, "bad_input", f"'{asked:.100}' cannot be a task's name.", hint="Try name=reviews.")
    return found


# The Open Inference Protocol


@router.get("/v2", tags=["open inference"], summary="About the server")
async def server_info(request: Request) -> Response:
    return as_json({"name": "adaptree", "version": __version__, "extensions": ["binary_tensor_data"]})


@router.get("/v2/health/live", tags=["open inference"], summary="Is the server alive?")
@router.get("/health", tags=["server"], summary="Is the server alive?")
async def health(request: Request) -> Response:
    return as_json({"status": "ok"})


@router.get("/v2/health/ready", tags=["open inference"], summary="Can the server answer?")
@router.get("/ready", tags=["server"], summary="Can the server answer?")
async def ready(request: Request) -> Response:
    """Say whether the base is loaded, the store can be read, and the server is not about to stop."""
    service = _service(request)
    if await asyncio.to_thread(service.is_ready):
        base = service.engine.base
        return as_json({"status": "ready", "base": base.name, "fingerprint": base.fingerprint})
    what = "the store cannot be read, no replica answers, or the server is shutting down."
    raise Problem(503, "not_ready", what, hint="Try again.")


@router.get("/v2/models/{task:path}/ready", tags=["open inference"], summary="Can this task answer?")
async def model_ready(request: Request, task: str) -> Response:
    service = _service(request)
    await _stored(service, service.caller(request, "predict"), task)
    return as_json({"status": "ready"})


@router.post("/v2/models/{task:path}/infer", tags=["open inference"], summary="Predict, as tensors")
async def infer(request: Request, task: str) -> Response:
    """Answer a tensor of texts with tensors of labels and scores, or of values."""
    service = _service(request)
    caller = service.caller(request, "predict")
    receive.content_type(request, JSON, "application/octet-stream")
    data = await receive.body(request, service.limits)
    task = _model(task)
    wanted = inference.read(data, request.headers.get(inference.LENGTH_HEADER))
    inputs = inference.inputs_of(wanted)
    if not inputs:
        await service.resolve(caller, task)
    answers = await predict(service, request, caller, [(task, each) for each in inputs], Options())
    return as_json(inference.answer(task, wanted, answers))


@router.get("/v2/models/{task:path}", tags=["open inference"], summary="Describe a task, as tensors")
async def model_info(request: Request, task: str) -> Response:
    service = _service(request)
    caller = service.caller(request, "predict")
    reference = await _stored(service, caller, _model(task))

    def info() -> dict[str, Any]:
        store = service.engine.store
        record = store.record(reference)
        texts = ["text", "text_pair"] if record.columns.get("pair") else ["text"]
        return {
            "name": reference.partition("@")[0],
            "versions": [str(number) for number in store.versions(reference.partition("@")[0])],
            "platform": "adaptree",
            "inputs": [{"name": each, "datatype": "BYTES", "shape": [-1]} for each in texts],
            "outputs": inference.outputs_of(record.kind),
        }

    return as_json(await asyncio.to_thread(info))


def _model(task: str) -> str:
    """Return a task's reference: the protocol spells a version as /versions/2."""
    found = re.fullmatch(r"(.+)/versions/(\d{1,9})", task)
    return f"{found[1]}@{found[2]}" if found else task


# The server itself


@router.get("/metrics", tags=["server"], summary="Figures for Prometheus")
async def metrics(request: Request) -> Response:
    """Show the server's figures; with keys, to one with the scope admin and no tenant, as they are about everybody."""
    service = _service(request)
    if not service.open_metrics and service.caller(request, "admin").tenant:
        raise Problem(403, "not_allowed", "a tenant's key is not for this.", hint="Ask for one that is.")

    def read() -> bytes:
        figures = service.figures()
        return service.metrics.exposition(figures["total"]["samples"] | figures["now"]["samples"])

    return Response(await asyncio.to_thread(read), media_type=CONTENT_TYPE_LATEST)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    return as_json(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return HTMLResponse(
        manual(request.app.openapi()),
        headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"},
    )
