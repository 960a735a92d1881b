"""API keys: hashed at rest, compared in constant time, never logged; and tenants that know nothing of each other."""

from __future__ import annotations

import hmac
import io
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptree.errors import StoreError, UsageError
from adaptree.hub.sharing import export
from adaptree.serve import keys as api_keys
from adaptree.serve.keys import Keys, new_key, read_keys, remove_key
from adaptree.serve.observe import RequestLog
from adaptree.serve.problems import Problem
from tests.serve.serving import Asker, World, renamed, served


class Keyed:
    """A server with keys: one asker for each."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.file, self.log = world, folder / "keys.json", io.StringIO()
        self.texts = {
            name: new_key(self.file, tenant=tenant, scopes=scopes)[1]
            for name, tenant, scopes in (
                ("admin", "", ("admin",)),
                ("reader", "", ("predict",)),
                ("acme", "acme", ("predict",)),
                ("acme-trainer", "acme", ("predict", "train")),
                ("acme-admin", "acme", ("admin",)),
                ("other", "other", ("predict",)),
            )
        }


@pytest.fixture(scope="module")
def keyed(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    found = Keyed(world, tmp_path_factory.mktemp("keys"))
    with served(world, keys=Keys(found.file), log=RequestLog("json", found.log)) as (ask, engine):
        url = f"http://{ask.host}:{ask.port}"
        yield {name: Asker(url, text) for name, text in found.texts.items()} | {
            "nobody": ask, "engine": engine, "all": found
        }  # fmt: skip


# At rest


def test_a_key_is_shown_once_and_its_file_has_only_a_hash(tmp_path: Path) -> None:
    file = tmp_path / "more" / "keys.json"
    key, text = new_key(file, tenant="acme", scopes=["train", "predict"], rate=5, quota=10, note="Ann")
    secret = text.rpartition("_")[2] if text.count("_") == 2 else text.split("_", 2)[2]
    assert secret not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [key] == read_keys(file)
    assert key.scopes == ("predict", "train")
    second, other = new_key(file)
    assert other != text
    assert [each.id for each in read_keys(file)] == [key.id, second.id]
    remove_key(file, key.id)
    assert [each.id for each in read_keys(file)] == [second.id]
    with pytest.raises(UsageError, match="no key"):
        remove_key(file, key.id)


@pytest.mark.parametrize(
    "options",
    [{"tenant": "a/b"}, {"tenant": "A"}, {"scopes": ["all"]}, {"scopes": []}, {"rate": -1}, {"rate": float("nan")},
     {"quota": -1}],
)  # fmt: skip
def test_a_key_that_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        new_key(tmp_path / "keys.json", **options)
    assert not (tmp_path / "keys.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2, "keys": []}', '{"format": 1, "keys": [{}]}', "\0",
                                  '{"format": 1, "keys": [{"id": 1}]}'])  # fmt: skip
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "keys.json").write_text(text)
    with pytest.raises(StoreError, match="cannot be read"):
        Keys(tmp_path / "keys.json")


# Who may ask


def test_without_a_key_nothing_but_health_is_shown(keyed: dict[str, Any]) -> None:
    ask: Asker = keyed["nobody"]
    routes = ["GET /v1/tasks", "GET /v1/tasks/words", "DELETE /v1/tasks/words", "POST /v1/predict", "POST /v1/tasks"]
    routes += ["GET /metrics", "GET /v2/models/words", "POST /v2/models/words/infer", "POST /v1/tasks/words/predict"]
    for method, path in (route.split() for route in routes):
        got = ask(method, path, {} if method == "POST" else None)
        assert (got.status, got.error["code"]) == (401, "no_key"), path
        assert got.headers["www-authenticate"].startswith("Bearer")
    for path in ("/health", "/ready", "/v2", "/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"):
        assert ask.get(path).status == 200, path


def test_a_wrong_key_is_refused_in_one_way(keyed: dict[str, Any]) -> None:
    right = keyed["all"].texts["reader"]
    ask: Asker = keyed["nobody"]
    end = "A" if right[-2] != "A" else "B"
    wrong = [f"Bearer {right[:-2]}{end}{right[-1]}", f"Bearer at_{'0' * 12}_{right.split('_', 2)[2]}", f"Basic {right}",
             "Bearer", "Bearer ", right, f"Bearer {right}x", "Bearer at__", "Bearer " + "x" * 5000]  # fmt: skip
    bodies = {ask.get("/v1/tasks", headers={"Authorization": each}).body for each in wrong}
    assert len(bodies) == 1
    assert json.loads(bodies.pop())["error"]["code"] == "wrong_key"
    assert ask.get("/v1/tasks", headers={"Authorization": f"bearer {right}"}).status == 200


def test_a_key_does_what_its_scopes_say(keyed: dict[str, Any]) -> None:
    assert keyed["reader"].post("/v1/tasks/words/predict", {"inputs": ["lion"]}).status == 200
    for ask in (keyed["reader"], keyed["acme"]):
        for method, path in (("DELETE", "/v1/tasks/reviews"), ("POST", "/v1/tasks"), ("GET", "/metrics")):
            got = ask(method, path, b"x" if method == "POST" else None)
            assert (got.status, got.error["code"]) == (403, "not_allowed")
    assert keyed["admin"].get("/metrics").status == 200
    assert keyed["acme-admin"].get("/metrics").status == 403


def test_secrets_are_compared_in_constant_time_also_for_a_key_that_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    _, text = new_key(file)
    keys, compared, real = Keys(file), [], hmac.compare_digest

    def compare(a: str, b: str) -> bool:
        compared.append((len(a), len(b)))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert keys.caller(f"Bearer {text}").key is not None
    for header in (f"Bearer at_{'0' * 12}_{'x' * 43}", "Bearer nonsense"):
        with pytest.raises(Problem):
            keys.caller(header)
    assert compared == [(64, 64)] * 3


def test_a_removed_key_is_refused_and_a_new_one_works_without_a_restart(tmp_path: Path, world: World) -> None:
    file = tmp_path / "keys.json"
    key, text = new_key(file)
    with served(world, keys=Keys(file)) as (ask, _):
        asker = Asker(f"http://{ask.host}:{ask.port}", text)
        assert asker.get("/v1/tasks").status == 200
        _, later = new_key(file)
        remove_key(file, key.id)
        time.sleep(api_keys.FRESH + 0.1)
        assert asker.get("/v1/tasks").status == 401
        assert Asker(f"http://{ask.host}:{ask.port}", later).get("/v1/tasks").status == 200
        os.unlink(file)
        time.sleep(api_keys.FRESH + 0.1)
        assert Asker(f"http://{ask.host}:{ask.port}", later).get("/v1/tasks").status == 401


def test_a_key_has_so_many_requests_a_second_and_texts_a_day(tmp_path: Path, world: World) -> None:
    file = tmp_path / "keys.json"
    _, fast = new_key(file, rate=3)
    _, few = new_key(file, quota=5)
    with served(world, keys=Keys(file)) as (ask, _):
        url = f"http://{ask.host}:{ask.port}"
        got = [Asker(url, fast).get("/v1/tasks") for _ in range(8)]
        refused = [each for each in got if each.status == 429]
        assert 3 <= len(got) - len(refused) < 8
        assert refused[0].error["code"] == "rate_limited"
        assert int(refused[0].headers["retry-after"]) >= 1
        time.sleep(1)
        assert Asker(url, fast).get("/v1/tasks").status == 200
        asker = Asker(url, few)
        assert asker.post("/v1/tasks/words/predict", {"inputs": ["a"] * 4}).status == 200
        got_quota = asker.post("/v1/tasks/words/predict", {"inputs": ["a"] * 2})
        assert (got_quota.status, got_quota.error["code"]) == (429, "quota_exceeded")
        assert asker.post("/v1/tasks/words/predict", {"inputs": ["a"]}).status == 200


# Tenants


def test_a_tenant_lists_only_its_own_tasks(keyed: dict[str, Any]) -> None:
    names = [task["name"] for task in keyed["acme"].get("/v1/tasks").json["tasks"]]
    assert names == ["acme/reviews", "acme/tickets"]
    found = keyed["acme"].get("/v1/tasks?search=reviews").json["tasks"]
    assert [task["name"] for task in found] == ["acme/reviews"]
    assert keyed["acme"].get("/v1/tasks?search=secret").json["tasks"] == []
    assert len(keyed["admin"].get("/v1/tasks").json["tasks"]) > 5


def test_a_tenant_may_leave_out_its_name(keyed: dict[str, Any]) -> None:
    short = keyed["acme"].post("/v1/tasks/reviews/predict", {"inputs": ["lion wolf"]})
    whole = keyed["acme"].post("/v1/tasks/acme/reviews/predict", {"inputs": ["lion wolf"]})
    other = keyed["other"].post("/v1/tasks/reviews/predict", {"inputs": ["lion wolf"]})
    assert short.json["predictions"] == whole.json["predictions"]
    assert short.json["predictions"] != other.json["predictions"]


@pytest.mark.parametrize("name", ["other/secret", "secret", "words", "other/reviews@1", "other/nothing"])
def test_what_is_anothers_is_as_if_it_did_not_exist(keyed: dict[str, Any], name: str) -> None:
    never = "nowhere/atall"

    def said(asked: str) -> list[tuple[int, bytes]]:
        ask: Asker = keyed["acme-admin"]
        answers = [
            ask.post(f"/v1/tasks/{asked}/predict", {"inputs": ["a"]}),
            ask.post("/v1/predict", {"items": [{"task": asked, "text": "a"}]}),
            ask.post("/v1/predict", {"items": [{"task": f"stack({asked})", "text": "a"}]}),
            ask.get(f"/v1/tasks/{asked}"),
            ask("DELETE", f"/v1/tasks/{asked}"),
            ask.get(f"/v2/models/{asked}"),
            ask.get(f"/v2/models/{asked}/ready"),
        ]
        return [(got.status, got.body.replace(asked.encode(), b"NAME")) for got in answers]

    def without_hint(found: list[tuple[int, bytes]]) -> list[Any]:
        return [(status, {**json.loads(body)["error"], "hint": ""}) for status, body in found]

    assert without_hint(said(name)) == without_hint(said(never))
    assert all(status == 404 for status, _ in said(name))
    assert all(b"other/" not in body.replace(b"NAME", b"") for _, body in said(name))


def test_anothers_task_does_not_reach_the_store(keyed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store, seen = keyed["engine"].store, []
    real = type(store).versions

    def versions(self: Any, name: str) -> list[int]:
        seen.append(name)
        return real(self, name)

    monkeypatch.setattr(type(store), "versions", versions)
    keyed["acme"].post("/v1/tasks/other/secret/predict", {"inputs": ["a"]})
    keyed["acme"].post("/v1/tasks/nothing/predict", {"inputs": ["a"]})
    asked = [name for name in seen if name.startswith(("other/", "acme/"))]
    assert "other/secret" not in asked
    assert len(asked) == 2  # the same work for both


def test_a_tenant_adds_and_removes_only_its_own(keyed: dict[str, Any], tmp_path: Path) -> None:
    world: World = keyed["all"].world
    bundle = tmp_path / "secret.adaptree"
    export(world.store, ["other/secret"], bundle)
    data = bundle.read_bytes()
    binary = {"Content-Type": "application/octet-stream"}
    got = keyed["acme-trainer"].post("/v1/tasks", data, headers=binary)
    assert got.status == 201, got.body
    assert [each["task"] for each in got.json["tasks"]] == ["acme/secret@1"]
    assert keyed["acme"].post("/v1/tasks/secret/predict", {"inputs": ["a"]}).status == 200
    for name in ("other/x", "../x", "a/b/c", ""):
        refused = keyed["acme-trainer"].post(f"/v1/tasks?name={name}", data, headers=binary)
        assert (refused.status, refused.error["code"]) == (422, "bad_input"), name
    assert keyed["acme-trainer"]("DELETE", "/v1/tasks/secret").status == 403
    assert keyed["acme-admin"]("DELETE", "/v1/tasks/secret").json == {"removed": 1}
    assert keyed["acme"].post("/v1/tasks/secret/predict", {"inputs": ["a"]}).status == 404
    assert world.store.versions("other/secret") == [1]


def test_a_tenants_bundle_holds_one_task(keyed: dict[str, Any], tmp_path: Path) -> None:
    bundle = tmp_path / "two.adaptree"
    export(keyed["all"].world.store, ["other/secret", "words"], bundle)
    got = keyed["acme-trainer"].post("/v1/tasks", bundle.read_bytes(), headers={"Content-Type": "application/zip"})
    assert (got.status, got.error["code"]) == (422, "bad_bundle")
    assert keyed["all"].world.store.versions("acme/words") == []


# Logs


def test_logs_are_lines_of_json_without_texts_and_keys(keyed: dict[str, Any]) -> None:
    asker: Asker = keyed["acme"]
    asker.post(
        "/v1/predict", {"items": [{"task": "reviews", "text": "UNIQUE words"}, {"task": "tickets", "text": "x"}]}
    )
    asker.post("/v1/tasks/UNIQUE/predict", {"inputs": ["UNIQUE"]})
    keyed["nobody"].get("/v1/tasks?search=UNIQUE", headers={"Authorization": "Bearer UNIQUE"})
    time.sleep(0.1)
    text = keyed["all"].log.getvalue()
    lines = [json.loads(line) for line in text.splitlines()]
    assert {"time", "request", "method", "route", "status", "ms", "tenant", "tasks", "texts"} == lines[-1].keys()
    mixed = next(line for line in reversed(lines) if line["route"] == "/v1/predict" and line["status"] == 200)
    assert (mixed["tenant"], mixed["tasks"], mixed["texts"]) == ("acme", 2, 2)
    assert "UNIQUE" not in text
    for key in keyed["all"].texts.values():
        assert key not in text
        assert key.split("_", 2)[2] not in text


def test_a_version_in_a_name_is_the_tenants_own(keyed: dict[str, Any]) -> None:
    world: World = keyed["all"].world
    world.store.add(renamed(world.store["acme/tickets"], "acme/tickets", 7))
    ask: Asker = keyed["acme"]
    old = ask.post("/v1/tasks/tickets@1/predict", {"inputs": ["lion wolf"]}).json["predictions"]
    new = ask.post("/v1/tasks/tickets@2/predict", {"inputs": ["lion wolf"]}).json["predictions"]
    assert old != new
