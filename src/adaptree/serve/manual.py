"""The server's own documentation: the OpenAPI document, and a page that shows it without any script."""

from __future__ import annotations

import html
import json
from typing import Any, NamedTuple

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from adaptree.serve import openai_schemas as openai
from adaptree.serve import schemas
from adaptree.serve.jobs import schemas as jobs
from adaptree.serve.jobs.uploads import PARTS
from adaptree.serve.limits import Limits

JSON, NDJSON, BYTES = "application/json", "application/x-ndjson", "application/octet-stream"
FORM, EVENTS = "multipart/form-data", "text/event-stream"
TEXT = {"type": "string"}
EVENT = {
    "type": "object",
    "properties": {"id": TEXT, "event": TEXT, "data": {"type": "string", "contentMediaType": JSON}},
    "description": "One event: its number, what kind it is, and an object.",
}
MEANINGS = {
    400: "This is not an HTTP request.",
    401: "There is no key, or a wrong one.",
    403: "The key is not for this.",
    404: "There is no such task, or not for this caller.",
    408: "The request came too slowly.",
    409: "The task is of another base, or in use.",
    413: "The request is too large.",
    415: "The Content-Type is another than is expected.",
    422: "The request is not what is expected.",
    429: "Too much at once: try again after Retry-After seconds.",
    500: "The server is at fault.",
    503: "The server cannot answer just now: try again after Retry-After seconds.",
    504: "The answer was not ready in time.",
}
_ASKING = (401, 403, 404, 409, 422, 429, 500, 503)
_SENDING = (*_ASKING, 408, 413, 415)


class _Operation(NamedTuple):
    """What a route takes and gives."""

    answer: type[BaseModel] | None
    errors: tuple[int, ...] = ()
    body: type[BaseModel] | None = None
    lines: type[BaseModel] | None = None
    """What each line is, where a body may be NDJSON."""
    status: int = 200
    events: bool = False
    """Whether the answer is a stream of events, or can be one."""
    form: bool = False
    """Whether a body may be a form that has the file in it."""


OPERATIONS = {
    ("/v1/predict", "post"): _Operation(
        schemas.MixedPredictions, (*_SENDING, 504), schemas.MixedRequest, lines=schemas.Item
    ),
    ("/v1/tasks/{task}/predict", "post"): _Operation(
        schemas.TaskPredictions, (*_SENDING, 504), schemas.TaskRequest, lines=schemas.Input
    ),
    ("/v1/completions", "post"): _Operation(openai.Completion, (*_SENDING, 504), openai.CompletionRequest, events=True),
    ("/v1/chat/completions", "post"): _Operation(
        openai.ChatCompletion, (*_SENDING, 504), openai.ChatRequest, events=True
    ),
    ("/v1/models", "get"): _Operation(openai.LanguageModels, (401, 403, 429, 500, 503)),
    ("/v1/models/{model}", "get"): _Operation(openai.LanguageModel, _ASKING),
    ("/v1/tasks", "get"): _Operation(schemas.TaskPage, (401, 403, 422, 429, 500, 503)),
    ("/v1/tasks", "post"): _Operation(schemas.Upload, _SENDING, status=201),
    ("/v1/tasks/{task}", "get"): _Operation(schemas.TaskDetails, _ASKING),
    ("/v1/tasks/{task}", "delete"): _Operation(schemas.Removed, _ASKING),
    ("/v1/files", "post"): _Operation(jobs.FileInfo, _SENDING, status=201),
    ("/v1/files/{id}/check", "get"): _Operation(jobs.CheckAnswer, (*_ASKING, 413)),
    ("/v1/files/{id}", "delete"): _Operation(jobs.FileRemoved, _ASKING),
    ("/v1/jobs", "post"): _Operation(jobs.JobInfo, _SENDING, jobs.JobRequest, status=202, form=True),
    ("/v1/jobs", "get"): _Operation(jobs.JobPage, _ASKING),
    ("/v1/jobs/{id}", "get"): _Operation(jobs.JobInfo, _ASKING),
    ("/v1/jobs/{id}/events", "get"): _Operation(None, _ASKING, events=True),
    ("/v1/jobs/{id}/cancel", "post"): _Operation(jobs.JobInfo, _ASKING),
    ("/v1/jobs/{id}/retry", "post"): _Operation(jobs.JobInfo, _ASKING),
    ("/v2", "get"): _Operation(schemas.ServerInfo),
    ("/v2/health/live", "get"): _Operation(schemas.Status),
    ("/v2/health/ready", "get"): _Operation(schemas.Status, (503,)),
    ("/health", "get"): _Operation(schemas.Status),
    ("/ready", "get"): _Operation(schemas.Status, (503,)),
    ("/v2/models/{task}/ready", "get"): _Operation(schemas.Status, _ASKING),
    ("/v2/models/{task}/infer", "post"): _Operation(schemas.InferAnswer, (*_SENDING, 504), schemas.InferRequest),
    ("/v2/models/{task}", "get"): _Operation(schemas.ModelInfo, _ASKING),
    ("/metrics", "get"): _Operation(None, (401, 403, 429)),
}
OPEN = ("/v2", "/v2/health/live", "/v2/health/ready", "/health", "/ready")
"""Routes that need no key."""
INTRODUCTION = """\
One frozen pretrained Transformer, a thin trained layer per task; a batch mixes whatever arrives. Every error is \
`{"error": {"code", "message", "hint"}}`. Each answer has an `X-Request-Id`, which a client may choose."""


