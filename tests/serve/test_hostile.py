"""Requests that a program made up: whatever comes, the answer is no 5xx, and the server goes on."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from adaptree.serve.limits import Limits
from adaptree.tasks.store import Store
from tests.bases import words_csv
from tests.serve.jobs.site import QUICK, send
from tests.serve.serving import Asker, World, served

PATHS = ["/v1/tasks", "/v1/tasks/words", "/v2/models/words", "/metrics", "/health", "/ready", "/docs", "/v2"]
TENSOR = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["lion", "saw"]}
BODIES: list[tuple[str, Any]] = [
    ("/v1/predict", {"items": [{"task": "words", "text": "lion"}, {"task": "number", "text": "saw"}], "top_k": 2}),
    ("/v1/predict", {"items": [{"task": "pairs", "text": "a", "text_pair": "b"}, {"task": "tags", "tokens": ["a"]}]}),
    ("/v1/tasks/words/predict", {"inputs": ["lion wolf", {"text": "saw"}], "min_score": 0.5, "timeout": 5}),
    ("/v1/tasks/tags/predict", {"inputs": ["lion wolf", {"tokens": ["saw"]}, ["a", "b"]]}),
    ("/v1/tasks/pairs/predict", {"inputs": [["lion wolf", "saw"], {"text": "a", "text_pair": ""}]}),
    ("/v1/tasks/choose/predict", {"inputs": [{"text": "a", "choices": ["b", "c"], "context": "d"}]}),
    ("/v1/tasks/tfidf/predict", {"inputs": ["lion", ""]}),
    ("/v2/models/words/infer", {"inputs": [TENSOR], "outputs": [{"name": "label"}]}),
]
TASKS = ["words", "number", "tags", "pairs", "choose", "tfidf", "stack(words)", "average_outputs(words, acme/reviews)"]
ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    " ",
    "\0",
    "a" * 3000,
    "\u202e",
    "😀",
    [],
    {},
    [[]],
    {"a": 1},
    "NaN",
]
TYPES = ["application/json"] * 12 + ["application/x-ndjson", "application/octet-stream", "text/plain", ""]


def mutated_value(value: Any, rng: random.Random) -> Any:
    """A value with one place changed to something else."""
    if rng.random() < 0.25:
        return rng.choice(ODD)
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        found = {**value, key: mutated_value(value[key], rng)}
        if rng.random() < 0.1:
            del found[key]
        return found
    if isinstance(value, list) and value:
        i = rng.randrange(len(value))
        return [*value[:i], mutated_value(value[i], rng), *value[i + 1 :]] * rng.choice([1, 1, 1, 3])
    if isinstance(value, str) and rng.random() < 0.3:
        return rng.choice(TASKS)
    return rng.choice(ODD)


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        cut = rng.choice([0, 0, 1, 5])
        data = (
            data[:at]
            + rng.choice([b"", b"[", b"{", b'"', b"\\u", b"\xff", b"\0", b"\n", b",", b"9" * 30])
            + data[at + cut :]
        )
    return data


def mutated_path(path: str, rng: random.Random) -> str:
    tricks = [
        "..",
        "%2e%2e",
        "%2f",
        "//",
        "%00",
        "@1",
        "@stable",
        "@",
        "%ff",
        "a" * 300,
        "(",
        "stack(words)",
        ";",
        "%0a",
    ]
    tricks += ["?limit=-1", "?top_k=x", "?search=%ff", "?name=../a", "{}", "~"]
    at = rng.randrange(1, len(path) + 1)
    return path[:at] + rng.choice(tricks) + path[at:]


def requests(count: int, seed: int) -> Any:
    rng = random.Random(seed)
    for _ in range(count):
        path, value = rng.choice(BODIES)
        method = "POST"
        if rng.random() < 0.2:
            path = rng.choice(PATHS)
            method = rng.choice(["POST", "GET", "GET", "PUT", "OPTIONS", "HEAD", "PATCH"])
        if rng.random() < 0.15:
            path = mutated_path(path, rng)
        elif rng.random() < 0.2:
            path = path.replace("words", rng.choice(["number", "tags", "pairs", "choose", "tfidf", "nothing"]))
        for _ in range(rng.choice([0, 1, 1, 2])):
            value = mutated_value(value, rng)
        body = json.dumps(value).encode() if rng.random() < 0.95 else None
        if body is not None and rng.random() < 0.2:
            body = mutated_bytes(body, rng)
        headers = {"Content-Type": rng.choice(TYPES)}
        if rng.random() < 0.1:
            name = rng.choice(["Accept", "X-Request-Id", "Authorization", "Inference-Header-Content-Length", "Host",
                               "Content-Encoding", "traceparent", "Expect", "Range"])  # fmt: skip
            headers[name] = rng.choice(["", "1", "-1", "application/x-ndjson", "x" * 3000, "\xff", "100-continue"])
        yield method, path, body, headers


def statuses(ask: Asker, count: int, seed: int) -> dict[int, int]:
    """How often each status came; a connection that is closed without one is one that the client broke."""
    found: dict[int, int] = {}
    connection = HTTPConnection(ask.host, ask.port, timeout=20)
    for method, path, body, headers in requests(count, seed):
        try:
            connection.request(method, path, body, headers)
            got = connection.getresponse()
            text = got.read()
        except (HTTPException, ConnectionError, BrokenPipeError):
            connection.close()
            found[0] = found.get(0, 0) + 1
            continue
        found[got.status] = found.get(got.status, 0) + 1
        assert got.status < 500, (method, path, body, headers, text)
        assert b"internal_error" not in text, (method, path, body, text)  # as the answer to one item
        if got.status >= 400 and method != "HEAD":
            assert json.loads(text)["error"].keys() == {"code", "message", "hint"}, (method, path, body, text)
        if got.headers.get("connection") == "close":
            connection.close()
    connection.close()
    return found


@pytest.mark.parametrize(
    ("count", "seed"), [(1000, 1), pytest.param(10_000, 2, marks=pytest.mark.slow)], ids=["1000", "10000"]
)
def test_no_mutated_request_causes_a_5xx(world: World, count: int, seed: int) -> None:
    with served(world, limits=Limits(receive=5, body=50_000)) as (ask, engine):
        found = statuses(ask, count, seed)
        assert found.get(200, 0) > count / 50, found
        assert found.get(422, 0) > count / 10, found
        assert found.get(0, 0) < count / 50, found
        assert ask.post("/v1/tasks/words/predict", {"inputs": ["lion"]}).status == 200
        assert engine.batcher.waiting == 0


HOOKS = """
import json
import schemathesis

