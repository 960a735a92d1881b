"""The Python client and tasks that write: whole texts, and piece by piece; sync and async."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import adaptree as at
from adaptree.client import ServerError
from tests.serve.serving import World, served
from tests.serve.test_client import busy, refusal, url
from tests.serve.writing import PROMPTS, alone

CHAT = [{"role": "user", "content": "say ag"}]
HEAD = b'data: {"choices": [{"index": 0, "text": "la"}]}\n\n'
END = b"data: [DONE]\n\n"


@pytest.fixture(scope="module")
def address(writer: World) -> Iterator[str]:
    with served(writer) as (ask, _):
        yield url(ask)


def test_a_client_gets_texts(address: str, writer: World) -> None:
    wanted = alone(writer, "echo", PROMPTS[1], max_new_tokens=12)
    with at.Client(address) as client:
        found = client.complete("echo", PROMPTS[1], max_tokens=12)
        assert (found.text, found.completion_tokens) == (wanted.text, wanted.tokens) == (str(found), wanted.tokens)
        assert found.finish_reason == ("stop" if wanted.finished else "length")
        pieces = list(client.complete("echo", PROMPTS[1], max_tokens=12, stream=True))
        assert "".join(pieces) == wanted.text
        assert len(pieces) > 2
        said = alone(writer, "sing", CHAT, max_new_tokens=12).text
        assert client.chat("sing", CHAT, max_tokens=12).text == said
        assert "".join(client.chat("sing", CHAT, max_tokens=12, stream=True)) == said


def test_an_async_client_gets_texts_of_many_tasks_at_once(address: str, writer: World) -> None:
    names = ["echo", "sing", "lora", "full"]

    async def streamed(client: Any, name: str) -> str:
        return "".join([piece async for piece in await client.chat(name, CHAT, max_tokens=9, stream=True)])

    async def run() -> tuple[list[Any], list[str]]:
        async with at.AsyncClient(address) as client:
            whole = await asyncio.gather(*(client.chat(name, CHAT, max_tokens=9) for name in names))
            one = await client.complete("echo", "say ag", max_tokens=9)
            assert one.text == alone(writer, "echo", "say ag", max_new_tokens=9).text
            return whole, await asyncio.gather(*(streamed(client, name) for name in names))

    whole, pieces = asyncio.run(run())
    assert [each.text for each in whole] == pieces
    assert pieces == [alone(writer, name, CHAT, max_new_tokens=9).text for name in names]


def test_an_error_has_the_servers_words(address: str) -> None:
    with at.Client(address) as client:
        with pytest.raises(ServerError, match="no task 'ecko'") as caught:
            client.complete("ecko", "a")
        assert (caught.value.status, caught.value.code) == (404, "task_not_found")
        with pytest.raises(ServerError, match="no task 'ecko'"):
            list(client.complete("ecko", "a", stream=True))
        with pytest.raises(ServerError, match="writes no texts"):
            client.complete("words", "a")


def test_a_stream_is_asked_for_again_until_it_begins_and_never_after() -> None:
    with busy([refusal(429, "0.01"), (200, {}, HEAD + END)]) as (address, asked), at.Client(address) as client:
        assert list(client.complete("a", "b", stream=True)) == ["la"]
        assert len(asked) == 2
    broken = b'data: {"error": {"code": "deadline_exceeded", "message": "too late."}}\n\n'
    for rest, said in ((broken, "too late"), (b"", "ended before")):
        with busy([(200, {}, HEAD + rest)]) as (address, asked), at.Client(address) as client:
            pieces = client.complete("a", "b", stream=True)
            assert next(pieces) == "la"
            with pytest.raises(ServerError, match=said):
                next(pieces)
            assert len(asked) == 1

    async def run(address: str) -> list[str]:
        async with at.AsyncClient(address) as client:
            return [piece async for piece in await client.complete("a", "b", stream=True)]

    with busy([refusal(503, "0.01"), (200, {}, HEAD + END)]) as (address, _):
        assert asyncio.run(run(address)) == ["la"]
    with busy([(200, {}, HEAD)]) as (address, _), pytest.raises(ServerError, match="ended before"):
        asyncio.run(run(address))
