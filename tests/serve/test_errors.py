"""Every error that the documentation names, with the input that causes it; a client's input never causes a 5xx."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from adaptree.models.loading import load_base
from adaptree.serve.limits import Limits
from adaptree.tasks.store import Store
from tests.bases import tiny_base
from tests.serve.serving import Asker, World, served, texts, trained

JSON = {"Content-Type": "application/json"}
PREDICT = "/v1/tasks/words/predict"


@pytest.fixture(scope="module")
def strict(world: World) -> Iterator[Asker]:
    """A server with small limits."""
    limits = Limits(body=2000, upload=5000, items=3, characters=50, headers=4000, receive=0.5, line=500)
    with served(world, limits=limits) as (found, _):
        yield found


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_json"),
        (b"{", "bad_json"),
        (b'{"inputs": ["\xff"]}', "bad_json"),
        (b'{"inputs": ["\\ud800"]}', "bad_json"),
        (b"[" * 100_000, "bad_json"),
        (b'{"inputs": [' + b"[" * 50 + b"]" * 50 + b"]}", "bad_input"),
        (b'{"inputs": ["a"], "top_k": NaN}', "bad_input"),
        (b"null", "bad_input"),
        (b"[]", "bad_input"),
        (b'{"inputs": "a"}', "bad_input"),
        (b'{"inputs": [1]}', "bad_input"),
        (b'{"inputs": [null]}', "bad_input"),
        (b'{"inputs": [{}]}', "bad_input"),
        (b'{"inputs": [{"txt": "a"}]}', "bad_input"),
        (b'{"inputs": [["a", "b"]]}', "bad_input"),
        (b'{"inputs": ["a"], "topk": 1}', "bad_input"),
        (b'{"inputs": ["a"], "top_k": 0}', "bad_input"),
        (b'{"inputs": ["a"], "top_k": true}', "bad_input"),
        (b'{"inputs": ["a"], "top_k": 1e400}', "bad_input"),
        (b'{"inputs": ["a"], "min_score": 2}', "bad_input"),
        (b'{"inputs": ["a"], "min_score": "0.5"}', "bad_input"),
        (b'{"inputs": ["a"], "timeout": -1}', "bad_input"),
    ],
)
def test_a_body_that_is_wrong_is_refused_with_the_place(ask: Asker, body: bytes, code: str) -> None:
    got = ask.post(PREDICT, body)
    assert (got.status, got.error["code"]) == (422, code), got.body
    assert len(got.body) < 1000


@pytest.mark.parametrize(
    ("task", "given"),
    [("pairs", "alone"), ("choose", "alone"), ("choose", {"text": "a", "choices": ["b"]}), ("words", {"tokens": ["a"]}),
     ("number", ["a", "b", "c"]), ("tags", {"question": "a"}), ("tfidf", ["a", "b"])],
)  # fmt: skip
def test_an_input_of_another_kind_is_refused(ask: Asker, task: str, given: Any) -> None:
    got = ask.post(f"/v1/tasks/{task}/predict", {"inputs": [given]})
    assert (got.status, got.error["code"]) == (422, "bad_input"), got.body
    assert got.error["message"]


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=a"]
)
def test_a_body_that_is_not_said_to_be_json_is_refused(ask: Asker, kind: str) -> None:
    got = ask.post(PREDICT, b'{"inputs": ["a"]}', headers={"Content-Type": kind})
    assert (got.status, got.error["code"]) == (415, "wrong_content_type")
    got = ask.post(PREDICT, b'{"inputs": ["a"]}', headers={**JSON, "Content-Encoding": "gzip"})
    assert got.status == 415


@pytest.mark.parametrize(
    "name",
    ["nothing", "wrds", "words@7", "words@stable", "words@-1", "words@1@1", "..", "../words", "..%2f..%2fetc%2fpasswd",
     "%2e%2e/words", "a/b/c", "WORDS", "words%00", "%ff", "words/", "/words", "%2Fetc%2Fpasswd",
     "acme%2f..%2fwords", "{words}", "~", "x" * 900, "x" * 5000, "\u00e4".encode().hex()],
)  # fmt: skip
def test_a_name_that_no_task_has_is_not_found(ask: Asker, name: str) -> None:
    for method, path, body in (
        ("POST", f"/v1/tasks/{name}/predict", {"inputs": ["a"]}),
        ("GET", f"/v1/tasks/{name}", None),
        ("DELETE", f"/v1/tasks/{name}", None),
        ("GET", f"/v2/models/{name}", None),
    ):
        got = ask(method, path, body)
        assert (got.status, got.error["code"]) == (404, "task_not_found"), (path, got.body)


def test_a_line_end_in_a_name_is_no_header(ask: Asker) -> None:
    got = ask.get("/v1/tasks/words%0d%0ax:y")
    assert got.status == 404
    assert "x" not in got.headers


def test_a_slash_may_be_spelled_as_percent_2f(ask: Asker) -> None:
    assert ask.get("/v1/tasks/acme%2Freviews").json["name"] == "acme/reviews"


def test_a_near_name_is_offered(ask: Asker) -> None:
    assert "'words'" in ask.post("/v1/tasks/wrds/predict", {"inputs": ["a"]}).error["hint"]
    assert "'words'" in ask.post("/v1/predict", {"items": [{"task": "wordz", "text": "a"}]}).error["hint"]


@pytest.mark.parametrize(
    "task",
    ["stack(", "stack(words", "(" * 900, "stack(" * 150 + "words" + ")" * 150, "parallel(words)", "nonsense(words)",
     "stack(words, nothing)", "()"],
)  # fmt: skip
def test_a_composition_that_has_no_meaning_is_refused(ask: Asker, task: str) -> None:
    got = ask.post("/v1/predict", {"items": [{"task": task, "text": "a"}]})
    assert got.status in (404, 422), got.body
    assert got.error["message"]


def test_routes_and_methods_that_there_are_not(ask: Asker) -> None:
    assert (ask.get("/nothing").status, ask.get("/nothing").error["code"]) == (404, "no_such_route")
    got = ask("PUT", "/v1/predict", {})
    assert (got.status, got.error["code"]) == (405, "method_not_allowed")
    assert got.headers["allow"] == "POST"
    assert ask("PATCH", "/v1/tasks/words").headers["allow"] == "DELETE, GET"
    assert ask("PUT", "/v1/tasks/words/predict").headers["allow"] == "POST"


@pytest.mark.parametrize("query", ["limit=0", "limit=a", "limit=1001", "limit=1e3", f"search={'x' * 201}"])
def test_a_wrong_query_is_refused(ask: Asker, query: str) -> None:
    got = ask.get(f"/v1/tasks?{query}")
    assert (got.status, got.error["code"]) == (422, "bad_input")


def test_a_task_of_another_base_is_a_conflict(world: World, tmp_path: Any) -> None:
    other = load_base(tiny_base(tmp_path / "other", seed=1, layers=2))
    store = Store(tmp_path / "store")
    some = texts(12)
    store.add(trained(other, [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(some)], "theirs"))
    here = World(tmp_path, world.base, store)
    with served(here) as (ask, _):
        got = ask.post("/v1/tasks/theirs/predict", {"inputs": ["lion"]})
        assert (got.status, got.error["code"]) == (409, "wrong_base"), got.body
        assert ask.get("/v1/tasks/theirs").json["served"] is False


# Limits


def test_too_much_at_once_is_refused(strict: Asker) -> None:
    for body in ({"inputs": ["a"] * 4}, {"inputs": ["a" * 51]}, {"inputs": [{"tokens": ["a" * 51]}]}):
        got = strict.post(PREDICT, body)
        assert (got.status, got.error["code"]) == (413, "too_large"), got.body
    assert strict.post(PREDICT, {"inputs": ["a" * 50] * 3}).status == 200
    assert strict.post("/v1/predict", {"items": [{"task": "words", "text": "a"}] * 4}).status == 413


def test_a_huge_body_is_refused_before_it_is_read(strict: Asker) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    began = time.perf_counter()
    got = strict.raw(head + b"Content-Length: 100000000000\r\n\r\n{")
    assert got.startswith(b"HTTP/1.1 413")
    assert b'"too_large"' in got
    chunk = b"1000\r\n" + b" " * 0x1000 + b"\r\n"
    got = strict.raw(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 4)
    assert got.startswith(b"HTTP/1.1 413")
    assert time.perf_counter() - began < 5


def test_headers_that_are_too_large_are_refused(strict: Asker) -> None:
    got = strict.raw(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000 + b"\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 431")
    assert b'"headers_too_large"' in got
    assert strict.raw(b"GET /" + b"x" * 5000).startswith(b"HTTP/1.1 431")
    body = json.dumps({"inputs": ["a"]}).encode() + b" " * 1900
    assert strict.post(PREDICT, body).status == 200


def test_a_slow_client_is_let_go(strict: Asker) -> None:
    for start in (
        b"",
        b"GET /health HT",
        b"POST /v1/predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{",
    ):
        began = time.perf_counter()
        got = strict.raw(start)
        assert got.startswith(b"HTTP/1.1 408"), got
        assert b'"too_slow"' in got
        assert time.perf_counter() - began < 3
    assert strict.get("/health").status == 200


def test_a_client_that_sends_a_byte_now_and_then_is_let_go(strict: Asker) -> None:
    with socket.create_connection((strict.host, strict.port), 5) as connection:
        began = time.perf_counter()
        try:
            for letter in "GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: yes":
                connection.sendall(letter.encode())
                time.sleep(0.1)
        except OSError:
            pass
        assert time.perf_counter() - began < 4


def test_what_is_not_http_gets_an_error_of_the_same_shape(ask: Asker) -> None:
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        got = ask.raw(data)
        assert got.startswith(b"HTTP/1.1 400"), got
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: abc\r\n",
        b"Transfer-Encoding: gzip, chunked\r\nTransfer-Encoding: nonsense\r\n",
        b"Expect: 200-nonsense\r\nContent-Length: 2\r\n",
        b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAA\r\nContent-Length: 2\r\n",
        b"Bad Header: x\r\n",
        b"X-Request-Id: " + b"\xff" * 20 + b"\r\n",
        b"X-Request-Id: a\tb<script>\r\nContent-Length: 2\r\n",
        b"Authorization: Bearer " + b"\xff\xfe" + b"\r\n",
        b": empty\r\n",
        b"Host: other\r\nContent-Length: 2\r\n",
    ],
)
def test_header_tricks_get_an_answer_and_no_5xx(world: World, headers: bytes) -> None:
    with served(world, limits=Limits(receive=0.5)) as (ask, _):
        start = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        got = ask.raw(start + headers + b"\r\n{}", end=False, timeout=3)
        statuses = [line.split()[1] for line in got.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
        assert statuses, got
        assert all(status[:1] in (b"4", b"2", b"1") for status in statuses), got
        assert ask.get("/health").status == 200


def test_another_name_of_the_machine_is_refused_without_keys(world: World) -> None:
    with served(world, hosts=("127.0.0.1", "localhost", "[::1]")) as (ask, _):
        assert ask.get("/health", headers={"Host": "evil.example"}).error["code"] == "wrong_host"
        assert ask.get("/health", headers={"Host": "evil.example:8080"}).status == 403
        for name in ("localhost", "localhost:1", "LOCALHOST:8080", "127.0.0.1:80", "[::1]:8080"):
            assert ask.get("/health", headers={"Host": name}).status == 200


def test_a_request_id_comes_back(ask: Asker) -> None:
    assert ask.get("/health", headers={"X-Request-Id": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    for odd in ("", "a b", "x" * 65, "a;b"):
        found = ask.get("/health", headers={"X-Request-Id": odd}).headers["x-request-id"]
        assert found != odd
        assert len(found) == 16