def describe(app: FastAPI, limits: Limits, keyed: bool) -> dict[str, Any]:
    """Return the OpenAPI document of the routes, with the limits that this server has."""
    found = get_openapi(title=app.title, version=app.version, description=INTRODUCTION, routes=app.routes)
    models = {
        schemas.ErrorBody,
        *(model for each in OPERATIONS.values() for model in (each.answer, each.body, each.lines)),
    }
    named = sorted((model for model in models if model is not None), key=lambda model: model.__name__)
    _, defined = models_json_schema(
        [(model, "validation") for model in named], ref_template="#/components/schemas/{model}"
    )
    found["components"] = {"schemas": _limited(defined["$defs"], limits)}
    for (path, method), operation in OPERATIONS.items():
        said = found["paths"][path][method]
        said["responses"] = _responses(operation)
        if bodies := _bodies(path, operation):
            said["requestBody"] = {"required": True, "content": bodies}
        for parameter in said.get("parameters", ()):
            if parameter["in"] == "path":
                parameter["schema"] |= {"minLength": 1, "maxLength": 1000}
                parameter |= _ID if parameter["name"] == "id" else _NAME
        if operation.lines:
            said["parameters"] = [*said.get("parameters", ()), *_OPTIONS]
        if keyed:
            said["security"] = [] if path in OPEN else [{"key": []}]
    if keyed:
        found["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return found


_ID = {"description": "The id that the server gave it.", "example": "8f14e45fceea167a"}
_NAME = {"description": schemas.TASK.description, "example": "reviews"}
_OPTIONS = [
    {
        "name": name,
        "in": "query",
        "required": False,
        "schema": schema,
        "description": "As in the body, which counts first.",
    }
    for name, schema in {
        "top_k": {"type": "integer", "minimum": 1, "maximum": 10_000},
        "min_score": {"type": "number", "minimum": 0, "maximum": 1},
        "timeout": {"type": "number", "minimum": 0.1, "maximum": 3600},
    }.items()
]


def _limited(models: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Return the schemas with this server's limits in them."""
    models["MixedRequest"]["properties"]["items"]["maxItems"] = limits.items
    models["TaskRequest"]["properties"]["inputs"]["maxItems"] = limits.items
    models["CompletionRequest"]["properties"]["prompt"]["anyOf"][1]["maxItems"] = limits.items
    return models


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}


def _bodies(path: str, operation: _Operation) -> dict[str, Any]:
    if operation.body is None:
        return {BYTES: {"schema": {"type": "string", "format": "binary"}}} if operation.status == 201 else {}
    found: dict[str, Any] = {JSON: _ref(operation.body)}
    if operation.form:
        files = {part: {"type": "string", "format": "binary"} for part in PARTS}
        parts = {**files, "settings": {"type": "string"}, "keep_data": {"type": "boolean"}}
        found[FORM] = {"schema": {"type": "object", "required": ["file"], "properties": parts}}
    if operation.lines is not None:
        found[NDJSON] = {
            "schema": {"description": f"Lines of JSON, each {operation.lines.__name__}; a wrong one is answered."}
        }
    return found


def _responses(operation: _Operation) -> dict[str, Any]:
    if operation.answer is None:
        good: dict[str, Any] = {EVENTS: {"schema": EVENT}} if operation.events else {"text/plain": {"schema": TEXT}}
    else:
        good = {JSON: _ref(operation.answer)}
        if operation.events:
            good[EVENTS] = {"schema": {"description": "With stream: each event is a piece, and the last one [DONE]."}}
        if operation.lines is not None:
            good[NDJSON] = _ref(schemas.Prediction)
    found: dict[str, Any] = {str(operation.status): {"description": "Done.", "content": good}}
    if operation.answer is None and operation.events:
        found["204"] = {"description": "There is nothing more to come."}
    for status in sorted({400, *operation.errors}):
        error: dict[str, Any] = {"description": MEANINGS[status], "content": {JSON: _ref(schemas.ErrorBody)}}
        if status in (429, 503):
            error["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
        found[str(status)] = error
    return found


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.4 ui-monospace, monospace; } pre { background: #8881; padding: .8rem; overflow: auto; }
h2 { margin-top: 2.5rem; } b { display: inline-block; min-width: 4.5rem; } td { padding: .1rem .8rem .1rem 0; }
:root { color-scheme: light dark; }
"""


def manual(document: dict[str, Any]) -> str:
    """Return a page of HTML that shows an OpenAPI document: each route, with an example and what can go wrong."""
    parts = []
    for path, methods in document["paths"].items():
        for method, said in methods.items():
            parts.append(_section(path, method, said, document["components"]["schemas"]))
    title = html.escape(f"{document['info']['title']} {document['info']['version']}")
    introduction = html.escape(document["info"]["description"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f'<h1>{title}</h1><p>{introduction}</p><p><a href="/openapi.json">openapi.json</a></p>{"".join(parts)}</html>'
    )


def _section(path: str, method: str, said: dict[str, Any], models: dict[str, Any]) -> str:
    lines = [f"<h2><b>{method.upper()}</b> <code>{html.escape(path)}</code></h2><p>{html.escape(said['summary'])}.</p>"]
    if "description" in said:
        lines.append(f"<p>{html.escape(said['description'])}</p>")
    for kind, content in said.get("requestBody", {}).get("content", {}).items():
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        for example in models.get(name, {}).get("examples", ())[:1]:
            lines.append(f"<p>{kind}</p><pre>{html.escape(json.dumps(example, indent=1))}</pre>")
    rows = [f"<tr><td>{status}<td>{html.escape(each['description'])}" for status, each in said["responses"].items()]
    return "".join([*lines, f"<table>{''.join(rows)}</table>"])
