"""Routes in OpenAI's shape, so that its clients work: a task that writes texts is a model.

    POST /v1/completions, /v1/chat/completions      GET /v1/models, /v1/models/{model}

With "stream": true, a text comes as server-sent events, piece by piece, and `data: [DONE]` at its end.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from adaptree.reports.json_text import json_text
from adaptree.serve import receive
from adaptree.serve.engine import DeadlineExceeded
from adaptree.serve.generation import TextStream, Written
from adaptree.serve.openai_schemas import ChatRequest, CompletionRequest, WritingRequest
from adaptree.serve.predicting import as_json
from adaptree.serve.problems import Problem, not_found, problem_of
from adaptree.serve.receive import JSON, check_count, check_input, parse_as
from adaptree.serve.service import Service

EVENTS = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""What OpenAI's clients call errors, by status."""

router = APIRouter(tags=["texts"])


@router.post("/v1/completions", summary="Write a text after each prompt")
async def completions(request: Request) -> Response:
    """Write a text for each prompt, which goes into the task's template. With `stream`, send it piece by piece."""
    with _in_their_words():
        service: Service = request.app.state.service
        caller = service.caller(request, "predict")
        receive.content_type(request, JSON)
        wanted = parse_as(CompletionRequest, await receive.body(request, service.limits))
        prompts = [wanted.prompt] if isinstance(wanted.prompt, str) else wanted.prompt
        return await _answer(service, request, caller, wanted, prompts, _Completion(wanted.model))


@router.post("/v1/chat/completions", summary="Write the next message of a chat")
async def chat_completions(request: Request) -> Response:
    """Write what comes after some messages. With `stream`, send it piece by piece."""
    with _in_their_words():
        service: Service = request.app.state.service
        caller = service.caller(request, "predict")
        receive.content_type(request, JSON)
        wanted = parse_as(ChatRequest, await receive.body(request, service.limits))
        chat = {"messages": [each.plain() for each in wanted.messages]}
        return await _answer(service, request, caller, wanted, [chat], _Chat(wanted.model))


@router.get("/v1/models", summary="List the tasks that write texts")
async def list_models(request: Request) -> Response:
    """List the newest version of each task of the caller's that writes texts on this server's base."""
    with _in_their_words():
        return as_json({"object": "list", "data": list((await _models(request)).values())})


@router.get("/v1/models/{model:path}", summary="Show a task that writes texts")
async def show_model(request: Request, model: str) -> Response:
    with _in_their_words():
        found = (await _models(request)).get(model)
        if found is None:
            raise not_found(model, "GET /v1/models lists those that write texts.")
        return as_json(found)


async def _models(request: Request) -> dict[str, dict[str, Any]]:
    service: Service = request.app.state.service
    caller = service.caller(request, "predict")
    mark = service.engine.base.fingerprint
    rows = [row.summary for row in await service.rows(caller)]
    return {
        each.name: {
            "id": each.name,
            "object": "model",
            "created": int(datetime.fromisoformat(each.created).timestamp()) if each.created else 0,
            "owned_by": each.name.rpartition("/")[0] or "adaptree",
        }
        for each in rows
        if each.kind == "generate" and each.fingerprint == mark
    }


@contextmanager
def _in_their_words() -> Iterator[None]:
    """Add to errors what OpenAI's clients look for: a type, and the parameter at fault."""
    try:
        yield
    except asyncio.CancelledError:
        raise
    except Exception as error:
        problem = problem_of(error)
        if problem.status == 500:
            raise  # it is logged where all such errors are
        raise _worded(problem) from error


def _worded(problem: Problem) -> Problem:
    usual = "invalid_request_error" if problem.status < 500 else "server_error"
    problem.more |= {"type": TYPES.get(problem.status, usual), "param": None}
    return problem


