"""The Python client: sync and async, patient with a busy server, and with the server's own words in its errors."""

from __future__ import annotations

import asyncio
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import adaptree as at
from adaptree.client import ServerError
from adaptree.hub.sharing import export
from adaptree.serve.keys import Keys, new_key
from tests.serve.serving import Asker, World, served


def url(ask: Asker) -> str:
    return f"http://{ask.host}:{ask.port}"


def test_a_client_predicts(ask: Asker) -> None:
    with at.Client(url(ask)) as client:
        right = ask.post("/v1/tasks/words/predict", {"inputs": ["lion wolf"]}).json["predictions"]
        assert client.predict("words", ["lion wolf"])[0]["label"] == right[0]["label"]
        assert list(client.predict("words", ["lion"], top_k=1, min_score=0.0, timeout=10)[0]) == [
            "label",
            "score",
            "scores",
        ]
        assert "label" in client.predict("pairs", [("a", "b")])[0]
        assert "choice" in client.predict("choose", [{"text": "a", "choices": ["b", "c"]}])[0]
        mixed = client.predict_mixed([("words", "lion"), ("number", "saw"), ("pairs", ("a", "b"))], top_k=1)
        assert [next(iter(answer)) for answer in mixed] == ["label", "value", "label"]
        assert client.task("acme/reviews@1")["name"] == "acme/reviews"
        assert [task["name"] for task in client.tasks()] == [
            task["name"] for task in ask.get("/v1/tasks").json["tasks"]
        ]
        assert "acme/reviews" in [task["name"] for task in client.tasks(search="reviews")]


def test_an_items_error_is_raised_or_returned_in_its_place(ask: Asker) -> None:
    items = [("words", "lion"), ("wordz", "lion"), ("words", "wolf")]

    async def mixed(url: str) -> list[Any]:
        async with at.AsyncClient(url) as client:
            with pytest.raises(ServerError, match="no task 'wordz'"):
                await client.predict_mixed(items)
            return await client.predict_mixed(items, return_errors=True)

    url = f"http://{ask.host}:{ask.port}"
    with at.Client(url) as client:
        with pytest.raises(ServerError, match="no task 'wordz'") as said:
            client.predict_mixed(items)
        assert (said.value.code, said.value.hint) == ("task_not_found", "Did you mean 'words'?")
        found = client.predict_mixed(items, return_errors=True)
        assert [isinstance(each, ServerError) for each in found] == [False, True, False]
        assert found[0]["label"]
    also = asyncio.run(mixed(url))
    assert also[::2] == found[::2]
    assert isinstance(also[1], ServerError)


def test_an_async_client_predicts_many_at_once(ask: Asker) -> None:
    async def run() -> list[Any]:
        async with at.AsyncClient(url(ask)) as client:
            assert "value" in (await client.predict_mixed([("number", "saw")]))[0]
            assert (await client.task("words"))["kind"] == "classify"
            return await asyncio.gather(*(client.predict("words", ["lion", "saw"]) for _ in range(40)))

    answers = asyncio.run(run())
    assert all([answer["label"] for answer in each] == [answer["label"] for answer in answers[0]] for each in answers)


def test_an_error_has_the_servers_message_and_hint(ask: Asker) -> None:
    with (
        at.Client(url(ask)) as client,
        pytest.raises(at.AdaptreeError, match=r"no task 'wrds'.*Did you mean 'words'") as got,
    ):
        client.predict("wrds", ["lion"])
    assert isinstance(got.value, ServerError)
    assert (got.value.status, got.value.code) == (404, "task_not_found")


def test_a_server_that_does_not_answer_is_named() -> None:
    with (
        at.Client("http://127.0.0.1:9") as client,
        pytest.raises(at.AdaptreeError, match=r"127\.0\.0\.1:9 does not answer"),
    ):
        client.predict("words", ["lion"])


def test_a_key_is_sent_and_tasks_come_and_go(world: World, tmp_path: Path) -> None:
    _, key = new_key(tmp_path / "keys.json", tenant="acme", scopes=["admin"])
    export(world.store, ["other/secret"], tmp_path / "secret.adaptree")
    with served(world, keys=Keys(tmp_path / "keys.json")) as (ask, _):
        with at.Client(url(ask)) as client, pytest.raises(at.AdaptreeError, match="key"):
            client.tasks()
        with at.Client(url(ask), key=key) as client:
            assert client.upload(tmp_path / "secret.adaptree", name="mine")[0]["task"] == "acme/mine@1"
            assert "label" in client.predict("mine", ["lion"])[0]
            assert client.remove("mine") == 1


@contextmanager
def busy(answers: list[tuple[int, dict[str, str], bytes]]) -> Iterator[tuple[str, list[str]]]:
    """A real server that gives prepared answers, one after the other."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, body = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


GOOD = (200, {}, json.dumps({"predictions": [{"label": "a"}]}).encode())


def refusal(status: int, after: str) -> tuple[int, dict[str, str], bytes]:
    said = {"error": {"code": "queue_full", "message": "the queue is full.", "hint": "Try again."}}
    return status, {"Retry-After": after}, json.dumps(said).encode()


def test_a_busy_server_is_asked_again_when_it_says_so() -> None:
    with busy([refusal(429, "0.05"), refusal(503, "0.05"), GOOD]) as (address, asked):
        with at.Client(address) as client:
            assert client.predict("words", ["a"]) == [{"label": "a"}]
        assert len(asked) == 3

        async def run() -> Any:
            async with at.AsyncClient(address) as client:
                return await client.predict("words", ["a"])

        assert asyncio.run(run()) == [{"label": "a"}]


def test_a_server_that_stays_busy_is_given_up() -> None:
    with busy([refusal(429, "0.01")]) as (address, asked):
        with at.Client(address, retries=2) as client, pytest.raises(ServerError, match="the queue is full"):
            client.predict("words", ["a"])
        assert len(asked) == 3
    with busy([refusal(429, "40000")]) as (address, asked):
        with at.Client(address) as client, pytest.raises(ServerError):
            client.predict("words", ["a"])
        assert len(asked) == 1


def test_an_answer_of_another_server_is_no_prediction() -> None:
    for answer in ((200, {}, b"<html>"), (502, {}, b"bad gateway"), (404, {}, b'{"error": "x"}'), (500, {}, b"[]")):
        wrong = pytest.raises(ServerError, match="not as adaptree does")
        with busy([answer]) as (address, _), at.Client(address) as client, wrong:
            client.predict("words", ["a"])


def test_the_client_does_not_import_torch() -> None:
    code = "import sys, adaptree as at; at.Client('http://127.0.0.1:1'); print({'torch', 'fastapi'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
