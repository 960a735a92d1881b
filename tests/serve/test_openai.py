"""Texts over HTTP, in OpenAI's shape: with a plain client, and with OpenAI's own."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptree.serve.engine import Engine
from adaptree.serve.keys import Keys, new_key
from adaptree.serve.limits import Limits
from tests.serve.serving import Answer, Asker, World, served
from tests.serve.writing import METHODS, PROMPTS, alone

LONG = PROMPTS[1]
CHAT = [{"role": "system", "content": "be short"}, {"role": "user", "content": "say ag"}]


@pytest.fixture(scope="module")
def both(writer: World) -> Iterator[tuple[Asker, Engine]]:
    with served(writer, limits=Limits(items=64)) as found:
        yield found


@pytest.fixture(scope="module")
def ask(both: tuple[Asker, Engine]) -> Asker:
    return both[0]


def events(answer: Answer) -> list[Any]:
    """What a stream said, without its end."""
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_completion_is_what_the_task_writes(ask: Asker, writer: World) -> None:
    for task in METHODS:
        answer = ask.post("/v1/completions", {"model": task, "prompt": "say ag", "max_tokens": 7})
        assert answer.status == 200, answer.body
        found, wanted = answer.json, alone(writer, task, "say ag", max_new_tokens=7)
        reason = "stop" if wanted.finished else "length"
        assert found["choices"] == [{"index": 0, "text": wanted.text, "logprobs": None, "finish_reason": reason}]
        assert (found["object"], found["model"]) == ("text_completion", task)
        assert found["usage"]["completion_tokens"] == wanted.tokens
        assert found["usage"]["total_tokens"] == wanted.tokens + found["usage"]["prompt_tokens"]


def test_several_prompts_are_several_choices(ask: Asker, writer: World) -> None:
    found = ask.post("/v1/completions", {"model": "echo", "prompt": PROMPTS, "max_tokens": 5}).json
    wanted = [alone(writer, "echo", prompt, max_new_tokens=5).text for prompt in PROMPTS]
    assert [(each["index"], each["text"]) for each in found["choices"]] == list(enumerate(wanted))
    streamed = events(
        ask.post("/v1/completions", {"model": "echo", "prompt": PROMPTS, "max_tokens": 5, "stream": True})
    )
    for i, text in enumerate(wanted):
        mine = [each["choices"][0] for each in streamed if each["choices"][0]["index"] == i]
        assert "".join(each["text"] for each in mine) == text
        assert [each["finish_reason"] for each in mine][-1] in ("stop", "length")


def test_a_chat_goes_into_the_template_of_chats(ask: Asker, writer: World) -> None:
    wanted = alone(writer, "sing", CHAT, max_new_tokens=9)
    body = {"model": "sing@1", "messages": CHAT, "max_completion_tokens": 9, "n": 1, "temperature": 0, "top_p": 0.5}
    found = ask.post("/v1/chat/completions", body).json
    assert found["object"] == "chat.completion"
    assert found["choices"][0]["message"] == {"role": "assistant", "content": wanted.text}
    parts = [CHAT[0], {"role": "user", "content": [{"type": "text", "text": "say "}, {"type": "text", "text": "ag"}]}]
    assert ask.post("/v1/chat/completions", body | {"messages": parts}).json["choices"] == found["choices"]
    developer = [{**CHAT[0], "role": "developer"}, CHAT[1]]
    assert ask.post("/v1/chat/completions", body | {"messages": developer}).json["choices"] == found["choices"]


def test_a_stream_has_a_role_first_then_pieces_then_the_reason_and_the_usage(ask: Asker, writer: World) -> None:
    body = {"model": "sing", "messages": CHAT, "max_tokens": 20, "stream": True}
    found = events(ask.post("/v1/chat/completions", body | {"stream_options": {"include_usage": True}}))
    assert {each["object"] for each in found} == {"chat.completion.chunk"}
    assert len({each["id"] for each in found}) == 1
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    *pieces, last = found[1:-1]
    wanted = alone(writer, "sing", CHAT, max_new_tokens=20)
    assert "".join(each["choices"][0]["delta"]["content"] for each in pieces) == wanted.text
    assert len(pieces) > 3
    assert last["choices"][0]["delta"] == {}
    assert last["choices"][0]["finish_reason"] == ("stop" if wanted.finished else "length")
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == wanted.tokens
    assert all(each["usage"] is None for each in found[:-1])
    assert all("usage" not in each for each in events(ask.post("/v1/chat/completions", body)))


def test_drawn_texts_have_a_seed_and_differ_without_one(ask: Asker, writer: World) -> None:
    body = {"model": "echo", "prompt": LONG, "max_tokens": 12, "temperature": 2.0}

    def text(**more: Any) -> str:
        found: str = ask.post("/v1/completions", body | more).json["choices"][0]["text"]
        return found

    wanted = alone(writer, "echo", LONG, max_new_tokens=12, temperature=2.0, seed=5).text
    assert text(seed=5) == text(seed=5) == wanted
    assert len({text() for _ in range(4)}) > 1
    assert text(temperature=0, top_p=0.4) == alone(writer, "echo", LONG, max_new_tokens=12).text
    drawn = alone(writer, "echo", LONG, max_new_tokens=12, temperature=1.0, top_p=0.9, seed=3).text
    assert text(temperature=None, top_p=0.9, seed=3) == drawn


def test_a_text_ends_before_a_stop(ask: Asker, writer: World) -> None:
    whole = alone(writer, "echo", LONG, max_new_tokens=20).text
    for stop in (whole[4:6], ["never seen", whole[4:6]]):
        found = ask.post("/v1/completions", {"model": "echo", "prompt": LONG, "max_tokens": 20, "stop": stop}).json
        assert found["choices"][0]["text"] == whole[: whole.index(whole[4:6])]
        assert found["choices"][0]["finish_reason"] == "stop"


def test_models_are_the_tasks_that_write(ask: Asker) -> None:
    found = ask.get("/v1/models").json
    assert found["object"] == "list"
    assert {each["id"] for each in found["data"]} == set(METHODS)
    assert ask.get("/v1/models/acme/poem").json["owned_by"] == "acme"
    assert ask.get("/v1/models/words").json["error"]["code"] == "task_not_found"


@pytest.mark.parametrize(
    ("change", "status", "code", "said"),
    [
        ({"model": "ecko"}, 404, "task_not_found", "ecko"),
        ({"model": "words"}, 422, "bad_input", "writes no texts"),
        ({"n": 2}, 422, "bad_input", "n: "),
        ({"n": True}, 422, "bad_input", "n: "),
        ({"echo": 0}, 422, "bad_input", "echo"),
        ({"best_of": 3}, 422, "bad_input", "best_of"),
        ({"logprobs": 5}, 422, "bad_input", "logprobs"),
        ({"frequency_penalty": 1.0}, 422, "bad_input", "frequency_penalty"),
        ({"prompt": [1, 2, 3]}, 422, "bad_input", "prompt"),
        ({"prompt": ["a"] * 65}, 413, "too_large", "65"),
        ({"prompt": "a" * 100_001}, 413, "too_large", "characters"),
        ({"max_tokens": 0}, 422, "bad_input", "max_tokens"),
        ({"max_tokens": 100_000}, 422, "bad_input", "no room"),
        ({"max_tokens": 100_000, "stream": True}, 422, "bad_input", "no room"),
        ({"stop": ""}, 422, "bad_input", "stop"),
        ({"temperature": -1}, 422, "bad_input", "temperature"),
        ({"tools": []}, 422, "bad_input", "tools"),
    ],
)
def test_errors_are_ours_and_have_what_their_clients_look_for(
    ask: Asker, change: dict[str, Any], status: int, code: str, said: str
) -> None:
    answer = ask.post("/v1/completions", {"model": "echo", "prompt": "a", "max_tokens": 3} | change)
    assert answer.status == status, answer.body
    error = answer.json["error"]
    assert error["code"] == code
    assert said in error["message"]
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert error.keys() == {"code", "message", "hint", "type", "param"}


def test_a_chat_that_the_template_refuses_is_an_error(ask: Asker) -> None:
    for messages in ([], [{"role": "judge", "content": "a"}], [{"role": "user"}], "a"):
        assert ask.post("/v1/chat/completions", {"model": "echo", "messages": messages}).status == 422


def test_predictions_answer_tasks_that_write_too(ask: Asker, writer: World) -> None:
    found = ask.post("/v1/tasks/echo/predict", {"inputs": ["say ag", {"text": "a"}]}).json["predictions"]
    assert found == [alone(writer, "echo", each).to_dict() for each in ("say ag", "a")]
    items = [{"task": task, "text": "a g"} for task in ("sing", "words", "full", "lora")]
    mixed = ask.post("/v1/predict", {"items": items}).json["predictions"]
    assert [each.get("text") for each in mixed] == [
        None if each["task"] == "words" else alone(writer, each["task"], "a g").text for each in items
    ]
    assert "label" in mixed[1]


def test_a_client_that_goes_away_ends_its_text(both: tuple[Asker, Engine]) -> None:
    ask, engine = both
    body = json.dumps({"model": "echo", "prompt": "a", "max_tokens": 60, "stream": True, "stop": "never"}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {ask.host}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((ask.host, ask.port), 10) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert b"200" in connection.recv(100)
    end = time.monotonic() + 20
    while engine.stats()["writing"]:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_text_that_takes_too_long_is_a_504_or_an_error_in_its_stream(writer: World) -> None:
    with served(writer) as (ask, engine):
        step = engine.writing.step

        def slow() -> Any:
            time.sleep(0.1)
            return step()

        engine.writing.step = slow  # type: ignore[method-assign]
        body = {"model": "echo", "prompt": "a", "max_tokens": 60, "stop": "never to be seen", "timeout": 0.6}
        answer = ask.post("/v1/completions", body)
        assert answer.status == 504
        assert answer.json["error"]["type"] == "server_error"
        answer = ask.post("/v1/completions", body | {"stream": True})
        *_, last, nothing = answer.body.decode().split("\n\n")
        assert nothing == ""
        if answer.status == 200:  # it had begun
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"


def test_a_tenant_sees_and_asks_only_its_own(writer: World, tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    _, key = new_key(file, scopes=("predict",), tenant="acme")
    with served(writer, keys=Keys(file)) as (ask, _):
        assert ask.get("/v1/models").status == 401
        assert ask.get("/v1/models").json["error"]["type"] == "authentication_error"
        mine = Asker(f"http://{ask.host}:{ask.port}", key)
        assert [each["id"] for each in mine.get("/v1/models").json["data"]] == ["acme/poem"]
        for name in ("poem", "acme/poem"):
            assert mine.post("/v1/completions", {"model": name, "prompt": "a", "max_tokens": 2}).status == 200
        assert mine.post("/v1/completions", {"model": "echo", "prompt": "a"}).status == 404


def test_figures_tell_of_texts(ask: Asker) -> None:
    ask.post("/v1/completions", {"model": "echo", "prompt": "a", "max_tokens": 3})
    found = ask.get("/metrics").body.decode()
    figures = dict(line.rsplit(" ", 1) for line in found.splitlines() if line.startswith("adaptree_"))
    assert float(figures["adaptree_written_tokens_total"]) > 0
    assert float(figures["adaptree_prompt_tokens_total"]) > 0
    assert figures["adaptree_texts_under_way"] == "0.0"


# OpenAI's own client


@pytest.fixture(scope="module")
def theirs(ask: Asker) -> Any:
    openai = pytest.importorskip("openai", reason="OpenAI's client is not installed: pip install openai")
    return openai.OpenAI(base_url=f"http://{ask.host}:{ask.port}/v1", api_key="none", max_retries=0)


def test_openais_client_reads_texts_and_streams(theirs: Any, writer: World) -> None:
    wanted = alone(writer, "echo", "say ag", max_new_tokens=12)
    done = theirs.completions.create(model="echo", prompt="say ag", max_tokens=12)
    assert done.choices[0].text == wanted.text
    assert done.usage.completion_tokens == wanted.tokens
    pieces = theirs.completions.create(model="echo", prompt="say ag", max_tokens=12, stream=True)
    assert "".join(each.choices[0].text for each in pieces) == wanted.text
    said = alone(writer, "sing", CHAT, max_new_tokens=12).text
    chat = theirs.chat.completions.create(model="sing", messages=CHAT, max_completion_tokens=12, seed=1)
    assert chat.choices[0].message.content == said
    stream = theirs.chat.completions.create(
        model="sing", messages=CHAT, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    found = list(stream)
    assert "".join(each.choices[0].delta.content or "" for each in found if each.choices) == said
    assert found[-1].usage.total_tokens > 0
    assert {each.id for each in theirs.models.list()} == set(METHODS)
    assert theirs.models.retrieve("echo").id == "echo"


def test_openais_client_reads_errors(theirs: Any) -> None:
    import openai

    with pytest.raises(openai.NotFoundError, match="no task 'ecko'") as caught:
        theirs.completions.create(model="ecko", prompt="a")
    assert (caught.value.code, caught.value.type) == ("task_not_found", "not_found_error")
    with pytest.raises(openai.UnprocessableEntityError, match="n: Input should be 1"):
        theirs.completions.create(model="echo", prompt="a", n=2)
