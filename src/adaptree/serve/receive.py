"""Read what a client sends, within limits: a body of JSON, lines of NDJSON, or a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, BinaryIO, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from adaptree.serve.limits import Limits
from adaptree.serve.problems import Problem, too_large
from adaptree.serve.schemas import Input

JSON, NDJSON = "application/json", "application/x-ndjson"
Model = TypeVar("Model", bound=BaseModel)


def content_type(request: Request, *allowed: str) -> str:
    """Return what a body is said to be; raise a Problem unless that is one of `allowed`."""
    said = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if said not in allowed:
        what = f"the body is said to be '{said:.60}'." if said else "the body has no Content-Type."
        raise Problem(415, "wrong_content_type", what, hint=f"Content-Type: {' or '.join(allowed)}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "wrong_content_type", "the body is compressed.", hint="Send it as it is.")
    return said


async def pieces(request: Request, limits: Limits, most: int | None) -> AsyncIterator[bytes]:
    """Yield a body as it comes; raise a Problem if it has more than `most` bytes, or stops coming."""
    if most is not None and int(request.headers.get("content-length", 0)) > most:
        raise too_large(f"the body has more than {most:,} bytes.", "Send less at a time.")
    size, stream = 0, request.stream().__aiter__()
    while True:
        try:
            piece = await asyncio.wait_for(anext(stream, b""), limits.receive)
        except TimeoutError:
            raise Problem(408, "too_slow", "the body did not come in time.", hint="Send it at once.") from None
        if not piece:
            return
        size += len(piece)
        if most is not None and size > most:
            raise too_large(f"the body has more than {most:,} bytes.", "Send less at a time.")
        yield piece


async def body(request: Request, limits: Limits) -> bytes:
    """Return a body as a whole."""
    return b"".join([piece async for piece in pieces(request, limits, limits.body)])


async def save(request: Request, limits: Limits, file: BinaryIO) -> int:
    """Write a body to a file, piece by piece; return how many bytes it has."""
    size = 0
    async for piece in pieces(request, limits, limits.upload):
        size += len(piece)
        await asyncio.to_thread(file.write, piece)
    await asyncio.to_thread(file.flush)
    return size


async def lines(request: Request, limits: Limits) -> AsyncIterator[bytes]:
    """Yield the lines of a body that are not blank; there may be any number, as only one is in memory."""
    begun = b""
    async for piece in pieces(request, limits, None):
        first, *others = piece.split(b"\n")
        begun += first
        for each in others:
            if begun.strip():
                yield _short(begun, limits)
            begun = each
        _short(begun, limits)
    if begun.strip():
        yield begun


def _short(line: bytes, limits: Limits) -> bytes:
    if len(line) > limits.line:
        raise too_large(f"a line has more than {limits.line:,} bytes.", "Send shorter texts.")
    return line


def parse_as(model: type[Model], data: bytes) -> Model:
    """Return JSON as a model; raise a Problem that says what is wrong, and where."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False, include_input=False, include_context=False)) from None


def invalid(found: list[Any]) -> Problem:
    """Return the error for JSON that is broken, or is not what is expected."""
    first = found[0]
    if first["type"] == "json_invalid":
        return Problem(422, "bad_json", f"the body is no JSON: {first['msg'].partition(': ')[2] or first['msg']}.")
    where = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    what = first["msg"].removeprefix("Value error, ").rstrip(".")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Problem(
        422, "bad_input", f"{where[:200] or 'the body'}: {what[:300]}{more}.", hint="GET /docs shows examples."
    )


def check_input(given: Any, limits: Limits, where: str) -> tuple[Any, int]:
    """Return an input as an engine takes it, and its characters; raise a Problem if a text is too long."""
    if isinstance(given, Input):
        found = given.model_dump(exclude_unset=True, exclude={"task"})
        if not found:
            raise Problem(422, "bad_input", f"{where}: there is no text.", hint='Give {"text": "…"}.')
    else:
        found = given
    size = 0
    for text in _texts(found):
        size += len(text)
        if len(text) > limits.characters:
            most = f"{limits.characters:,}"
            raise too_large(f"{where}: a text has {len(text):,} characters, and {most} are the most.", "Cut it.")
    if isinstance(found, dict) and found.keys() == {"text"}:
        return found["text"], size
    if isinstance(found, dict) and found.keys() == {"text", "text_pair"}:
        return (found["text"], found["text_pair"]), size
    return found, size


def _texts(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    else:
        for each in given.values() if isinstance(given, dict) else given:
            yield from _texts(each)


def check_count(count: int, limits: Limits) -> None:
    if count > limits.items:
        raise too_large(f"there are {count:,} inputs, and {limits.items:,} are the most.", "Send them in parts.")