async def _answer(
    service: Service, request: Request, caller: Any, wanted: WritingRequest, given: Sequence[Any], form: _Form
) -> Response:
    check_count(len(given), service.limits)
    sizes = [check_input(each, service.limits, f"prompt {i}")[1] for i, each in enumerate(given)]
    task = await service.resolve(caller, wanted.model)
    decoding = wanted.decoding(secrets.randbits(31))
    request.state.tasks = 1
    service.count_texts(request, caller, len(given))
    timeout = min(wanted.timeout or service.limits.timeout, service.limits.timeout)
    stream = TextStream() if wanted.stream else None
    future = await service.submit(
        caller, task, list(given), sum(sizes),
        timeout=timeout, decoding=decoding, on_piece=None if stream is None else stream.on_piece,
    )  # fmt: skip
    if stream is None:
        (texts,) = await service.wait([future], timeout, request)
        return as_json(form.whole(texts))
    usage = wanted.stream_options is not None and bool(wanted.stream_options.include_usage)
    events = _events(stream.follow(future), form, len(given), usage, time.monotonic() + timeout + 1.0)
    try:
        first = await anext(events)  # what is wrong with the request is said with its status
    except BaseException:
        future.cancel()
        raise
    return StreamingResponse(_sent(service, request, first, events), headers=HEADERS, media_type=EVENTS)


async def _events(
    stream: TextStream, form: _Form, count: int, usage: bool, until: float
) -> AsyncIterator[dict[str, Any]]:
    """Yield what a stream sends: each piece, how each text ended, and what it took."""
    more = {"usage": None} if usage else {}
    pieces = aiter(stream)
    try:
        begun = False
        while True:
            try:
                found = await asyncio.wait_for(anext(pieces, None), max(0.0, until - time.monotonic()))
            except TimeoutError:
                raise DeadlineExceeded("the answer was not ready in time.", hint="Allow more time.") from None
            if not begun:
                begun = True
                for number in range(count):
                    for opening in form.opening(number):
                        yield opening | more
            if found is None:
                break
            yield form.piece(*found) | more
        for number, text in enumerate(stream.texts):
            yield form.ending(number, text) | more
        if usage:
            yield form.head(True) | {"choices": [], "usage": _usage(stream.texts)}
    finally:
        stream.cancel()


async def _sent(
    service: Service, request: Request, first: dict[str, Any], events: AsyncIterator[dict[str, Any]]
) -> AsyncIterator[bytes]:
    yield _line(first)
    try:
        async for event in events:
            yield _line(event)
    except Exception as error:
        problem = problem_of(error)
        if problem.status == 500:
            service.log.failure(error, request.state.id)
        yield _line(_worded(problem).to_dict())
        return
    yield b"data: [DONE]\n\n"


def _line(value: dict[str, Any]) -> bytes:
    return f"data: {json_text(value)}\n\n".encode()


def _usage(texts: Sequence[Written]) -> dict[str, int]:
    prompt, written = sum(text.prompt_tokens for text in texts), sum(text.tokens for text in texts)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


def _reason(text: Written) -> str:
    return "stop" if text.finished else "length"


class _Form:
    """How texts are put into an answer, or into the pieces of a stream."""

    prefix: str
    object: str
    piece_object: str

    def __init__(self, model: str) -> None:
        self.model, self.created = model, int(time.time())
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"

    def head(self, streamed: bool) -> dict[str, Any]:
        kind = self.piece_object if streamed else self.object
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self, texts: Sequence[Written]) -> dict[str, Any]:
        choices = [self._choice(number, self._content(text.text), _reason(text)) for number, text in enumerate(texts)]
        return self.head(False) | {"choices": choices, "usage": _usage(texts)}

    def piece(self, number: int, text: str) -> dict[str, Any]:
        return self._one(number, self._delta({"content": text}, text))

    def ending(self, number: int, text: Written) -> dict[str, Any]:
        return self._one(number, self._delta({}, ""), _reason(text))

    def opening(self, number: int) -> list[dict[str, Any]]:
        return []

    def _one(self, number: int, content: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return self.head(True) | {"choices": [self._choice(number, content, reason)]}

    def _choice(self, number: int, content: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": number, **content, "logprobs": None, "finish_reason": reason}

    def _content(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _delta(self, delta: dict[str, str], text: str) -> dict[str, Any]:
        raise NotImplementedError


class _Completion(_Form):
    prefix, object, piece_object = "cmpl", "text_completion", "text_completion"

    def _content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _delta(self, delta: dict[str, str], text: str) -> dict[str, Any]:
        return {"text": text}


class _Chat(_Form):
    prefix, object, piece_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def opening(self, number: int) -> list[dict[str, Any]]:
        return [self._one(number, self._delta({"role": "assistant", "content": ""}, ""))]

    def _content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def _delta(self, delta: dict[str, str], text: str) -> dict[str, Any]:
        return {"delta": delta}
