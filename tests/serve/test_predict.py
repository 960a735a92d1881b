"""Predictions over HTTP are those of the command line, for every kind, alone and mixed, and as lines."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path
from typing import Any

import pytest

from adaptree.serve.keys import Keys, new_key
from adaptree.serve.limits import Limits
from tests.serve.serving import Asker, World, served, texts

TEXTS = texts(6, seed=9)
INPUTS: dict[str, list[Any]] = {
    "words": TEXTS,
    "number": TEXTS,
    "tags": TEXTS,
    "tfidf": TEXTS,
    "pairs": [[text, "lion wolf"] for text in TEXTS],
    "choose": [{"text": text, "choices": ["lion wolf", "saw drill"]} for text in TEXTS],
    "acme/reviews@1": TEXTS,
}


def expected(world: World, task: str, inputs: list[Any]) -> list[dict[str, Any]]:
    given = [tuple(each) if isinstance(each, list) else each for each in inputs]
    return [each.to_dict() for each in world.base.bind(world.store[task]).predict(given)]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        return a == b or math.isclose(a, b, abs_tol=1e-5)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("task", INPUTS)
def test_one_task_answers_as_the_command_line_does(ask: Asker, world: World, task: str) -> None:
    got = ask.post(f"/v1/tasks/{task}/predict", {"inputs": INPUTS[task]})
    assert got.status == 200, got.body
    assert got.json["task"] == task
    assert same(got.json["predictions"], json.loads(json.dumps(expected(world, task, INPUTS[task]))))


def test_a_request_mixes_tasks_and_keeps_their_order(ask: Asker, world: World) -> None:
    wanted = [(task, given) for i in range(6) for task, inputs in INPUTS.items() for given in inputs[i : i + 1]]
    items = [
        {"task": task, **({"text": given} if isinstance(given, str) else given)}
        if not isinstance(given, list)
        else {"task": task, "text": given[0], "text_pair": given[1]}
        for task, given in wanted
    ]
    got = ask.post("/v1/predict", {"items": items})
    assert got.status == 200, got.body
    for (task, given), answer in zip(wanted, got.json["predictions"], strict=True):
        assert same(answer, json.loads(json.dumps(expected(world, task, [given])[0]))), task


def test_what_is_wrong_with_an_item_is_the_answer_to_that_item(world: World, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    _, key = new_key(keys, quota=8)
    with served(world, limits=Limits(characters=50), keys=Keys(keys)) as (asked, _):
        ask = Asker(f"http://{asked.host}:{asked.port}", key)
        good = {"task": "words", "text": "lion"}
        pair = {"task": "pairs", "text": "a", "text_pair": "b"}
        items = [
            good,
            {"task": "wordz", "text": "lion"},
            pair,
            {"task": "pairs", "text": "one text alone"},
            {"task": "words", "text": "a" * 51},
            {"task": "stack(words, wordz)", "text": "a"},
            {"task": "words"},
            good,
            pair,
        ]
        got = ask.post("/v1/predict", {"items": items})
        assert got.status == 200, got.body
        answers = got.json["predictions"]
        codes = [each["error"]["code"] if "error" in each else "" for each in answers]
        assert codes == ["", "task_not_found", "", "bad_input", "too_large", "task_not_found", "bad_input", "", ""]
        assert "'words'" in answers[1]["error"]["hint"]
        assert all(each["error"].keys() == {"code", "message", "hint"} for each in answers if "error" in each)
        assert answers[0] == answers[7]
        assert same(answers[0], json.loads(json.dumps(expected(world, "words", ["lion"])[0])))
        assert same(answers[2], json.loads(json.dumps(expected(world, "pairs", [["a", "b"]])[0])))
        got = ask.post("/v1/predict", {"items": items})
        assert (got.status, got.error["code"]) == (429, "quota_exceeded"), "five were for tasks that there are"
        lines = ask.post("/v1/predict", {"items": items[:3]}, headers={"Accept": "application/x-ndjson"})
        assert [*json.loads(lines.body.splitlines()[1])] == ["error"]


def test_a_request_without_any_answer_has_the_first_items_error(ask: Asker) -> None:
    items = [{"task": "wordz", "text": "lion"}, {"task": "pairs", "text": "alone"}]
    got = ask.post("/v1/predict", {"items": items})
    assert (got.status, got.error["code"]) == (404, "task_not_found")
    got = ask.post("/v1/predict", {"items": items[::-1]})
    assert (got.status, got.error["code"]) == (422, "bad_input")


def test_only_the_best_scores_are_sent_when_so_many_are_asked_for(ask: Asker) -> None:
    one = ask.post("/v1/tasks/words/predict", {"inputs": TEXTS, "top_k": 1}).json["predictions"]
    for answer in one:
        assert list(answer["scores"]) == [answer["label"]]


def test_a_task_abstains_below_the_smallest_score(ask: Asker) -> None:
    got = ask.post("/v1/tasks/words/predict", {"inputs": TEXTS, "min_score": 1.0}).json["predictions"]
    assert {answer["label"] for answer in got} == {None}


def test_no_input_gets_no_answer(ask: Asker) -> None:
    assert ask.post("/v1/tasks/words/predict", {"inputs": []}).json["predictions"] == []
    assert ask.post("/v1/predict", {"items": []}).json == {"predictions": []}
    assert ask.post("/v1/tasks/nothing/predict", {"inputs": []}).status == 404


def test_an_empty_text_has_an_answer_without_a_label(ask: Asker) -> None:
    got = ask.post("/v1/tasks/words/predict", {"inputs": ["", "lion"]})
    assert got.status == 200
    assert b"NaN" not in got.body


def test_a_composition_of_tasks_can_be_asked(ask: Asker) -> None:
    got = ask.post("/v1/predict", {"items": [{"task": "average_outputs(words, acme/reviews)", "text": "lion"}]})
    assert got.status == 200, got.body
    assert "label" in got.json["predictions"][0]


# Lines

NDJSON = {"Content-Type": "application/x-ndjson"}


def test_each_line_gets_a_line_in_order(ask: Asker, world: World) -> None:
    lines = [{"task": ["words", "acme/reviews"][i % 2], "text": text} for i, text in enumerate(texts(500, seed=3))]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    got = ask.post("/v1/predict?top_k=1", body, headers=NDJSON)
    assert got.status == 200
    assert got.headers["content-type"].startswith("application/x-ndjson")
    answers = [json.loads(line) for line in got.body.splitlines()]
    assert len(answers) == 500
    for task in ("words", "acme/reviews"):
        mine = [i for i, line in enumerate(lines) if line["task"] == task]
        right = expected(world, task, [lines[i]["text"] for i in mine])
        assert [answers[i]["label"] for i in mine] == [each["label"] for each in right]


def test_lines_of_one_task_are_texts_or_objects(ask: Asker) -> None:
    got = ask.post("/v1/tasks/words/predict", b'"lion wolf"\n{"text": "saw"}\n\n["no", "pair"]\nnull\n', headers=NDJSON)
    answers = [json.loads(line) for line in got.body.splitlines()]
    assert ["label" in answer for answer in answers] == [True, True, False, False]
    assert [answer["error"]["code"] for answer in answers[2:]] == ["bad_input", "bad_input"]


def test_a_wrong_line_gets_its_error_and_the_others_go_on(ask: Asker) -> None:
    body = (
        b'{"task": "words", "text": "lion"}\n{"task": "wrds", "text": "lion"}\n{"task": \n{"task": "words", "text": ""}'
    )
    answers = [json.loads(line) for line in ask.post("/v1/predict", body, headers=NDJSON).body.splitlines()]
    assert ["label" in answer for answer in answers] == [True, False, False, True]
    assert answers[1]["error"]["code"] == "task_not_found"
    assert "words" in answers[1]["error"]["hint"]
    assert answers[2]["error"]["code"] == "bad_json"


def test_a_line_is_answered_before_the_next_is_sent(ask: Asker) -> None:
    with socket.create_connection((ask.host, ask.port), 10) as connection:
        head = "POST /v1/tasks/words/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        got = b""
        for i in range(3):
            line = b'"lion"\n'
            connection.sendall(f"{len(line):x}\r\n".encode() + line + b"\r\n")
            while got.count(b'"label"') <= i:
                piece = connection.recv(65536)
                assert piece
                got += piece
        connection.sendall(b"0\r\n\r\n")
        while not got.endswith(b"0\r\n\r\n"):
            got += connection.recv(65536)


def test_more_lines_than_the_queue_holds_are_all_answered(world: World) -> None:
    with served(world, engine={"max_queue": 8}) as (ask, _):
        body = b'"lion wolf"\n' * 300
        answers = [
            json.loads(line) for line in ask.post("/v1/tasks/words/predict", body, headers=NDJSON).body.splitlines()
        ]
        assert len(answers) == 300
        assert all("label" in answer for answer in answers)


def test_answers_come_as_lines_to_who_accepts_lines(ask: Asker) -> None:
    got = ask.post("/v1/tasks/words/predict", {"inputs": TEXTS}, headers={"Accept": "application/x-ndjson"})
    assert [("label" in json.loads(line)) for line in got.body.splitlines()] == [True] * len(TEXTS)


def test_a_line_that_is_too_long_ends_the_answer(ask: Asker) -> None:
    answers = ask.post("/v1/tasks/words/predict", b'"lion"\n"' + b"x" * 2_000_000 + b'"\n', headers=NDJSON).body
    assert [json.loads(line).get("error", {}).get("code") for line in answers.splitlines()] == [None, "too_large"]