@schemathesis.serializer("application/x-ndjson")
def lines(ctx, value):
    return json.dumps(value).encode() + b"\\n" if not isinstance(value, bytes) else value

@schemathesis.deserializer("application/x-ndjson")
def answers(ctx, response):
    return json.loads((response.content or b"{}").splitlines()[0])
"""
RELATIONS = """
[[operations]]
include-name = "POST /v1/tasks"
checks.positive_data_acceptance.enabled = false  # a schema cannot say what a bundle is

[[operations]]
include-name = "POST /v1/files"
checks.positive_data_acceptance.enabled = false  # nor what a file of labelled texts is

[[operations]]
include-name = "POST /v1/jobs"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-name = "POST /v2/models/{task}/infer"
checks.positive_data_acceptance.enabled = false  # nor that a tensor has as many items as its shape says
"""
REAL = """
[parameters]
"path.task" = "words"

[checks]
positive_data_acceptance.enabled = false  # whether an input is right depends on the task's kind
"""


FEW = Limits(items=16)
"""So few that a busy machine answers them within the shortest timeout: later comes a 504, which is right."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "without"), [(RELATIONS, ()), (REAL, ("--exclude-method", "DELETE"))], ids=["any task", "a real task"]
)
def test_schemathesis_finds_nothing(world: World, tmp_path: Path, config: str, without: tuple[str, ...]) -> None:
    schemathesis(world, tmp_path, config, HOOKS, *without)


@pytest.mark.slow
@pytest.mark.parametrize("tagged", [True, False])
def test_schemathesis_finds_nothing_where_a_task_is_removed(world: World, tmp_path: Path, tagged: bool) -> None:
    """One with a tag stays, with a 409; another goes at the first request, and is not found from then on."""
    store = Store(tmp_path / "store")
    store.add(world.store["words"])
    if tagged:
        store.tag("words@1", "stable")
    schemathesis(World(tmp_path, world.base, store), tmp_path, REAL, HOOKS, "--include-method", "DELETE")
    assert ("words" in store) == tagged


@pytest.mark.slow
def test_schemathesis_finds_nothing_in_the_events_of_a_job(world: World, tmp_path: Path) -> None:
    own = World(tmp_path, world.base, Store(tmp_path / "store"))
    own.store.add(world.store["words"])
    with served(own) as (ask, _):
        file = send(ask, words_csv(tmp_path / "words.csv").read_bytes()).json["id"]
        job = ask.post("/v1/jobs", {"file": file, "settings": {**QUICK, "name": "learned"}}).json["id"]
        assert ask.post(f"/v1/jobs/{job}/cancel", {}).json["state"] == "cancelled"
    config = f'[parameters]\n"path.id" = "{job}"\n'
    schemathesis(own, tmp_path, config, HOOKS, "--include-path", "/v1/jobs/{id}/events")


WRITE = """
import schemathesis

@schemathesis.hook
def before_call(ctx, case, kwargs):
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = "echo"
        if case.body.get("max_tokens") is None and case.body.get("max_completion_tokens") is None:
            case.body["max_tokens"] = 4
"""
ROOM = """
[checks]
positive_data_acceptance.enabled = false  # a schema cannot say how many tokens a base has room for
"""


@pytest.mark.slow
def test_schemathesis_finds_nothing_in_texts(writer: World, tmp_path: Path) -> None:
    schemathesis(writer, tmp_path, ROOM, WRITE, "--include-path-regex", "completions|models")


def schemathesis(world: World, folder: Path, config: str, hooks: str, *more: str) -> None:
    """Let it try to break a server's promises."""
    (folder / "schemathesis.toml").write_text(config)
    (folder / "hooks.py").write_text(hooks)
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", "--max-examples", "40", "--seed", "1"]
    with served(world, limits=FEW) as (ask, _):
        done = subprocess.run(
            [*command, "--no-color", *more, f"http://{ask.host}:{ask.port}/openapi.json"],
            capture_output=True, text=True, timeout=900, cwd=folder,
            env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-2000:]
        assert "No issues found" in done.stdout or "passed" in done.stdout
